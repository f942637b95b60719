"""The README's code runs, its files exist, and the examples say what they promise."""

import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += [ROOT / "docs" / name for name in ("deviations.md", "performance.md", "results.md")]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that the README speaks of, as `ldreg pretrain` leaves it."""
    from ldreg.encoders import EncoderConfig, build_encoder
    from ldreg.training.folder import RunFolder, save_encoder

    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.path.mkdir(parents=True)
    config = EncoderConfig("resnet18", stem="cifar")
    told = {"channels": 3, "size": 32, "mean": [0.5] * 3, "std": [0.25] * 3}
    card = {"encoder": asdict(config), "input": told}
    save_encoder(folder, build_encoder(config, channels=3, size=32), card)


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code_runs(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def commands() -> list[list[str]]:
    lines = re.findall(r"^ldreg pretrain.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True)[2:] for line in lines]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_readme_pretraining_commands_are_understood(words: list[str], tmp_path: Path) -> None:
    from ldreg.training.command import request, words_to_options
    from ldreg.training.folder import create

    options = words_to_options(words)
    if "resume" in dict(options):
        create(tmp_path / "run", request([]).settings.tree, command="")
        options = [("resume", str(tmp_path / "run"))]
    assert request(options).settings.run.batch_size >= 256


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def test_readme_quotes_the_results_as_they_are() -> None:
    section = (ROOT / "README.md").read_text().partition("## Results at CIFAR-10 size")[2].partition("\n## ")[0]
    quoted = [line for line in section.splitlines() if line.startswith("|")]
    assert len(quoted) > 3
    assert set(quoted) <= set((ROOT / "docs" / "results.md").read_text().splitlines())


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
