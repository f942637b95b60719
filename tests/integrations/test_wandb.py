"""Weights & Biases without a network: what the monitors write into its file, read back."""

import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LDREG_RUN", "")  # so that what a run leaves there is taken back
    monkeypatch.delenv("LDREG_RUN")
    settings = {"MODE": "offline", "SILENT": "true", "CACHE_DIR": "cache", "CONFIG_DIR": "config", "DATA_DIR": "data"}
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value if name in ("MODE", "SILENT") else str(tmp_path / value))


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: protobuf messages in the log format of LevelDB, after seven bytes of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, block = path.read_bytes(), 7, b"", 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:  # too little of a block for a header is left empty
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + size > len(data):  # still being written
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def whole(path: Path) -> list[Any]:
    """All records, once the last is there: it may come a moment after `wandb.finish`, which does not wait for it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = list(records(path))
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By name: the steps and values that were logged."""
    [path] = folder.rglob("*.wandb")
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for record in whole(path):
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        step = values.pop("trainer/global_step", None)
        for name, value in values.items():
            if not name.startswith("_") and step is not None:
                found[name].append((step, value))
    return found


def test_the_lightning_callback_writes_to_it(tmp_path: Path) -> None:
    import wandb

    monitor = DimensionMonitor("backbone", k=5, every_steps=4)
    fit(
        pl, make_module(pl), monitor, validated=rows(), logger=pl.loggers.WandbLogger(save_dir=tmp_path, project="test")
    )
    wandb.finish()
    found = logged(tmp_path)
    for name in ("lid", "effective_rank", "frechet_variance", "degenerate"):
        assert [step for step, _ in found[f"ldreg/train/{name}"]] == [1, 5, 9, 13, 17]
        assert [step for step, _ in found[f"ldreg/val/{name}"]] == [9, 19]
        for stage in ("train", "val"):
            last = monitor.latest[f"ldreg/{stage}/{name}"]
            assert found[f"ldreg/{stage}/{name}"][-1][1] == pytest.approx(last, rel=1e-5)


def test_pretrain_writes_what_the_metrics_file_gets(tmp_path: Path) -> None:
    import wandb

    for number in range(40):
        save(tmp_path / "images" / f"{number:02}.png", number, 9, 9)
    options = changed(FOLDER, data__path="images", trainer__log_to="[wandb]", out="run")  # relative, as users give it
    assert main(["pretrain", *as_words(options)]) == 0
    wandb.finish()
    found, expected = logged(tmp_path / "run"), read_metrics(tmp_path / "run" / "metrics.csv")
    assert expected.keys() >= {"batch/lid", "set/lid", "set/effective_rank", "batch/loss"}
    assert found.keys() >= expected.keys()
    for name, measured in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _, _ in measured], name
        values = [value for _, _, value in measured]
        assert [value for _, value in found[name]] == pytest.approx(values, nan_ok=True), name
