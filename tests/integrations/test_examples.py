"""The examples: LDReg and its measures in other people's scripts."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.integrations.conftest import MEASURES, MakeRun

from ldreg.encoders import EncoderConfig

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example with these arguments; returns what it prints."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            runpy.run_path(str(EXAMPLES / name))
        return capsys.readouterr().out

    return run


def table(text: str) -> dict[str, float]:
    """Lines "name: number" as a dict."""
    return {name: float(value) for name, value in re.findall(r"^(.+): ([\d.]+)$", text, re.M)}


def test_plain_pytorch_in_ten_lines_raises_lid(run: Run) -> None:
    first, *_, last = map(float, re.findall(r"LID ([\d.]+)", run("plain_pytorch.py")))
    assert last > first + 1
    body = (EXAMPLES / "plain_pytorch.py").read_text().partition("torch.manual_seed(0)\n")[2]
    assert len(body.splitlines()) <= 10


def test_lightly_takes_three_lines(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("lightly")
    lines = (EXAMPLES / "with_lightly.py").read_text().splitlines()
    added = [line for line in lines if "# added" in line]
    assert [re.findall(r"# added: (\d)", line) for line in added] == [["1"], ["2"], ["3"]]
    assert all("LDReg" in line or "reg(" in line for line in added)
    values = re.findall(r"loss ([\d.]+), with LDReg ([\d.]+)", run("with_lightly.py"))
    assert len(values) == 2
    for plain, regularized in values:  # beta · ln LID, of a LID between 2 and 60 in a batch of 32
        assert 0.007 < float(plain) - float(regularized) < 0.041
    kept = "\n".join(line for line in lines if line not in added).replace("STEPS = 2", "STEPS = 1")
    assert "reg" not in kept.replace("with LDReg", "").partition('"""\n')[2]
    (tmp_path / "without.py").write_text(kept)
    [(plain, same)] = re.findall(r"loss ([\d.]+), with LDReg ([\d.]+)", run(str(tmp_path / "without.py")))
    assert plain == same


def test_lightning(run: Run) -> None:
    pytest.importorskip("pytorch_lightning")
    found = table(run("with_lightning.py"))
    assert {name for name in found if name.startswith("ldreg/")} == {
        f"ldreg/{stage}/{name}" for stage in ("train", "val") for name in MEASURES
    }
    assert 2 < found["ldreg/val/lid"] < 9
    assert 3 < found["ldreg/val/effective_rank"] < 12


def test_onnx(run: Run, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    folder, _ = make_run(EncoderConfig(), size=8)
    monkeypatch.chdir(tmp_path)
    assert "representations (5, 128), the same as PyTorch's up to " in run("with_onnx.py", str(folder))


def test_scikit_learn(run: Run) -> None:
    found = table(run("with_sklearn.py"))
    assert len(found) == 14
    assert found["2 principal components"] == pytest.approx(2, abs=0.1)
    assert found["  digit 1"] < found["all pixels"] < found["  digit 8"]


def test_tensorboard(run: Run, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = [float(value) for value in re.findall(r"LID ([\d.]+)", run("with_tensorboard.py", str(tmp_path)))]
    assert values[0] > values[1] > values[2]
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [round(event.value, 2) for event in found.Scalars("ldreg/lid")] == values
    assert len(list(tmp_path.rglob("metadata.tsv"))) == 3


def test_timm(run: Run, make_run: MakeRun) -> None:
    folder, _ = make_run(EncoderConfig("resnet18", stem="cifar"), size=32)
    assert run("with_timm.py", str(folder)) == "resnet18: images (3, 32, 32), representations (1, 512)\n"


def test_torchmetrics(run: Run) -> None:
    pytest.importorskip("torchmetrics")
    found = table(run("with_torchmetrics.py"))
    assert 5 < found["LocalIntrinsicDimension"] < 8
    assert 10 < found["EffectiveRank"] < 16


def test_transformers(run: Run) -> None:
    pytest.importorskip("transformers")
    lines = re.findall(r"^(step \d+): .*LID ([\d.]+)", run("with_transformers.py"), re.M)
    assert [step for step, _ in lines] == ["step 4", "step 8"]
    assert 8 < float(lines[0][1]) < 18


@pytest.mark.slow
@pytest.mark.skipif(find_spec("stable_pretraining") is None, reason="needs stable-pretraining")
def test_stable_pretraining(tmp_path: Path) -> None:
    """In a process of its own, because it sets up logging and signals as it likes."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "with_stable_pretraining.py")],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = {name: value for name, value in table(done.stdout).items() if name.startswith("ldreg/")}
    assert found.keys() == {f"ldreg/{stage}/{name}" for stage in ("train", "val") for name in MEASURES}
    for stage in ("train", "val"):
        assert 3 < found[f"ldreg/{stage}/lid"] < 10
        assert 5 < found[f"ldreg/{stage}/effective_rank"] < 20
    assert "ldreg/val/lid" in done.stderr + done.stdout.partition("\nldreg/")[0]  # in its own table of metrics
