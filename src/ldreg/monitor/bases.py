"""Lightning's `Callback`, of whichever of its two packages is in use."""

import importlib
import importlib.util
import sys


def callback_bases() -> tuple[type, ...]:
    """Lightning's `Callback`: of whichever of its two packages is loaded, of both if both are, else of one installed.

    A trainer calls hooks by name and takes any callback in a list; only one passed alone must be its own package's.

    Raises:
        ModuleNotFoundError: neither is installed.
    """
    packages = "pytorch_lightning", "lightning.pytorch"
    loaded = [package for package in packages if sys.modules.get(package)]
    if not loaded:
        loaded = [package for package in packages if importlib.util.find_spec(package.split(".")[0])][:1]
    if not loaded:
        raise ModuleNotFoundError("a monitor needs Lightning: install ldreg[train], pytorch-lightning or lightning")
    return tuple(importlib.import_module(package).Callback for package in loaded)
