"""Commands in running text are understood, links lead somewhere, and the examples say what they promise."""

import re
import runpy
import shlex
from pathlib import Path
from typing import NamedTuple

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
    from ldreg.cli import COMMANDS
    from ldreg.options import CommandLine, parse
    from ldreg.train.command import request
    from ldreg.train.folder import create

    if words[0] in ("--list_recipes", "--print_config", "--resume"):
        from ldreg.cli import main

        if words[0] == "--resume":
            create(tmp_path / "run", request([]).settings.tree, command="")
            assert request([], resume=str(tmp_path / "run"))
        else:
            assert main(["pretrain", *words]) == 0
        return
    given = parse(COMMANDS["pretrain"], words, command_line=CommandLine(""))
    assert request(given["settings"], recipe=given["recipe"], out="run").settings.run.batch_size >= 256


@pytest.mark.parametrize("name", ["inspect", "evaluate", "reproduce", "report", "bench"])
def test_options_in_running_text_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ldreg.cli import main

    for words in commands(name):
        kind = words[:1] if name == "evaluate" else []
        assert main([name, *kind, "--help"]) == 0
        shown = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--") and "." not in word):
            assert option in shown, f"ldreg {name} {' '.join(words)}"


@pytest.mark.parametrize("path", sorted({*DOCUMENTS, *TEXTS}), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if not target.startswith(("http", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


def test_results_are_quoted_as_they_are() -> None:
    readme = (ROOT / "README.md").read_text().partition("## Results\n")[2].partition("\n## ")[0]
    quoted = [line for line in readme.splitlines() if line.startswith("|")]
    assert len(quoted) > 3
    assert set(quoted) <= set((ROOT / "docs" / "results.md").read_text().splitlines())


# Which sections of docs/results.md have the numbers of a paragraph of the README's results that has these words.
SECTIONS = {
    "**LID and effective rank rise": ("About these runs", "How beta and k were chosen, at 20"),
    "gain in linear accuracy": ("Table 1:", "Table 15:"),
    "kNN accuracy rises": ("Table 1:", "Table 15:", "About these runs"),
    "mean ± standard deviation": ("Table 1:",),
}


class Number(NamedTuple):
    """A number in a text, without its sign; whether it counts points, and the noise that follows it."""

    value: str
    points: str
    noise: str


def numbers(text: str) -> list[Number]:
    """The numbers of a text; not those of names, such as ResNet-18, L1 and H200."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", re.sub(r"\]\([^)]*\)", "]", text))  # no links, no commas of thousands
    pattern = r"(?<![\w.])(?<![A-Za-z]-)(\d+(?:\.\d+)?)(?!\w|\.\d)( points)?(?:[^\d(]*\(noise ([\d.]+)\))?"
    return [Number(*found) for found in re.findall(pattern, plain)]


def not_in(text: str, source: str) -> list[str]:
    """The numbers of a text that the source lacks; the paper's numbers and standard deviations in it do not count."""
    known = numbers(re.sub(r"\(paper: [^)]*\)|± [\d.]+", "", source))
    return [number.value for number in numbers(text) if not any(_stands_for(number, one) for one in known)]


def _stands_for(number: Number, known: Number) -> bool:
    """Whether a number is another one rounded; whole numbers other than points are counts, which are not rounded."""
    counted = "." not in number.value and not number.points
    if counted and "." in known.value:
        return False
    if number.noise and not known.noise:
        return False
    return _rounded(number.value, known.value) and (not number.noise or _rounded(number.noise, known.noise))


def _rounded(value: str, known: str) -> bool:
    digits = len(value.partition(".")[2])
    return len(known.partition(".")[2]) >= digits and abs(float(value) - float(known)) <= 0.5 * 10.0**-digits + 1e-9


def test_a_wrong_number_is_found() -> None:
    source = "| ResNet-18 | 71.5 ± 0.4 (paper: 64.3) | +2.36 (noise 1.39) | -28.4 (noise 0.90) | k = 64 | 43,582 |"
    right = "From 71.5, by 2.4 of LID (noise 1.4) and 28 points, with k = 64 at 43582 on CIFAR-10 ([why](x-3.md))"
    assert not_in(right, source) == []
    wrong = "71.4, 0.4, 64.3, 2.3, 2.37, 1.39, 2.4 (noise 0.9), 27 points, 28, 64.0"
    assert not_in(wrong, source) == ["71.4", "0.4", "64.3", "2.3", "2.37", "1.39", "2.4", "27", "28", "64.0"]


def test_numbers_in_the_text_of_the_results_are_those_of_the_tables() -> None:
    readme = (ROOT / "README.md").read_text().partition("## Results\n")[2].partition("\n## ")[0]
    sections = (ROOT / "docs" / "results.md").read_text().split("\n## ")
    parts = [part for part in re.split(r"\n\n|\n(?=- )", readme.strip()) if numbers(part) and not part.startswith("|")]
    assert len(parts) >= 3
    for part in parts:
        titles = tuple(title for words, some in SECTIONS.items() if words in part for title in some)
        assert titles, f"say in SECTIONS where these numbers are from: {part}"
        source = "\n".join(section for section in sections if section.startswith(titles))
        assert not_in(part, source) == [], f"not in {', '.join(titles)}: {part}"


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
