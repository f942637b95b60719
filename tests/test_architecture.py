"""Imports point one way, importing has no side effect and is light, and every public name is documented."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ldreg

SOURCE = Path(ldreg.__file__).parent

# What each room may import from this package; `lid` is pure and knows torch alone.
ROOMS: dict[str, set[str]] = {
    "version": set(),
    "extras": set(),
    "completion": set(),
    "lid": {"lid"},
    "spectrum": {"lid"},
    "invariance": {"lid"},
    "distributed": set(),
    "elapsed": set(),
    "notices": set(),
    "subcommands": set(),
    "terminal": set(),
    "termination": set(),
    "regularizers": {"lid", "distributed", "regularizers"},
    "reporting": {"lid", "reporting"},
    "loading": {"loading"},
    "inspection": {"inspection", "lid", "spectrum", "reporting", "distributed"},
    "data": {"data", "views"},
    "views": {"views"},
    "encoders": {"encoders", "views", "loading", "reporting"},
    "methods": {"methods", "distributed"},
    "optim": {"optim"},
    "evaluation": {
        "evaluation",
        "loading",
        "data",
        "views",
        "encoders",
        "optim",
        "reporting",
        "distributed",
        "elapsed",
        "notices",
        "termination",
    },
    "detection": {
        "detection",
        "loading",
        "data",
        "views",
        "encoders",
        "evaluation",
        "optim",
        "reporting",
        "distributed",
        "elapsed",
        "notices",
        "termination",
    },
    "monitor": {"lid", "spectrum", "invariance", "evaluation", "reporting", "monitor"},
    "training": {
        *("training", "data", "views", "encoders", "methods", "optim", "monitor", "evaluation", "loading"),
        *("regularizers", "reporting", "distributed", "elapsed", "extras", "inspection", "notices", "termination"),
        "subcommands",
    },
    "assessment": {
        *("assessment", "detection", "evaluation", "training", "data", "views", "encoders", "methods", "optim"),
        *("monitor", "inspection", "lid", "spectrum", "reporting", "distributed", "extras", "terminal"),
        "subcommands",
    },
    "reproduction": {
        *("reproduction", "assessment", "detection", "evaluation", "training", "data", "encoders", "monitor"),
        *("lid", "regularizers", "reporting", "benchmarking", "elapsed", "extras", "notices", "loading", "terminal"),
    },
    "benchmarking": {
        *("benchmarking", "lid", "regularizers", "reporting", "data", "views", "encoders", "methods", "training"),
        "notices",
    },
    "integrations": {
        *("integrations", "distributed", "encoders", "evaluation", "extras", "lid", "monitor", "reporting"),
        *("spectrum", "views"),
    },
    "demo": {"assessment", "demo_plain", "extras", "reporting", "reproduction", "training"},
    "demo_plain": {"evaluation", "inspection", "lid", "regularizers", "reporting", "spectrum"},
    "commands": {
        *("commands", "inspection", "loading", "reporting", "benchmarking", "completion", "distributed"),
        *("subcommands", "terminal"),
    },
    "cli": {
        *("commands", "reporting", "demo", "training", "assessment", "reproduction", "completion", "distributed"),
        *("extras", "integrations", "subcommands", "terminal"),
    },
    "__main__": {"cli"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = {name.split(".")[1] for name in imports(path) if name.startswith("ldreg.")}
    assert own <= ROOMS[room_of(path)] | {"version"}


def test_the_core_imports_torch_alone() -> None:
    for path in (SOURCE / "lid").glob("*.py"):
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


@pytest.mark.parametrize("first", ["ldreg.lid.geometry", "ldreg.regularizers", "ldreg.lid"])
def test_lid_is_the_function_whatever_was_imported_first(first: str) -> None:
    script = f"import {first}, ldreg; assert ldreg.lid.__name__ == 'lid' and callable(ldreg.lid), ldreg.lid"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_modules_need_not_be_imported_to_be_spoken_of() -> None:
    script = """
import sys, ldreg
assert ldreg.spectrum.effective_rank is ldreg.effective_rank
assert ldreg.regularizers is sys.modules["ldreg.regularizers"]
assert not hasattr(ldreg, "spectra") and not hasattr(ldreg, "spectrum.absent") and not hasattr(ldreg, "__main__")
assert callable(ldreg.lid)
sys.modules["docstring_parser"] = None
try:
    ldreg.cli
except ModuleNotFoundError as error:
    assert error.name == "docstring_parser"
"""
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


def test_public_surface_is_what_the_design_says() -> None:
    assert set(ldreg.__all__) == {
        "DimensionReport",
        "LDReg",
        "effective_rank",
        "fisher_rao",
        "frechet_variance",
        "geometric_mean",
        "global_dimension",
        "inspect",
        "lid",
        "neighbor_distances",
    }
