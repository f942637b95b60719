"""The README's code runs, its files exist, and the examples say what they promise."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/deviations.md")]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_readme_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for command in set(re.findall(r"`?ldreg (inspect|demo|bench)\b", text)):
        help_text = subprocess.run(
            [sys.executable, "-m", "ldreg", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        used = set(re.findall(r"--[a-z-]+", text)) & {"--labels", "--html", "--json", "--compare", "--sample"}
        if command == "inspect":
            assert used <= set(re.findall(r"--[a-z-]+", help_text))


def test_measuring_example_finds_the_flattened_class(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "measure.py"))
    values = [float(value) for value in re.findall(r"LID +([\d.]+)", capsys.readouterr().out)]
    assert values[3] < 2.2
    assert min(values[:3] + values[4:]) > 4


def test_training_example_raises_lid() -> None:
    train = runpy.run_path(str(ROOT / "examples" / "train.py"))["train"]
    assert train(0.3, steps=60) > train(0.0, steps=60)


def test_baselines_share_the_call() -> None:
    import torch

    import ldreg.regularizers as regularizers

    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for name in regularizers.__all__:
        value = getattr(regularizers, name)()(x)
        assert value.shape == ()
        assert torch.autograd.grad(value, x)[0].any(), name
