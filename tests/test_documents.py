"""Commands in running text are understood, links lead somewhere, and the examples say what they promise."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += [ROOT / "docs" / name for name in ("deviations.md", "guidance.md", "performance.md", "results.md")]
TEXTS = [*DOCUMENTS[:2], *sorted((ROOT / "docs").rglob("*.md"))]


def commands(name: str) -> list[list[str]]:
    """The words of the commands of that name in running text; those in blocks are run by tests/docs."""
    text = "\n".join(re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE) for path in TEXTS)
    return sorted(shlex.split(line)[2:] for line in set(re.findall(rf"`(ldreg {name} [^`]+)`", text)))


@pytest.mark.parametrize("words", commands("pretrain"), ids=" ".join)
def test_pretraining_commands_are_understood(words: list[str], tmp_path: Path) -> None:
    from ldreg.training.command import request, words_to_options
    from ldreg.training.folder import create

    if words[0] in ("--list_recipes", "--print_config", "--resume"):
        from ldreg.cli import main

        if words[0] == "--resume":
            create(tmp_path / "run", request([]).settings.tree, command="")
            assert request([("resume", str(tmp_path / "run"))])
        else:
            assert main(["pretrain", *words]) == 0
        return
    assert request(words_to_options(words)).settings.run.batch_size >= 256


@pytest.mark.parametrize("name", ["inspect", "evaluate", "reproduce", "report", "bench"])
def test_options_in_running_text_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ldreg.cli import main

    for words in commands(name):
        kind = words[:1] if name == "evaluate" else []
        assert main([name, *kind, "--help"]) == 0
        told = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--") and "." not in word):
            assert option in told, f"ldreg {name} {' '.join(words)}"


@pytest.mark.parametrize("path", sorted({*DOCUMENTS, *TEXTS}), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if not target.startswith(("http", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


def test_results_are_quoted_as_they_are() -> None:
    readme = (ROOT / "README.md").read_text().partition("## Results at CIFAR-10 size")[2].partition("\n## ")[0]
    choose = (ROOT / "docs" / "howto" / "choose.md").read_text().partition("## β")[2]
    for section in (readme, choose):
        quoted = [line for line in section.splitlines() if line.startswith("|")]
        assert len(quoted) > 3
        assert set(quoted) <= set((ROOT / "docs" / "results.md").read_text().splitlines())


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
