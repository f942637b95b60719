"""The first minutes with a wheel in a new environment, as docs/transcript.md has them.

`python tests/packaging/transcript.py` installs everything anew, as a reader would, and writes the page: some minutes,
and 7 GB that are deleted at the end. The test borrows installed packages, except those of the extras.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "transcript.md"

_DIGITS = (
    "python -c \"import numpy, sklearn.datasets as data; numpy.save('digits.npy', data.load_digits().data)\"",
    "python -c \"import ldreg, numpy; print(ldreg.geometric_mean(ldreg.lid(numpy.load('digits.npy'))))\"",
)
REPORT = "ldreg inspect digits.npy --html report.html"
COMMANDS = (*_DIGITS, REPORT, "ldreg demo", "ldreg pretrain")  # the last needs an extra, and says so

_ABSENT = (
    "torchvision timm lightly pytorch_lightning lightning pycocotools pyarrow tensorboard torchmetrics wandb "
    "transformers accelerate onnx onnxscript onnxruntime ldreg"
)
_HEAD = """# The first minutes

A new virtual environment, the wheel that `make dist` builds, a first number, a first report. Written by
`python tests/packaging/transcript.py`, which runs these commands, on {machine}; `make test-slow` runs
them again and compares what they print, without the numbers. From the end of the installation to the first report
it took {first:.0f} s, with the demo {all:.0f} s.

"""


@dataclass(frozen=True)
class Step:
    """A command, what it printed, its exit status and how long it took."""

    command: str
    output: str
    status: int
    seconds: float


def build(folder: Path) -> Path:
    """Build wheel and source archive into a folder; returns the wheel."""
    call = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(call, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def new_environment(folder: Path) -> Path:
    """A virtual environment; returns its folder of programs."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    return folder / "env" / ("Scripts" if os.name == "nt" else "bin")


def run(command: str, programs: Path, folder: Path) -> Step:
    """Run a command as a shell in the activated environment would, with errors among what it prints."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    environment = kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    started = time.monotonic()
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, check=False, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return Step(command, done.stdout, done.returncode, time.monotonic() - started)


def borrow(programs: Path, folder: Path) -> None:
    """Let an environment find what this one has installed, as links, but for this package and the extras'."""
    shared = folder / "borrowed"
    shared.mkdir()
    absent = tuple(name.replace("_", "[-_]") for name in _ABSENT.split())
    for site in {Path(path) for path in sys.path if path.endswith("site-packages")}:
        for entry in site.iterdir():
            if entry.suffix != ".pth" and not re.match(rf"({'|'.join(absent)})([-.]|$)", entry.name):
                (shared / entry.name).symlink_to(entry)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = run(f'python -c "{where}"', programs, folder).output.strip()
    (Path(purelib) / "borrowed.pth").write_text(f"{shared}\n")


def steps(install: Callable[[Path, Path], Step], folder: Path) -> list[Step]:
    """All steps, the installation first."""
    programs = new_environment(folder)
    return [install(programs, folder), *(run(command, programs, folder) for command in COMMANDS)]


def as_page(found: Sequence[Step]) -> str:
    """The page: every command with what it printed and how long it took."""
    seconds = [step.seconds for step in found[1:]]
    first = 1 + [step.command for step in found[1:]].index(REPORT)
    machine = f"{os.cpu_count()} CPU cores with Python {platform.python_version()}"
    text = _HEAD.format(machine=machine, first=sum(seconds[:first]), all=sum(seconds))
    for step in found:
        lines = [f"$ {step.command}", *step.output.rstrip().splitlines()]
        lines += [f"[exit status {step.status}]"] if step.status else []
        body = "\n".join(line.rstrip() for line in lines)
        text += f"```console\n{body}\n```\n\n({step.seconds:.1f} s)\n\n"
    return text.rstrip() + "\n"


def lasting(page: str) -> list[str]:
    """The words of a page's commands and what they print, without what another machine or day changes.

    That are numbers, how long a training took, and where lines are broken and drawn around them.

    >>> lasting("It took 9 s.```console\\nLID   6.29  ───\\n\\n Training time 9 s\\nand 1e-05")
    ['LID', '#', 'and', '#']
    """
    body = page.partition("```console")[2]
    kept = [line for line in body.splitlines() if not line.startswith(" Training time")]
    return re.sub(r"[+−-]?\d[\d.,]*(e[+-]?\d+)?", "#", re.sub(r"[─━]+", "", " ".join(kept))).split()


def installation(wheel: Path) -> Callable[[Path, Path], Step]:
    """The installation as a reader does it; what pip says where it succeeds is left out."""

    def install(programs: Path, folder: Path) -> Step:
        done = run(f"pip install --quiet {wheel}", programs, folder)
        return Step(f"pip install {wheel.name}", done.output if done.status else "", done.status, done.seconds)

    return install


def borrowing(wheel: Path, *, seconds: float) -> Callable[[Path, Path], Step]:
    """The installation of the wheel without its dependencies, which are borrowed; the page keeps these seconds."""

    def install(programs: Path, folder: Path) -> Step:
        borrow(programs, folder)
        done = run(f"python -m pip install --quiet --no-index --no-deps {wheel}", programs, folder)
        return Step(f"pip install {wheel.name}", done.output if done.status else "", done.status, seconds)

    return install


def main() -> None:
    """Write the page anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = steps(installation(build(folder / "dist")), folder)
    PAGE.write_text(as_page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
