"""Triton's interpreter, which must be asked for before Triton is imported and so has a process of its own."""

import importlib
import importlib.metadata
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def can_interpret() -> bool:
    """Whether there is a Triton whose interpreter works with today's NumPy; that of 3.6 does not."""
    if importlib.util.find_spec("triton") is None:
        return False
    return [int(part) for part in importlib.metadata.version("triton").split(".")[:2]] >= [3, 7]


needs_interpreter = pytest.mark.skipif(not can_interpret(), reason="needs Triton 3.7 or later")


def run_interpreted(file: str, *arguments: str) -> None:
    """Run a file of the tests as a script, in a process in which Triton interprets its kernels."""
    module = ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", __name__, module, *arguments]
    subprocess.run(words, check=True, cwd=ROOT, env=environment)


def take_small_blocks() -> None:
    """Have the kernels of LDReg's step work in blocks so small that small cases have several."""
    from ldreg.dimension.cuda import large_step_kernels, nearest_kernels, step_kernels

    nearest_kernels.TILES = nearest_kernels.Tiles(16, 128, 16, 1, 1, 2)
    step_kernels.TILES = step_kernels.Tiles(16, 8, 1)
    large_step_kernels.SCORES = 16 * 64


def adapt_once() -> None:
    """Have the interpreter adapt Triton's language once; at every call, as it is, that takes half of the time."""
    language = importlib.import_module("triton.language")
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    # Triton looks for its modules among what a function can see.
    interpreter._patch_lang(FunctionType(adapt_once.__code__, {"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()


if __name__ == "__main__":
    adapt_once()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
