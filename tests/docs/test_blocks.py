"""Every block of code on the site and in the README runs, in the order of its page, and prints what the page says.

A page is one namespace and one folder. `python` blocks are executed, `bash` blocks are run, a block with a `title` is
written to the file of that name, and a `text` block is compared with what the block before it printed: words have to be
the same, numbers near, and a line of dots stands for any lines. A comment above a block, which readers do not see, may
say what the test does otherwise:

    <!-- test: slow -->                     only run by `make test-slow`
    <!-- test: append --epochs 1 -->        options added to every command of ldreg in the block
    <!-- test: append to pretrain: ... -->   those added to every `ldreg pretrain` in it
    <!-- test: replace 4 => 2 -->           another size
    <!-- test: within 30 % -->              of an output: how near numbers have to be
    <!-- test: words -->                    of an output: whatever the numbers, as of what is tested in a smaller size
    <!-- test: elsewhere REASON -->         not run here
    <!-- test: needs MODULE ... -->         not run where one of these modules is missing

`test_exceptions_are_known` lists those that change what is run.
"""

import io
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "transcript.md")  # tests/packaging runs it, in an environment of its own

_FENCE = re.compile(
    r"^(?P<said>(?:<!-- test: [^\n]* -->\n)*)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A block of code, and the comments for the tests above it."""

    language: str
    title: str | None
    code: str
    line: int
    said: dict[str, list[str]] = field(default_factory=dict)

    @property
    def slow(self) -> bool:
        return "slow" in self.said

    @property
    def source(self) -> str:
        """The code in the size in which it is tested."""
        code = self.code
        for words in self.said.get("replace", []):
            old, _, new = words.partition(" => ")
            assert old in code, f"line {self.line}: there is no {old!r} to replace"
            code = code.replace(old, new)
        for words in self.said.get("append", []):
            only = re.match(r"to (\w+): ", words)
            lines = rf"^((?:torchrun .*|srun )?ldreg {only[1] if only else ''}[^#\n\\]*?)( *#.*)?$"
            code = re.sub(lines, rf"\1 {words.removeprefix(only[0] if only else '')}", code, flags=re.MULTILINE)
        return code


def blocks(text: str) -> list[Block]:
    """The blocks of code of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        said: dict[str, list[str]] = {}
        for name, words in re.findall(r"<!-- test: (\w+) ?(.*?) -->", match["said"]):
            said.setdefault(name, []).append(words)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match["language"], match["title"], match["code"], line, said))
    return found


def executed(page: Path) -> list[Block]:
    return [block for block in blocks(page.read_text()) if block.language != "text"]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and the commands that a page may use on the path."""
    slurm = Path(__file__).with_name("slurm.py")
    write_commands(
        tmp_path / "bin", ldreg="-m ldreg", python="", torchrun="-m torch.distributed.run", sbatch=f"{slurm} sbatch"
    )
    # Not on the path from the beginning: Lightning warns of runs outside of srun where there is one.
    write_commands(tmp_path / "job", srun=f"{slurm} srun")
    monkeypatch.setenv("PATH_OF_JOBS", str(tmp_path / "job"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield work
    torch.set_rng_state(state)


def write_commands(folder: Path, **commands: str) -> None:
    """Commands by these names, each this interpreter with these words."""
    folder.mkdir()
    for name, words in commands.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (folder / name).chmod(0o755)


# What other libraries warn of is no matter of these pages.
OF_OTHERS = {
    "libraries.md": [
        pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
        pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
        pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
    ],
    "other-tools.md": [pytest.mark.filterwarnings("default")],
}


def parameters(*, slow: bool) -> list[Any]:
    """Pages with code, or those that have slow blocks."""
    found = [page for page in PAGES if any(block.slow >= slow for block in executed(page))]
    return [pytest.param(page, id=name_of(page), marks=OF_OTHERS.get(page.name, ())) for page in found]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", parameters(slow=False))
def test_page_runs(page: Path) -> None:
    run([block for block in blocks(page.read_text()) if not block.slow], page)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", parameters(slow=True))
def test_whole_page_runs(page: Path) -> None:
    run(blocks(page.read_text()), page)


def run(found: list[Block], page: Path) -> None:
    """Run blocks in order; what one prints is compared with the block after it, if that is an output."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    printed: str | None = ""  # None: a module is missing
    for block in found:
        place = f"{name_of(page) if page.is_absolute() else page}, line {block.line}"
        missing = [name for names in block.said.get("needs", []) for name in names.split() if not find_spec(name)]
        if missing or "elsewhere" in block.said:
            printed = None if missing else ""
        elif block.title is not None:
            Path(block.title).write_text(block.source)
        elif block.language == "python":
            printed = run_python(block.source, namespace, place)
        elif block.language == "bash":
            printed = run_shell(block.source, place)
        elif block.language == "text":
            difference = None if printed is None else compare(block.code, printed, tolerance=tolerance(block))
            assert difference is None, f"{place}: {difference}\n\nprinted:\n{printed}"
        else:
            raise AssertionError(f"{place}: expected python, bash or text, or a title, got {block.language!r}")


def run_python(code: str, namespace: dict[str, Any], place: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, place, "exec"), namespace)
    return out.getvalue()


def run_shell(code: str, place: str) -> str:
    """Run a block; if it has only commands of ldreg, in this process, which saves imports."""
    lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    if all(re.match(r"ldreg (?!.*([|><;&$*]|--trainer.devices))", line.partition("  #")[0]) for line in lines):
        return "".join(run_command(shlex.split(line, comments=True)[1:], place) for line in lines)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{place}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def run_command(words: list[str], place: str) -> str:
    from ldreg.cli import main

    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = main(words)
    assert status == 0, f"{place}: ldreg {shlex.join(words)}\n{out.getvalue()}"
    return out.getvalue()


def tolerance(block: Block) -> float:
    if "words" in block.said:
        return math.inf
    said = block.said.get("within")
    return 0.01 if said is None else float(said[0].removesuffix("%")) / 100


def compare(expected: str, printed: str, *, tolerance: float) -> str | None:
    """What of the expected lines was not printed, or None. Lines of dots stand for any lines."""
    actual = [line for line in map(str.split, printed.splitlines()) if line]
    chunks = [chunk.split("\n") for chunk in re.split(r"^\s*(?:\.\.\.|…)\s*$", expected, flags=re.MULTILINE)]
    place = 0
    for chunk in chunks:
        wanted = [line.split() for line in chunk if line.strip()]
        fits = (
            start
            for start in range(place, len(actual) - len(wanted) + 1)
            if all(same(a, b, tolerance) for a, b in zip(wanted, actual[start : start + len(wanted)], strict=True))
        )
        start = next(fits, None)
        if start is None:
            return "expected\n" + "\n".join(" ".join(line) for line in wanted)
        place = start + len(wanted)
    return None


def same(expected: list[str], actual: list[str], tolerance: float) -> bool:
    if expected and expected[-1] in ("...", "…"):
        expected, actual = expected[:-1], actual[: len(expected) - 1]
    return len(expected) == len(actual) and all(near(a, b, tolerance) for a, b in zip(expected, actual, strict=True))


def near(expected: str, actual: str, tolerance: float) -> bool:
    """Whether two words are the same but for their numbers, and these near: a unit of the last place, or a share."""
    if set(expected) == {"─"}:
        return set(actual) == {"─"}
    if _NUMBER.sub("#", expected) != _NUMBER.sub("#", actual):
        return False
    for a, b in zip(_NUMBER.findall(expected), _NUMBER.findall(actual), strict=True):
        places = len(a.partition(".")[2]) if "e" not in a else 0
        first, second = (float(number.replace(",", "").replace("−", "-")) for number in (a, b))
        unit = 1.01 * 10.0**-places if places else 0.0
        if abs(first - second) > max(unit, tolerance * abs(first)):
            return False
    return True


def test_every_output_follows_what_prints_it() -> None:
    for page in PAGES:
        for before, after in pairwise(blocks(page.read_text())):
            if after.language == "text" and "elsewhere" not in after.said:
                assert before.language in ("python", "bash"), f"{name_of(page)}, line {after.line}"


def test_no_block_is_passed_over() -> None:
    """What this module takes for blocks are all fences that there are."""
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)
        assert len(fences) == 2 * len(blocks(text)), name_of(page)
        assert len(re.findall("<!-- test:", text)) == sum(
            len(words) for block in blocks(text) for words in block.said.values()
        ), name_of(page)
