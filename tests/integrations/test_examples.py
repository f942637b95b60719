"""Examples that need no integration: LDReg in other people's training scripts."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.random.set_rng_state(state)


def test_plain_pytorch_in_ten_lines_raises_lid(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "plain_pytorch.py"
    runpy.run_path(str(path))
    first, *_, last = (float(value) for value in re.findall(r"LID ([\d.]+)", capsys.readouterr().out))
    assert last > first + 1
    body = path.read_text().partition("torch.manual_seed(0)\n")[2]
    assert len(body.splitlines()) <= 10


def test_lightly_takes_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightly")
    path = EXAMPLES / "with_lightly.py"
    added = [line for line in path.read_text().splitlines() if "# added" in line]
    assert [re.findall(r"# added: (\d)", line) for line in added] == [["1"], ["2"], ["3"]]
    assert all("LDReg" in line or "reg(" in line for line in added)
    runpy.run_path(str(path))
    values = re.findall(r"loss ([\d.]+), with LDReg ([\d.]+)", capsys.readouterr().out)
    assert len(values) == 2
    for plain, regularized in values:  # beta · ln LID, of a LID between 2 and 60 in a batch of 32
        assert 0.007 < float(plain) - float(regularized) < 0.041


def test_without_the_added_lines_the_lightly_script_still_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightly")
    text = (EXAMPLES / "with_lightly.py").read_text()
    kept = "\n".join(line for line in text.splitlines() if "# added" not in line).replace("STEPS = 2", "STEPS = 1")
    assert "reg" not in kept.replace("with LDReg", "").partition('"""\n')[2]
    exec(compile(kept, "with_lightly.py", "exec"), {"__name__": "example"})
    [(plain, same)] = re.findall(r"loss ([\d.]+), with LDReg ([\d.]+)", capsys.readouterr().out)
    assert plain == same
