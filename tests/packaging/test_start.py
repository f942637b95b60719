"""The command starts quickly, ends in one line when interrupted while it starts, and says which extra is missing."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ldreg import extras
from ldreg.cli import COMMANDS, main
from ldreg.options import Command
from ldreg.train.recipes import recipe_names

Capture = pytest.CaptureFixture[str]

# Packages that an environment without extras does not have, taken out of what Python finds.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
from ldreg.cli import main
sys.exit(main(sys.argv[1:]))
"""
TRAINING = ("torchvision", "timm", "lightly", "pytorch_lightning")
EXTRAS = (*TRAINING, "pycocotools", "pyarrow", "tensorboard", "wandb", "skdim", "faiss")


def without(absent: tuple[str, ...], *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.replace("{absent}", str(set(absent)))
    return subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)


HELPS = [[], ["evaluate"], *(name.split() for name in COMMANDS)]
QUICK = [[], ["evaluate"], ["inspect"], ["demo"], ["export"], ["bench"], ["completion"]]


# What a command ends with and which of the modules were imported by then, of one command after the other.
IMPORTED = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from ldreg.cli import main
found = []
modules = sys.argv[1].split()
for words in json.loads(sys.argv[2]):
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        status = main(words)
    found.append([status, [name for name in modules if name in sys.modules]])
print(json.dumps(found))
"""
# The help of the other commands lists settings, read from the classes of methods, encoders and protocols.
LIGHT: list[tuple[list[str], int]] = [
    *(([*words, "--help"], 0) for words in QUICK),
    (["pretrain", "--list_recipes"], 0),
    (["pretrain", "--recipe", "digits/simcrl"], 2),
    ([], 2),
    (["--version"], 0),
    (["inspekt"], 2),
    (["inspect", "x.npy", "--k", "five"], 2),
    (["evaluate", "liner"], 2),
    (["evaluate", "knn", "absent"], 2),
    (["report", "absent"], 2),
]


# Commands that import torch, but no other library that takes as long.
TORCH_ALONE: list[tuple[list[str], int]] = [
    *(([*words, "--help"], 0) for words in HELPS if words not in QUICK),
    *((["pretrain", "--recipe", name, "--print_config"], 0) for name in recipe_names()),
    (["pretrain", "--recipes"], 2),
    (["pretrain", "--method", "simcrl"], 2),
    (["evaluate", "knn", ".", "--kk", "3"], 2),
    (["evaluate", "knn", "."], 2),
    (["export", "."], 2),
    (["reproduce", "tabel1"], 2),
    (["reproduce", "table1", "--show"], 2),  # there is nothing to show
]
SLOW = "torchvision timm sklearn scipy.stats lightly matplotlib pytorch_lightning torch._dynamo"


def imported(modules: str, asked: list[tuple[list[str], int]], folder: Path) -> list[list[str]]:
    """Which of the modules were imported when each of the commands had ended, with the status that is asked for."""
    code = [sys.executable, "-c", IMPORTED, modules, json.dumps([words for words, _ in asked])]
    done = subprocess.run(code, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [(words, status) for (words, _), (status, _) in zip(asked, ended, strict=True)] == asked
    return [found for _, found in ended]


def test_what_needs_no_torch_does_not_import_it(tmp_path: Path) -> None:
    found = imported("torch", LIGHT, tmp_path)
    assert [words for (words, _), names in zip(LIGHT, found, strict=True) if names] == []


def test_what_takes_long_to_import_is_imported_by_those_who_use_it(tmp_path: Path) -> None:
    asked = [*TORCH_ALONE, (["reproduce", "table1", "--plan"], 0)]
    *found, plan = imported(SLOW, asked, tmp_path)
    assert [(words, names) for (words, _), names in zip(TORCH_ALONE, found, strict=True) if names] == []
    assert set(plan) <= {"timm", "torchvision", "torch._dynamo"}  # it makes a ViT and counts what that computes


# Looking for this module interrupts: in the imports of the command line, of torch, and of numpy by torch's C code.
INTERRUPTED = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of a shell
sys.argv = ["ldreg", "inspect", "x.npy"]
import runpy
runpy.run_module("ldreg", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["jsonargparse", "ldreg.cli", "torch", "torch.nn", "numpy", "numpy.exceptions"])
def test_interruption_while_importing_is_one_line_and_status_130(module: str) -> None:
    code = INTERRUPTED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.stderr in ("ldreg: interrupted\n", "ldreg inspect: interrupted\n")
    assert done.returncode == 130


@pytest.mark.parametrize(
    "words",
    [("pretrain",), ("evaluate", "knn", "."), ("reproduce", "table1"), ("report", "x.pt", "--data.name", "digits")],
    ids=" ".join,
)
def test_missing_extra_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "x.pt").touch()
    done = without(EXTRAS, *words, folder=tmp_path)
    missing = re.fullmatch(
        rf'ldreg {words[0]}: error: this needs (\w+), which is not installed: pip install "ldreg\[train\]"',
        done.stderr.splitlines()[-1],
    )
    assert missing is not None, done.stderr
    assert missing[1] in TRAINING
    assert (done.returncode, done.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == [tmp_path / "x.pt"]


def test_part_of_an_extra_is_missed_before_a_run_begins(tmp_path: Path) -> None:
    done = without(("lightly",), "pretrain", "--out", "run", folder=tmp_path)
    advised = 'this needs lightly, which is not installed: pip install "ldreg[train]"'
    assert done.stderr == f"ldreg pretrain: error: {advised}\n"
    assert list(tmp_path.iterdir()) == []


def test_help_of_pretrain_needs_no_extra(tmp_path: Path) -> None:
    done = without(EXTRAS, "pretrain", "--help", folder=tmp_path)
    assert done.stdout.startswith("usage: ldreg pretrain")
    assert "--ldreg.beta" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_our_own_missing_module_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        """Break."""
        import ldreg.no_such_module  # type: ignore[import-not-found]  # noqa: F401

    monkeypatch.setitem(COMMANDS, "break", Command(broken, "Break."))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        main(["break"])


@pytest.mark.slow
def test_demo_needs_no_extra(tmp_path: Path) -> None:
    done = without(EXTRAS, "demo", "--epochs", "3", "--out", "found", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("a small SimCLR in plain PyTorch")
    assert "The report is found/report.html" in done.stdout
    assert "SimCLR + LDReg" in (tmp_path / "found" / "report.html").read_text()


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_fits_80_columns_and_has_an_example(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    examples = text.partition("\nexamples:\n")[2].splitlines()
    expected = "  " + " ".join(["ldreg", *words])
    assert words in (["completion"], ["evaluate"]) or examples[0].startswith(expected)
    if not words:
        assert all(any(f"ldreg {name.split()[0]}" in line for line in examples) for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("xyz", "ldreg: error: unknown command 'xyz'; ldreg --help lists all"),
        ("report runs --nmaes a", "unknown option --nmaes; did you mean '--names'?"),
        ("pretrain --ldreg.bta 1", "unknown setting 'ldreg.bta'; nearest: 'ldreg.beta'"),
        ("--hlep", "ldreg: error: unknown command '--hlep'; did you mean '--help'?"),
        ("inspect --hlep", "ldreg inspect: error: unknown option --hlep; did you mean '--help'?"),
        ("inspect -help", "ldreg inspect: error: unknown option -help; did you mean '--help'?"),
        ("reproduce tabel1", "got 'tabel1'; nearest: 'table1'"),
        ("reproduce al", "got 'al'; nearest: 'all'"),
    ],
)
def test_near_misses_are_one_line_that_proposes(words: str, error: str, capsys: Capture) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert error in err


def test_a_folder_of_a_packages_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras._BRINGS, "test", ("ldreg_absent", "json"))
    assert extras.missing("test") == "ldreg_absent"
    (tmp_path / "ldreg_absent").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert extras.missing("test") == "ldreg_absent"
    (tmp_path / "ldreg_absent" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert extras.missing("test") is None
