"""Weights & Biases without a network: what the monitors give it to log."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.data.pictures import save
from tests.integrations.test_lightning import fit, make_module, rows
from tests.train.options import FOLDER, as_words, changed

pytest.importorskip("wandb")
pl = pytest.importorskip("pytorch_lightning")

from ldreg.cli import main  # noqa: E402
from ldreg.integrations.lightning import DimensionMonitor  # noqa: E402
from ldreg.monitor.log import read_metrics  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


Logged = dict[str, list[tuple[int, float]]]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LDREG_RUN", "")  # so that what a run leaves there is taken back
    monkeypatch.delenv("LDREG_RUN")
    settings = {"MODE": "offline", "SILENT": "true", "CACHE_DIR": "cache", "CONFIG_DIR": "config", "DATA_DIR": "data"}
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value if name in ("MODE", "SILENT") else str(tmp_path / value))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Logged:
    """By name: the steps and values that are logged."""
    found: Logged = defaultdict(list)

    def log(run: Any, data: dict[str, Any], *_: Any, **__: Any) -> None:
        step = data["trainer/global_step"]
        for name in data.keys() - {"trainer/global_step"}:
            found[name].append((step, float(data[name])))

    monkeypatch.setattr("wandb.sdk.wandb_run.Run.log", log)
    return found


def test_the_lightning_callback_writes_to_it(tmp_path: Path, logged: Logged) -> None:
    import wandb

    monitor = DimensionMonitor("backbone", k=5, every_steps=4)
    fit(
        pl, make_module(pl), monitor, validated=rows(), logger=pl.loggers.WandbLogger(save_dir=tmp_path, project="test")
    )
    wandb.finish()
    for name in ("lid", "effective_rank", "frechet_variance", "degenerate"):
        assert [step for step, _ in logged[f"ldreg/train/{name}"]] == [1, 5, 9, 13, 17]
        assert [step for step, _ in logged[f"ldreg/val/{name}"]] == [9, 19]
        for stage in ("train", "val"):
            last = monitor.latest[f"ldreg/{stage}/{name}"]
            assert logged[f"ldreg/{stage}/{name}"][-1][1] == pytest.approx(last, rel=1e-5)


def test_pretrain_writes_what_the_metrics_file_gets(tmp_path: Path, logged: Logged) -> None:
    import wandb

    for number in range(40):
        save(tmp_path / "images" / f"{number:02}.png", number, 9, 9)
    options = changed(FOLDER, data__path="images", trainer__log_to="[wandb]", out="run")  # relative, as users give it
    assert main(["pretrain", *as_words(options)]) == 0
    wandb.finish()
    expected = read_metrics(tmp_path / "run" / "metrics.csv")
    assert expected.keys() >= {"batch/lid", "set/lid", "set/effective_rank", "batch/loss"}
    assert logged.keys() >= expected.keys()
    for name, measured in expected.items():
        assert [step for step, _ in logged[name]] == [step for step, _, _ in measured], name
        values = [value for _, _, value in measured]
        assert [value for _, value in logged[name]] == pytest.approx(values, nan_ok=True), name
