"""The monitor of anyone's LightningModule, in tiny runs of whichever Lightning packages are installed."""

import importlib.util
import logging
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.conftest import MEASURES
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ldreg import LDReg
from ldreg.evaluate.measure import measure
from ldreg.integrations.lightning import DimensionMonitor

PACKAGES = [name for name in ("pytorch_lightning", "lightning") if importlib.util.find_spec(name)]

# Lightning on short epochs and loaders in the process itself, and torch on Lightning's use of its trees.
pytestmark = [
    pytest.mark.skipif(not PACKAGES, reason="needs pytorch-lightning or lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`"),
]


@pytest.fixture(scope="module", params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    name = request.param
    return importlib.import_module("lightning.pytorch" if name == "lightning" else name)


def rows() -> Tensor:
    return torch.randn(160, 6, generator=torch.Generator().manual_seed(0))


def unchanged(x: Tensor, step: int) -> Tensor:
    return x


def make_module(pl: Any, spoil: Callable[[Tensor, int], Tensor] = unchanged) -> Any:
    class Anyones(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
            self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(8, 2))
            self.seen: list[Tensor] = []
            self.spoiled = nn.Identity()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            found = self.spoiled(spoil(self.backbone(batch[0]), self.global_step))
            self.seen.append(found.detach().clone())
            self.spoiled(torch.zeros_like(found))  # a second view, which is not measured
            loss: Tensor = self.head(self.backbone(batch[0])).square().mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def validation_step(self, batch: list[Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
            self.head(self.spoiled(self.backbone(batch[0])))  # whose first layer writes over what it is given

    return Anyones()


def fit(pl: Any, module: Any, monitor: Any, *, validated: Tensor | None = None, **options: Any) -> Any:
    settings: dict[str, Any] = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    callbacks = settings.pop("callbacks", [monitor] if monitor else [])
    ckpt = settings.pop("ckpt_path", None)
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False, **settings
    )
    torch.manual_seed(2)
    val = None if validated is None else DataLoader(TensorDataset(validated), batch_size=25)
    trainer.fit(module, DataLoader(TensorDataset(rows()), batch_size=16), val, ckpt_path=ckpt)
    return trainer


def make_logger(pl: Any, folder: Path) -> Any:
    """A logger of this package that keeps values by step in `received`."""

    class Memory(pl.loggers.CSVLogger):  # type: ignore[misc]
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            self.received.setdefault(step or 0, {}).update(metrics)

    logger = Memory(str(folder))
    logger.received = {}
    return logger


def test_a_named_submodule_is_measured_when_due(pl: Any, tmp_path: Path) -> None:
    module, memory = make_module(pl), make_logger(pl, tmp_path)
    monitor = DimensionMonitor("spoiled", k=5, every_steps=3)
    fit(pl, module, monitor, logger=memory, log_every_n_steps=1000)
    due = [1, 4, 7, 10, 13, 16, 19]
    assert sorted(step for step, values in memory.received.items() if "ldreg/train/lid" in values) == due
    for step in due:
        for name, value in measure(module.seen[step - 1], k=5).items():
            assert memory.received[step][f"ldreg/train/{name}"] == pytest.approx(value)
    assert not module.spoiled._forward_hooks


def test_the_strength_of_an_ldreg_is_logged(pl: Any) -> None:
    module, monitor = make_module(pl), DimensionMonitor("spoiled", k=5, every_steps=3)
    module.regularizer = LDReg(k=5, share=0.2)

    def training_step(batch: list[Tensor], batch_idx: int) -> Tensor:
        z, penalty = module.regularizer.fork(module.spoiled(module.backbone(batch[0])))
        loss: Tensor = module.head(z).square().mean() + penalty
        return loss

    module.training_step = training_step
    fit(pl, module, monitor)
    assert monitor.latest["ldreg/train/pull"] == pytest.approx(0.2, rel=1e-4)
    assert monitor.latest["ldreg/train/effective_beta"] == pytest.approx(
        module.regularizer.effective_beta.item(), rel=0.5
    )
    assert "ldreg/val/pull" not in monitor.latest


def test_validation_is_measured_as_a_whole(pl: Any, tmp_path: Path) -> None:
    module, memory, held = make_module(pl), make_logger(pl, tmp_path), 3 + 2 * rows()[:110]
    monitor = DimensionMonitor("backbone", k=5, every_steps=0)
    trainer = fit(pl, module, monitor, logger=memory, validated=held)
    module.eval()
    with torch.no_grad():
        expected = measure(module.backbone(held), k=5)
    assert monitor.latest == {f"ldreg/val/{name}": pytest.approx(value) for name, value in expected.items()}
    for name, value in expected.items():
        assert trainer.callback_metrics[f"ldreg/val/{name}"].item() == pytest.approx(value, rel=1e-5)
        assert memory.received[19][f"ldreg/val/{name}"] == pytest.approx(value, rel=1e-5)
    assert [step for step, values in memory.received.items() if "ldreg/val/lid" in values] == [9, 19]
    assert not any("ldreg/train/lid" in values for values in memory.received.values())


def test_of_a_large_set_some_rows_of_every_batch_are_measured(pl: Any) -> None:
    # Batches of 25 in the order of their first column, which alone spans the set: its first rows would not.
    held = torch.linspace(0, 100, 200).unsqueeze(1) * torch.eye(1, 6) + 0.01 * rows()[0]
    seen: list[Tensor] = []

    def found(module: Any, batch: list[Tensor]) -> Tensor:
        seen.append(batch[0])
        return batch[0]

    monitor = DimensionMonitor(found, k=5, every_steps=0, points=40)
    fit(pl, make_module(pl), monitor, validated=held, max_epochs=1, num_sanity_val_steps=0)
    kept = held.reshape(8, 25, 6)[:, [0, 5, 10, 15, 20]].flatten(0, 1)
    assert monitor.latest["ldreg/val/lid"] == pytest.approx(measure(kept, k=5)["lid"])
    assert len(seen) == 8


def test_validation_alone_is_measured(pl: Any) -> None:
    module, monitor = make_module(pl), DimensionMonitor("backbone", k=5)
    trainer = pl.Trainer(accelerator="cpu", callbacks=[monitor], logger=False, enable_progress_bar=False)
    [found] = trainer.validate(module, DataLoader(TensorDataset(rows()), batch_size=16), verbose=False)
    assert found.keys() == monitor.latest.keys() == {f"ldreg/val/{name}" for name in MEASURES}
    assert not module.backbone._forward_hooks


@pytest.mark.parametrize("source", ["backbone", lambda module, batch: module.backbone(batch[0])])
def test_a_watched_run_is_bitwise_the_unwatched_one(pl: Any, source: Any) -> None:
    plain, watched = make_module(pl), make_module(pl)
    fit(pl, plain, None, validated=rows())
    monitor = DimensionMonitor(source, k=5, every_steps=1)
    fit(pl, watched, monitor, validated=rows())
    assert len(monitor.latest) == 2 * len(MEASURES)
    theirs = watched.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in plain.state_dict().items())


def test_a_function_is_called_in_eval_mode_and_only_when_due(pl: Any) -> None:
    seen: list[tuple[bool, bool]] = []

    def found(module: Any, batch: list[Tensor]) -> Tensor:
        seen.append((module.training, torch.is_grad_enabled()))
        return batch[0].reshape(-1, 6, 1, 1)

    monitor = DimensionMonitor(found, k=5, every_steps=2)
    fit(pl, make_module(pl), monitor, max_epochs=1, accumulate_grad_batches=2)
    assert seen == [(False, False)] * 3  # at the steps 1, 3 and 5, of five that take two batches each
    assert monitor.latest["ldreg/train/lid"] == pytest.approx(measure(rows()[144:160], k=5)["lid"])


def flattened(x: Tensor, step: int) -> Tensor:
    return x if step < 11 else x * torch.tensor([1.0] + 7 * [1e-3])


@pytest.mark.parametrize("stop", [False, True])
def test_a_collapse_is_said_and_ends_training_where_wanted(
    pl: Any, caplog: pytest.LogCaptureFixture, stop: bool
) -> None:
    monitor = DimensionMonitor("spoiled", k=5, every_steps=1, stop_on_alarm=stop)
    with caplog.at_level(logging.WARNING, "ldreg"):
        trainer = fit(pl, make_module(pl, flattened), monitor)
    assert trainer.global_step == (12 if stop else 20)
    where = "effective rank (ldreg/train/effective_rank) is degenerate: 1 "
    assert monitor.alarms[0].startswith(f"collapse at epoch 1.20, step 12: {where}")
    assert monitor.alarms[0] in caplog.messages


def test_divergence_is_an_alarm_and_no_error(pl: Any) -> None:
    monitor = DimensionMonitor("spoiled", k=5, every_steps=1)
    fit(pl, make_module(pl, lambda x, step: x * math.nan), monitor, max_epochs=1)
    assert math.isnan(monitor.latest["ldreg/train/lid"])
    assert "is degenerate: nan" in monitor.alarms[0]


def test_too_few_rows_are_said_once(pl: Any, caplog: pytest.LogCaptureFixture) -> None:
    monitor = DimensionMonitor("backbone", k=16, every_steps=1)
    with caplog.at_level(logging.WARNING, "ldreg"):
        fit(pl, make_module(pl), monitor, validated=rows()[:10])
    assert monitor.latest == {}
    assert [record.message for record in caplog.records if record.name == "ldreg"] == [
        "ldreg/train: expected more than k (16) rows to measure, got 16",
        "ldreg/val: expected more than k (16) rows to measure, got 10",
    ]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("encoder", "expected the name of a submodule, as backbone, head, spoiled, got 'encoder'"),
        ("head.2.absent", "expected the name of a submodule"),
        (lambda module, batch: batch[0].reshape(16, 3, 2), r"expected a tensor \(N, D\), got shape \(16, 3, 2\); a"),
        (lambda module, batch: batch, "expected a tensor .*, got list"),
        (nn.Linear(2, 2), "expected the name of a submodule, .* function of module and batch, got the module Linear"),
    ],
)
def test_what_gives_no_representations_is_named(pl: Any, source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^representations: {message}"):
        fit(pl, make_module(pl), DimensionMonitor(source, k=5))


def test_a_submodule_that_is_not_called_is_named_before_training(pl: Any) -> None:
    module = make_module(pl)
    module.unused = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"^representations: expected validation_step to call 'unused', but"):
        fit(pl, module, DimensionMonitor("unused", k=5), validated=rows())
    assert module.seen == []
    assert not module.unused._forward_hooks
    module.train()  # which was interrupted in validation
    with pytest.raises(ValueError, match="expected training_step to call 'unused'"):
        fit(pl, module, DimensionMonitor("unused", k=5, validation=False), validated=rows())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1}, "k: expected at least 2, got 1"),
        ({"every_steps": -1}, "every_steps: expected at least 0, got -1"),
        ({"k": 5.0}, "k: expected an integer, got 5.0"),
        ({"k": 5, "points": 50.5}, "points: expected an integer, got 50.5"),
        ({"name": ""}, "name: expected a word for the names of what is logged, or None, got ''"),
        ({"k": 9, "points": 9}, "points: expected more than k (9), got 9"),
        ({"alarm": 1.0}, "alarm: expected 0 (off) or a share under 1, got 1.0"),
        ({"alarm": 0, "stop_on_alarm": True}, "stop_on_alarm: expected an alarm above 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        DimensionMonitor("backbone", **options)
    assert str(caught.value).startswith(message)


def test_a_resumed_run_goes_on_with_alarm_and_steps(pl: Any, tmp_path: Path) -> None:
    first = DimensionMonitor("spoiled", k=5, every_steps=4)
    trainer = fit(pl, make_module(pl), first, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second, memory = DimensionMonitor("spoiled", k=5, every_steps=4), make_logger(pl, tmp_path)
    module = make_module(pl, lambda x, step: 1e-3 * x if step < 10 else x * 0)
    fit(pl, module, second, ckpt_path=tmp_path / "last.ckpt", logger=memory)
    assert sorted(step for step, values in memory.received.items() if "ldreg/train/lid" in values) == [13, 17]
    assert second._alarm.state_dict()["checks"]["ldreg/train/lid"] == 5


def test_several_monitors_log_and_resume_under_their_names(
    pl: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def monitors() -> list[Any]:
        return [
            DimensionMonitor("backbone", k=5, every_steps=4),
            DimensionMonitor("spoiled", k=5, every_steps=4, name="second"),
            DimensionMonitor("head", k=16, every_steps=4, name="third"),
        ]

    first, memory = monitors(), make_logger(pl, tmp_path)
    with caplog.at_level(logging.WARNING, "ldreg"):
        trainer = fit(pl, make_module(pl), None, callbacks=first, max_epochs=1, logger=memory)
    assert "ldreg/third/train: expected more than k (16) rows to measure, got 16" in caplog.messages
    assert first[0].latest.keys() == {f"ldreg/train/{name}" for name in MEASURES}
    assert first[1].latest.keys() == {f"ldreg/second/train/{name}" for name in MEASURES}
    assert memory.received[9] == first[0].latest | first[1].latest
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second = monitors()
    fit(pl, make_module(pl), None, callbacks=second, max_epochs=2, ckpt_path=tmp_path / "last.ckpt")
    assert [list(each._alarm.state_dict()["checks"].values()) for each in second] == [[5] * 5, [5] * 5, []]
    assert {each.state_key for each in second} == {
        "DimensionMonitor",
        "DimensionMonitor[second]",
        "DimensionMonitor[third]",
    }


def test_a_pickled_monitor_is_one_again(pl: Any) -> None:
    monitor = DimensionMonitor("backbone", k=7)
    monitor.latest["ldreg/val/lid"] = 3.0
    copy = pickle.loads(pickle.dumps(monitor))
    assert isinstance(copy, DimensionMonitor)
    assert isinstance(copy, pl.Callback)
    assert (copy.k, copy.latest, copy.state_key) == (7, {"ldreg/val/lid": 3.0}, "DimensionMonitor")


ALONE = """
import sys
from ldreg.integrations.lightning import DimensionMonitor  # before Lightning, as sorted imports have it
assert not {"lightning", "pytorch_lightning"} & set(sys.modules)
import MINE as pl
monitor = DimensionMonitor("backbone")
assert isinstance(monitor, pl.Callback)
pl.Trainer(accelerator="cpu", callbacks=monitor, logger=False, enable_checkpointing=False, enable_progress_bar=False)
assert "OTHER" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.parametrize("mine", PACKAGES)
def test_the_package_that_is_not_used_is_not_imported(mine: str) -> None:
    other = ({"pytorch_lightning", "lightning"} - {mine}).pop()
    script = ALONE.replace("MINE", "lightning.pytorch" if mine == "lightning" else mine).replace("OTHER", other)
    subprocess.run([sys.executable, "-c", script], check=True)


SHARED = """
import sys
from pathlib import Path
import torch
import MINE as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ldreg.integrations.lightning import DimensionMonitor
from ldreg.evaluate.measure import measure

x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))

class Anyones(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.backbone = nn.Linear(6, 8)
        self.seen = []
    def training_step(self, batch, batch_idx):
        found = self.backbone(batch[0])
        self.seen.append(found.detach())
        # After the 6th step the second process diverges and the first does not; validation finds it.
        scale = 1.0 if self.global_step < 5 or self.global_rank == 0 else float("nan")
        self.backbone.bias.data.mul_(scale)
        return found.square().mean()
    def validation_step(self, batch, batch_idx):
        self.backbone(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

class Kept(pl.Callback):
    def __init__(self):
        self.values, self.sets = [], []
    def on_train_batch_end(self, trainer, module, *rest):
        rows = [torch.empty(8, 8) for _ in range(2)]
        torch.distributed.all_gather(rows, module.seen[-1])
        self.values.append((measure(torch.cat(rows), k=10), dict(monitor.latest)))
    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking and len(self.sets) == 0:
            self.sets.append((measure(module.backbone(x).detach(), k=10), dict(monitor.latest)))

monitor, kept = DimensionMonitor("backbone", k=10, every_steps=1, stop_on_alarm=True), Kept()
trainer = pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, callbacks=[monitor, kept], logger=False,
    val_check_interval=3, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
data = DataLoader(TensorDataset(x), batch_size=8)
trainer.fit(Anyones(), data, data)
for stage, found in (("train", kept.values), ("val", kept.sets)):
    assert found
    for expected, logged in found:  # 16 rows of two processes are more than k, 8 of one are not
        for name, value in expected.items():
            assert abs(logged[f"ldreg/{stage}/{name}"] - value) <= 1e-4 * abs(value), (stage, name, value, logged)
assert trainer.global_step == 6, trainer.global_step
assert len(monitor.alarms) == 1, monitor.alarms
(Path(sys.argv[1]) / f"rank{trainer.global_rank}").write_text("as expected")
"""


@pytest.mark.slow
def test_two_processes_log_what_one_would_and_stop_together(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SHARED.replace("MINE", "lightning.pytorch" if "lightning" in PACKAGES else PACKAGES[0]))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["as expected"] * 2
