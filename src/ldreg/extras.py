"""Which extra of this package brings which other package, for errors that say what to install."""

import sys
from importlib.util import find_spec

_BRINGS = {
    "train": ("torchvision", "timm", "lightly", "pytorch_lightning"),
    "detection": ("pycocotools",),
    "parquet": ("pyarrow",),
    "shards": ("fsspec",),
    "umap": ("umap",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "torchmetrics": ("torchmetrics",),
    "lightning": ("lightning",),
    "transformers": ("transformers", "accelerate"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "bench": ("skdim", "faiss"),
}


def missing(extra: str) -> str | None:
    """The first package of an extra that is not installed; None where all are.

    >>> missing("train") in (None, "torchvision", "timm", "lightly", "pytorch_lightning")
    True
    """
    return next((package for package in _BRINGS[extra] if not _installed(package)), None)


def require(extra: str) -> None:
    """Refuse work that needs an extra before it begins, as packages are imported where they are used, perhaps late.

    Raises:
        ModuleNotFoundError: one of them is not installed.
    """
    package = missing(extra)
    if package is not None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _installed(package: str) -> bool:
    """Whether Python finds a package; a mere folder of its name, which it would import as empty, is none."""
    try:
        spec = find_spec(package)
    except ValueError:  # what was put among the modules by hand has no spec
        return package in sys.modules
    return spec is not None and spec.origin is not None


def advice(package: str) -> str | None:
    """How to install a package that is missing; None where no extra brings it.

    >>> advice("timm")
    'this needs timm, which is not installed: pip install "ldreg[train]"'
    """
    extra = next((extra for extra, packages in _BRINGS.items() if package in packages), None)
    return extra and f'this needs {package}, which is not installed: pip install "ldreg[{extra}]"'
