"""Imports point one way, importing has no side effect and is light, and every public name is documented."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import ldreg

SOURCE = Path(ldreg.__file__).parent

# Each room imports only rooms that stand before it.
ORDER = (
    *("text", "extras", "distributed"),
    *("options", "terminal"),
    *("dimension", "optim", "io", "views", "methods", "regularizers", "thumbnails", "record", "inspection", "report"),
    *("data", "evaluate.extract", "train.checkpoints", "train.engine", "encoders"),
    *("evaluate.features", "evaluate.measure"),
    *("monitor", "train"),
    *("integrations", "evaluate", "bench", "reproduce"),
    *("demo", "cli", "__main__"),
)
# These know nothing of one another: a method no dimension, a regularizer no method.
APART = {"dimension": set(), "views": set(), "optim": set(), "methods": {"distributed"}}
APART |= {"regularizers": {"dimension", "distributed"}, "data": {"text", "views", "io"}}

# A report renders itself: its methods import the pages and tables.
APART |= {"record": {"text", "io", "thumbnails"}}
APART |= {"inspection": {"text", "extras", "io", "dimension", "distributed", "record", "report", "thumbnails"}}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def room_of(parts: Sequence[str]) -> str:
    """The room of a module: its folder, or the module itself where the order names it."""
    return ".".join(parts[:2]) if ".".join(parts[:2]) in ORDER else parts[0]


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path.relative_to(SOURCE).with_suffix("").parts)
    before = set(ORDER[: ORDER.index(room)])
    own = {room_of(name.split(".")[1:]) for name in imports(path) if name.startswith("ldreg.")} - {room}
    assert own <= APART.get(room, before)


def test_the_core_imports_torch_alone() -> None:
    for path in (SOURCE / "dimension").rglob("*.py"):
        packages = {name.split(".")[0] for name in imports(path)}
        own = {"triton"} if path.name.endswith("kernels.py") else set()  # which is imported where it is used
        assert packages - set(sys.stdlib_module_names) <= {"torch", "ldreg"} | own, path


def test_no_room_for_leftovers() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in {"utils", "misc", "common", "helpers"}]


def test_importing_is_light() -> None:
    heavy = (
        "jsonargparse lightly matplotlib pandas pytorch_lightning rich sklearn timm torch._dynamo "
        "torchmetrics torchvision transformers triton"
    )
    check = f"found = {set(heavy.split())} & set(sys.modules); assert not found, found"
    script = f"import sys, ldreg; assert not {{'numpy', 'torch'}} & set(sys.modules); from ldreg import *; {check}"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_lid_is_the_function_whatever_was_imported_first() -> None:
    script = "import ldreg.dimension.search as s, ldreg; assert callable(ldreg.lid) and ldreg.lid.__name__ == 'lid'"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names_are_listed_and_others_are_none() -> None:
    assert {*ldreg.__all__, "__version__"} <= set(dir(ldreg))
    with pytest.raises(AttributeError, match="module 'ldreg' has no attribute 'lids'"):
        _ = ldreg.lids  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ldreg.__all__)
def test_public_names_are_documented_with_an_example(name: str) -> None:
    doc = getattr(ldreg, name).__doc__
    assert doc
    assert ">>>" in doc or name == "DimensionReport"
