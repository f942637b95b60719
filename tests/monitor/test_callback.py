"""The callback in real, tiny runs of Lightning's Trainer."""

import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ldreg.dimension.quality import view_share
from ldreg.evaluate.measure import Extracted, evenly_spaced, measure, measure_set
from ldreg.monitor.callback import Monitor, Throughput, batch_size
from ldreg.monitor.log import read_metrics
from ldreg.monitor.watch import MonitorConfig, callback_bases

# Lightning on loaders in the process itself and on short epochs, and torch on Lightning's use of its trees: of no
# concern to what is tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

CONFIG = MonitorConfig(k=5, every_steps=3, points=50, knn_k=10)

# All that the monitor reads of a trainer and a module, as objects of no Lightning class.
MODULE = SimpleNamespace(device=torch.device("cpu"))
TRAINER: dict[str, Any] = {
    "global_step": 0,
    "is_global_zero": True,
    "world_size": 1,
    "current_epoch": 0,
    "num_training_batches": 10,
    "max_epochs": None,
    "max_steps": -1,
    "is_last_batch": False,
    "should_stop": False,
    "loggers": [],
}


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows (160, 6) whose class is the sign of the first column: ten batches of 16."""

    def __init__(self) -> None:
        self.x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0))
        self.y = (self.x[:, 0] > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class Foreign(pl.LightningModule):
    """Anyone's module: training_step returns a loss and no more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.projection = nn.Linear(6, 8)
        self.encoder = nn.Sequential(self.projection, nn.BatchNorm1d(8), nn.Dropout(0.1))
        self.head = nn.Linear(8, 2)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return nn.functional.cross_entropy(self.head(self.encoder(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        # The step n, counted from 1, has a learning rate of 1 / n.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def unchanged(x: Tensor, step: int) -> Tensor:
    return x


class Ours(Foreign):
    """The contract of our own training: loss, terms and representations, which `spoil` may make collapse.

    `outputs` replace or add outputs of a step; a function makes them from the step's outputs and number.
    """

    def __init__(self, spoil: Callable[[Tensor, int], Tensor] = unchanged, **outputs: Any) -> None:
        super().__init__()
        self.spoil, self.outputs = spoil, outputs
        self.seen: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        torch.manual_seed(self.global_step)  # as our training does: a step's randomness depends on the step alone
        representations = self.encoder(batch[0])
        loss = nn.functional.cross_entropy(self.head(representations), batch[1])
        self.seen.append(self.spoil(representations.detach(), self.global_step))
        terms = {"alignment": 2 * loss.detach(), "lid": torch.tensor(0.5)}
        found = {"loss": loss, "terms": terms, "representations": self.seen[-1]}
        return found | {n: v(found, self.global_step) if callable(v) else v for n, v in self.outputs.items()}


class Extractor:
    """What `extract` is given as: the current representations of 120 training and 40 test rows."""

    def __init__(self, module: Foreign) -> None:
        self.module, self.rows = module, Rows()

    @torch.no_grad()
    def __call__(self) -> Extracted:
        x = self.rows.x @ self.module.projection.weight.T
        return x[:120], self.rows.y[:120], x[120:], self.rows.y[120:]


def fit(module: pl.LightningModule, monitor: Monitor | None, *, ckpt: Path | None = None, **options: Any) -> pl.Trainer:
    settings: dict[str, Any] = {"max_epochs": 2, "enable_checkpointing": False} | options
    callbacks = [callback for callback in (monitor, *settings.pop("callbacks", ())) if callback]
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=settings.pop("logger", False),
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    torch.manual_seed(2)
    trainer.fit(module, DataLoader(Rows(), batch_size=16), ckpt_path=ckpt, weights_only=None if ckpt is None else True)
    return trainer


def test_batch_and_set_measures_are_logged_when_due(tmp_path: Path) -> None:
    module, path = Ours(), tmp_path / "metrics.csv"
    monitor = Monitor(CONFIG, path=path, extract=Extractor(module))
    fit(module, monitor)
    found = read_metrics(path)
    due = [1, 3, 6, 9, 10, 12, 15, 18, 20]  # every third, the first, the last, and where the set is measured
    for name in ("batch/loss", "terms/alignment", "terms/lid", "batch/lid", "batch/effective_rank", "lr"):
        assert [step for step, _, _ in found[name]] == due, name
    assert [epoch for _, epoch, _ in found["lr"]] == [step / 10 for step in due]
    assert [value for _, _, value in found["lr"]] == [1 / step for step in due]
    for name in ("lid", "lid_low", "frechet_variance", "effective_rank", "spread", "degenerate", "knn", "linear"):
        assert [row[:2] for row in found[f"set/{name}"]] == [(0, 0.0), (10, 1.0), (20, 2.0)], name
    assert [row[0] for row in found["images_per_second"]] == due[1:]
    assert all(value > 0 for _, _, value in found["images_per_second"])
    for step, _, value in found["batch/lid"]:
        assert value == pytest.approx(measure(module.seen[step - 1], k=5)["lid"])
    for (_, _, loss), (_, _, term) in zip(found["batch/loss"], found["terms/alignment"], strict=True):
        assert term == pytest.approx(2 * loss)
    assert monitor.latest["set/lid"] == measure_set(Extractor(module)(), k=CONFIG.k, points=CONFIG.points)["lid"]
    assert monitor.latest["batch/loss"] == found["batch/loss"][-1][2]


def test_the_share_of_the_view_is_logged_where_views_are_counted(tmp_path: Path) -> None:
    module, path = Ours(view_count=2), tmp_path / "metrics.csv"
    fit(module, Monitor(CONFIG, path=path))
    for step, _, value in read_metrics(path)["batch/view_share"]:
        assert value == pytest.approx(view_share(module.seen[step - 1].chunk(2)).item())
    alone, taken = Monitor(CONFIG), Monitor(CONFIG, representations=lambda module, batch: module.encoder(batch[0]))
    fit(Ours(), alone)
    fit(Ours(view_count=2), taken)  # of these nobody said how many views they are of
    one_view, one_image = Monitor(CONFIG), Monitor(CONFIG)
    fit(Ours(view_count=1), one_view)
    fit(Ours(view_count=16), one_image)
    for monitor in (alone, taken, one_view, one_image):
        assert "batch/lid" in monitor.latest
        assert "batch/view_share" not in monitor.latest


@pytest.mark.parametrize("count", [None, "2", [2], 2.0, torch.tensor(2), 0, -2, 3, 5, 1000])
def test_a_count_that_is_not_of_the_rows_is_refused_by_name(count: Any) -> None:
    with pytest.raises(ValueError, match=r"^view_count: .* 16 rows"):
        fit(Ours(view_count=count), Monitor(CONFIG))


def test_a_run_monitored_by_a_function_is_bitwise_the_unmonitored_one() -> None:
    plain, watched, seen = Foreign(), Foreign(), []

    def representations(module: Any, batch: Any) -> Tensor:
        seen.append((module.training, torch.is_grad_enabled()))
        found: Tensor = module.encoder(batch[0])
        return found

    fit(plain, None)
    monitor = Monitor(CONFIG, extract=Extractor(watched), representations=representations)
    fit(watched, monitor)
    assert seen == [(False, False)] * 9
    names = {f"batch/{name}" for name in measure(Rows().x)} | {"batch/loss", "lr", "images_per_second"}
    assert {name for name in monitor.latest if not name.startswith("set/")} == names
    theirs = watched.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in plain.state_dict().items())


def test_without_representations_the_loss_alone_is_logged() -> None:
    monitor = Monitor(CONFIG)
    fit(Foreign(), monitor, max_epochs=1)
    assert set(monitor.latest) == {"batch/loss", "lr", "images_per_second"}


def test_terms_may_be_plain_numbers() -> None:
    monitor, numbers = Monitor(CONFIG), {"weight": 0.25, "count": 3, "share": np.float64(0.5)}
    fit(Ours(terms=lambda outputs, step: outputs["terms"] | numbers), monitor, max_epochs=1)
    assert [monitor.latest[f"terms/{name}"] for name in ("weight", "count", "share", "lid")] == [0.25, 3.0, 0.5, 0.5]
    assert monitor.latest["terms/alignment"] == pytest.approx(2 * monitor.latest["batch/loss"])


@pytest.mark.parametrize(
    ("term", "got"),
    [
        (torch.ones(3), r"Tensor of shape \(3,\)"),
        (torch.empty(0), r"Tensor of shape \(0,\)"),
        (np.ones((2, 2)), r"ndarray of shape \(2, 2\)"),
        (None, r"NoneType of shape \(\)"),
        ("high", r"str of shape \(\)"),
    ],
)
def test_a_term_that_is_no_number_is_refused_by_name(term: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^terms/odd: expected a number, got {got}$"):
        fit(Ours(terms={"fine": 1.0, "odd": term}), Monitor(CONFIG))


def test_the_loss_is_the_one_before_accumulated_parts_divide_it() -> None:
    monitor = Monitor(CONFIG)
    fit(Ours(objective=lambda outputs, step: outputs["loss"].detach()), monitor, accumulate_grad_batches=2)
    assert monitor.latest["batch/loss"] == pytest.approx(monitor.latest["terms/alignment"] / 2)


def test_a_term_of_a_measures_name_raises_no_alarm() -> None:
    monitor = Monitor(CONFIG)
    fit(Ours(terms=lambda outputs, step: {"lid": torch.tensor(0.5 ** float(step))}), monitor)
    assert monitor.latest["terms/lid"] < 1e-3
    assert monitor.alarms == []


class Untouchable(dict[str, Any]):
    """What training_step returned, at a step where nobody may look at it: a look could wait for the device."""

    def get(self, *args: Any) -> Any:
        raise AssertionError

    __getitem__ = __iter__ = __contains__ = get


def test_steps_not_logged_touch_nothing_on_the_device() -> None:
    trainer = SimpleNamespace(**TRAINER | {"world_size": 2})
    monitor = Monitor(CONFIG)
    monitor.on_train_start(trainer, None)
    trainer.global_step = 4
    monitor._step = 3
    monitor.on_train_batch_end(trainer, None, Untouchable(loss=1), torch.ones(3), 3)
    assert monitor._speed.images == 6  # of both ranks
    trainer.global_step = 6
    with pytest.raises(AssertionError):
        monitor.on_train_batch_end(trainer, MODULE, Untouchable(loss=1), torch.ones(3), 5)


def test_accumulated_batches_are_counted_as_images_and_not_as_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    fit(Ours(), Monitor(CONFIG, path=path), accumulate_grad_batches=2)
    assert [row[:2] for row in read_metrics(path)["batch/loss"]] == [(1, 0.2), (3, 0.6), (6, 1.2), (9, 1.8), (10, 2.0)]


def test_too_small_a_batch_is_said_once_and_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(MonitorConfig(k=16, every_steps=3, points=50))
    with caplog.at_level(logging.WARNING, "ldreg"):
        fit(Ours(), monitor)
    assert "batch/loss" in monitor.latest
    assert "batch/lid" not in monitor.latest
    assert [record.message for record in caplog.records if record.name == "ldreg"] == [
        "step 1: expected more than k (16) representations in a batch to measure dimensions, got 16"
    ]


def flattened(x: Tensor, step: int) -> Tensor:
    """All but one direction shrinks to nothing from the 12th step on."""
    return x if step < 11 else x * torch.tensor([1.0] + 7 * [1e-3])


def test_a_collapse_is_seen_named_and_placed(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(CONFIG)
    with caplog.at_level(logging.WARNING, "ldreg"):
        fit(Ours(flattened), monitor)
    [alarm] = monitor.alarms
    assert alarm.startswith("collapse at epoch 1.20, step 12: effective rank (batch/effective_rank) is degenerate: 1 ")
    assert alarm in caplog.messages
    assert monitor.stop_reason is None


def test_the_alarm_stops_the_run_by_option(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    config = MonitorConfig(k=5, every_steps=3, points=50, knn_k=10, stop_on_alarm=True)
    module = Ours(flattened)
    monitor = Monitor(config, path=path, extract=Extractor(module))
    trainer = fit(module, monitor, max_epochs=9)
    assert trainer.global_step == 12
    assert monitor.stop_reason == monitor.alarms[0]
    assert read_metrics(path)["set/lid"][-1][:2] == (12, 1.2)


class Saver(pl.Callback):
    """Saves at given steps, at the end of the batch, and breaks the run at another."""

    def __init__(self, path: Path, *, save: int, stop: int) -> None:
        self.path, self.save, self.stop = path, save, stop

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.save:
            trainer.save_checkpoint(self.path)
        if trainer.global_step == self.stop:
            raise InterruptedError


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize(("save", "stop"), [(4, 8), (10, 10), (10, 14), (12, 17)])
def test_the_log_of_a_resumed_run_is_that_of_an_unbroken_one(tmp_path: Path, save: int, stop: int) -> None:
    def watch(name: str) -> tuple[Path, Ours, Monitor]:
        module, path = Ours(), tmp_path / name
        return path, module, Monitor(CONFIG, path=path, extract=Extractor(module))

    unbroken, module, monitor = watch("unbroken.csv")
    fit(module, monitor)
    broken, module, monitor = watch("broken.csv")
    saver = Saver(tmp_path / "last.ckpt", save=save, stop=stop)
    with pytest.raises(InterruptedError):
        fit(module, monitor, callbacks=[saver])
    _, module, monitor = watch("broken.csv")
    fit(module, monitor, ckpt=saver.path)

    def rows(path: Path) -> list[str]:
        return [line for line in path.read_text().splitlines() if "images_per_second" not in line]

    # Lightning's plain loader does not go on mid-epoch where it stopped, so there only what was logged is compared.
    width = None if save == 10 else 3
    assert [line.split(",")[:width] for line in rows(broken)] == [line.split(",")[:width] for line in rows(unbroken)]


def test_loggers_of_the_trainer_are_given_the_same_values(tmp_path: Path) -> None:
    received: dict[int, dict[str, float]] = {}

    class Memory(pl.loggers.CSVLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            received.setdefault(step or 0, {}).update(metrics)

    path = tmp_path / "metrics.csv"
    fit(Ours(), Monitor(CONFIG, path=path), logger=Memory(str(tmp_path)), log_every_n_steps=1000)
    for name, rows in read_metrics(path).items():
        assert rows == [(step, rows[i][1], received[step][name]) for i, (step, _, _) in enumerate(rows)]


def test_other_ranks_measure_and_write_nothing(tmp_path: Path) -> None:
    def refuse() -> Extracted:
        raise AssertionError

    decisions: list[bool] = []

    def decide(own: bool, *, all: bool) -> bool:
        decisions.append(own)
        return not all

    path = tmp_path / "metrics.csv"
    config = MonitorConfig(k=5, every_steps=1, points=50, stop_on_alarm=True)
    monitor = Monitor(config, path=path, extract=refuse)
    strategy = SimpleNamespace(reduce_boolean_decision=decide)
    trainer = SimpleNamespace(**TRAINER | {"is_global_zero": False, "world_size": 2, "strategy": strategy})
    monitor.on_train_start(trainer, None)
    trainer.global_step = 1
    monitor.on_train_batch_end(trainer, None, None, torch.ones(3), 0)
    assert not path.exists()
    assert decisions == [False, False]  # it takes part in deciding, and follows what the first rank found
    assert trainer.should_stop
    assert monitor.stop_reason == "collapse alarm on the first rank"


class TheirCallback:
    """What the package `lightning` has as its Callback."""


def test_the_base_is_the_callback_of_whichever_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)
    assert callback_bases() == (pl.Callback,)
    twin = ModuleType("lightning.pytorch")
    twin.Callback = TheirCallback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", twin)
    assert callback_bases() == (pl.Callback, TheirCallback)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    assert callback_bases() == (TheirCallback,)
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    with pytest.raises(ModuleNotFoundError, match="a monitor needs Lightning: install"):
        callback_bases()


def test_no_hook_relies_on_the_class_of_trainer_or_module(tmp_path: Path) -> None:
    """Hooks called by name, as the twin package's trainer does, on objects of no Lightning class."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    trainer = SimpleNamespace(**TRAINER | {"num_training_batches": math.inf, "max_steps": 1, "optimizers": [optimizer]})
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    monitor = Monitor(CONFIG, path=tmp_path / "metrics.csv", extract=lambda: (x, None, None, None))
    monitor.on_train_start(trainer, MODULE)
    monitor.on_before_optimizer_step(trainer, MODULE, optimizer)
    trainer.global_step = 1
    monitor.on_train_batch_end(trainer, MODULE, {"loss": torch.tensor(2.0), "representations": x}, [x], 0)
    monitor.on_train_epoch_end(trainer, MODULE)
    found = read_metrics(tmp_path / "metrics.csv")
    assert found["lr"] == [(1, 0.0, 0.3)]
    assert [row[0] for row in found["set/lid"]] == [0, 1]
    assert found["batch/lid"][0][2] == found["set/lid"][0][2]


class Final(pl.Callback):
    """Writes down what each rank represented at step 2, and where it ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            torch.save(outputs["representations"], self.folder / f"step2-{trainer.global_rank}.pt")

    def on_train_end(self, trainer: Any, module: Any) -> None:
        (self.folder / f"rank{trainer.global_rank}").write_text(str(trainer.global_step))


def emptied_on_the_first_rank(x: Tensor, step: int) -> Tensor:
    return x if step < 6 or torch.distributed.get_rank() == 1 else 0 * x


@pytest.mark.slow
def test_the_first_ranks_alarm_stops_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    config = MonitorConfig(k=5, every_steps=2, points=50, knn_k=10, stop_on_alarm=True)
    module = Ours(emptied_on_the_first_rank, view_count=2)
    monitor = Monitor(config, path=path, extract=Extractor(module))
    fit(module, monitor, callbacks=[Final(tmp_path)], max_epochs=20, strategy="ddp_spawn", devices=2)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["8", "8"]
    found = read_metrics(path)
    views = [torch.load(tmp_path / f"step2-{rank}.pt").chunk(2) for rank in range(2)]
    batch = torch.cat([view for pair in zip(*views, strict=True) for view in pair])
    assert found["batch/lid"][1][2] == pytest.approx(measure(evenly_spaced(batch, 50), k=5)["lid"], rel=1e-6)
    assert [step for step, _, _ in found["batch/loss"]] == [1, 2, 4, 5, 6, 8]  # every second, and where the set is
    assert [step for step, _, _ in found["set/lid"]] == [0, 5, 8]


def test_images_per_second_leave_out_pauses() -> None:
    now = [0.0]
    speed = Throughput(lambda: now[0])
    with speed.paused():  # no error before the first restart
        speed.images += 1
    assert speed.rate() is None
    speed.restart()
    now[0] = 2.0
    with speed.paused():
        now[0] = 100.0
    speed.images += 600
    now[0] = 101.0
    assert speed.rate() == pytest.approx(600 / 3)
    speed.restart()
    assert speed.rate() is None


class Batch(NamedTuple):
    images: Tensor
    labels: Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (Batch(torch.ones(6, 2), torch.ones(6)), 6),
        ((["a", "b"], {"x": torch.ones(4, 3)}), 4),
        (torch.ones(3), 3),
        (torch.tensor(1.0), 0),
        ("text", 0),
    ],
)
def test_the_first_tensor_says_how_large_a_batch_is(batch: object, size: int) -> None:
    assert batch_size(batch) == size
