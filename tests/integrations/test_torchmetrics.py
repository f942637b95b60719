"""The metrics, over batches, precisions and processes, against scikit-learn's neighbors and a float64 SVD."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torchmetrics import Metric, MetricCollection

import ldreg
from ldreg.integrations.torchmetrics import EffectiveRank, LocalIntrinsicDimension

K = 8


def batches(count: int = 4, size: int = 40, dim: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -1, dim)
    return [torch.randn(size, dim, generator=generator) * scales + 3 for _ in range(count)]


def expected_lid(x: Tensor) -> float:
    """The geometric mean of the method of moments in float64, from scikit-learn's neighbors."""
    distances, _ = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(x.double().numpy()).kneighbors()
    mean = distances.mean(1)
    return float(numpy.exp(numpy.log(mean / (distances[:, -1] - mean)).mean()))


def expected_rank(x: Tensor) -> float:
    """exp of the entropy of the covariance spectrum, from a float64 SVD."""
    x = x.double()
    squared = torch.linalg.svdvals(x - x.mean(0)).square()
    return float(torch.special.entr(squared / squared.sum()).sum().exp())


CASES: dict[str, tuple[Callable[..., Metric], Callable[[Tensor], float]]] = {
    "lid": (lambda **kwargs: LocalIntrinsicDimension(k=K, **kwargs), expected_lid),
    "rank": (EffectiveRank, expected_rank),
}
each_metric = pytest.mark.parametrize(("make", "reference"), list(CASES.values()), ids=list(CASES))
Make = Callable[..., Metric]
Reference = Callable[[Tensor], float]


def fed(metric: Metric, given: Sequence[Tensor] | None = None) -> Metric:
    """The metric after an update with each batch."""
    for batch in batches() if given is None else given:
        metric.update(batch)
    return metric


@each_metric
@pytest.mark.parametrize("dist_sync_on_step", [False, True])
def test_batches_and_the_whole_are_those_of_the_reference(
    make: Make, reference: Reference, dist_sync_on_step: bool
) -> None:
    metric = make(dist_sync_on_step=dist_sync_on_step)
    updated = metric.clone()
    assert updated is not metric
    assert type(updated) is type(metric)
    metric = pickle.loads(pickle.dumps(metric))
    for batch in batches():
        assert metric(batch).item() == pytest.approx(reference(batch), rel=1e-5)
        updated.update(batch)
    whole = torch.cat(batches())
    assert metric.state_dict() == {}
    assert hash(metric) != hash(updated)
    assert metric.compute().item() == updated.compute().item() == pytest.approx(reference(whole), rel=1e-5)
    assert metric.compute().shape == ()
    assert metric.update_count == 4


@each_metric
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
def test_any_precision_is_taken(make: Make, reference: Reference, dtype: torch.dtype) -> None:
    scale = 1 if dtype.is_floating_point else 1000
    given = [(batch * scale).to(dtype) for batch in batches()]
    metric = fed(make(), given)
    if dtype.is_floating_point:
        assert {kept.dtype for kept in metric.metric_state["representations"]} == {dtype}
    found = metric.compute()
    assert found.dtype == (torch.float64 if dtype in (torch.float64, torch.int32) else torch.float32)
    tolerance = 1e-12 if found.dtype == torch.float64 else 1e-5
    assert found.item() == pytest.approx(reference(torch.cat(given)), rel=tolerance)


@each_metric
def test_reset_forgets_and_later_batches_count(make: Make, reference: Reference) -> None:
    first, second, *_ = batches()
    metric = make()
    metric.update(first)
    alone = metric.compute()
    assert metric.compute() is alone  # cached
    metric.update(second)
    assert metric.compute().item() == pytest.approx(reference(torch.cat((first, second))), rel=1e-5)
    metric.reset()
    assert metric.metric_state == {"representations": []}
    metric.update(second)
    assert metric.compute().item() == pytest.approx(reference(second), rel=1e-5)


@each_metric
def test_what_was_given_may_be_written_over(make: Make, reference: Reference) -> None:
    metric, buffer = make(), torch.empty(40, 6)
    for batch in batches():
        metric.update(buffer.copy_(batch))
    assert metric.compute().item() == pytest.approx(reference(torch.cat(batches())), rel=1e-5)


@pytest.mark.gpu
@each_metric
def test_it_measures_on_a_gpu(make: Make, reference: Reference) -> None:
    metric = fed(make().to("cuda"), [batch.cuda() for batch in batches()])
    found = metric.compute()
    assert found.device.type == "cuda"
    assert found.item() == pytest.approx(reference(torch.cat(batches())), rel=1e-5)
    assert metric.to("cpu").metric_state["representations"][0].device.type == "cpu"


def collection() -> MetricCollection:
    return MetricCollection({name: make() for name, (make, _) in CASES.items()})


def test_a_collection_holds_representations_once() -> None:
    metrics = collection()
    for batch in batches():
        metrics.update(batch)
    assert metrics.compute_groups == {0: ["lid", "rank"]}
    whole, found = torch.cat(batches()), metrics.compute()
    for name, (_, reference) in CASES.items():
        assert found[name].item() == pytest.approx(reference(whole), rel=1e-5)
    lid, rank = metrics.values(copy_state=False)
    assert lid.representations is rank.representations


@pytest.mark.parametrize(
    ("estimator", "convention"), [("mom", "pseudocode"), ("mle", "paper"), ("mle", "pseudocode"), ("tle", "paper")]
)
def test_options_are_those_of_lid(estimator: Any, convention: Any) -> None:
    metric = fed(LocalIntrinsicDimension(k=12, estimator=estimator, convention=convention))
    values = ldreg.lid(torch.cat(batches()), k=12, estimator=estimator, convention=convention)
    assert metric.compute().item() == pytest.approx(values.double().log().mean().exp().item(), rel=1e-6)


def test_degenerate_points_are_left_out_and_counted() -> None:
    line = [[0.0], [0.0], [0.0], [10.0], [11.0], [13.0], [16.0], [101.0], [102.0], [103.0]]
    x = torch.tensor(line)
    metric = fed(LocalIntrinsicDimension(k=2, counts=True), x.split(1))
    found, report = metric.compute(), ldreg.inspect(x, k=2)
    # Of two neighbors: 0 has zeros alone, 102 has two at 1; 10, 11, 13, 16, 101 and 103 are regular.
    values = torch.tensor([4 / 2, 3 / 1, 5 / 1, 8 / 2, 3 / 1, 3 / 1], dtype=torch.float64)
    assert found["lid"].item() == pytest.approx(values.log().mean().exp().item(), rel=1e-6)
    assert (found["zero"].item(), found["infinite"].item()) == (3, 1) == (report.zero, report.infinite)
    plain = LocalIntrinsicDimension(k=2)
    assert plain(x).item() == found["lid"].item() == pytest.approx(report.mean.value)
    assert LocalIntrinsicDimension(k=2)(torch.eye(5)).isnan()
    assert MetricCollection([metric.clone()]).compute().keys() == {"lid", "zero", "infinite"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1}, "^k: expected at least 2"),
        ({"k": 64.0}, "^k: expected an integer, got 64.0"),
        ({"estimator": "danco"}, "^estimator: expected one of mom, mle, tle, got 'danco'"),
        ({"convention": "mine"}, "^convention: expected one of"),
        ({"estimator": "tle", "convention": "pseudocode"}, "^convention: expected 'paper'"),
        ({"points": 3}, "Unexpected keyword arguments: `points`"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalIntrinsicDimension(**options)


@each_metric
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_cannot_be_measured_is_named(make: Make, reference: Reference, bad: float) -> None:
    metric, batch = make(), batches()[0].clone()
    batch[[2, 7], 1] = bad
    metric.update(batch)
    with pytest.raises(ValueError, match=r"^representations: .*NaN or inf in 2 of 40 rows"):
        metric.compute()
    with (
        pytest.warns(UserWarning, match="was called before the ``update``"),
        pytest.raises(ValueError, match=r"^representations: expected an update before compute"),
    ):
        make().compute()


@each_metric
@pytest.mark.parametrize("options", [{}, {"dist_sync_on_step": True}, {"compute_on_cpu": True}])
@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 6), torch.full((40, 6), torch.nan), torch.zeros(40, 7), torch.zeros(6), torch.zeros(0, 6)]
)
def test_a_batch_that_cannot_be_measured_leaves_what_was_collected(
    make: Make, reference: Reference, options: dict[str, Any], wrong: Tensor
) -> None:
    metric = make(**options)
    for batch in batches()[:2]:
        metric(batch)
    with pytest.raises(ValueError, match=r"^(k|representations): expected"):
        metric(wrong)
    assert metric.update_count == 2
    assert metric.compute().item() == pytest.approx(reference(torch.cat(batches()[:2])), rel=1e-5)
    assert metric(batches()[2]).item() == pytest.approx(reference(batches()[2]), rel=1e-5)
    metric.update(batches()[3])
    assert metric.compute().item() == pytest.approx(reference(torch.cat(batches())), rel=1e-5)
    assert not metric.compute().requires_grad


SHARED = """
import sys
import torch
import torch.distributed as dist
from ldreg.integrations.torchmetrics import EffectiveRank, LocalIntrinsicDimension

rank, store, saved = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for parts, *expected in torch.load(saved, weights_only=True):
    for make, value in zip((lambda **more: LocalIntrinsicDimension(k=8, **more), EffectiveRank), expected):
        metric, each_step = make(), make(dist_sync_on_step=True)
        for batch in parts[rank]:
            metric(batch)
            if len(parts[0]) == len(parts[1]):
                found = each_step(batch)  # of both processes
        assert abs(metric.compute().item() / value - 1) < 1e-5, (rank, parts, metric.compute(), value)
        assert len(metric.representations) == len(parts[rank])  # what a process has stays its own
        assert len(parts[rank]) != 1 or len(parts[1 - rank]) != 1 or found == metric.compute()
wide, broken = LocalIntrinsicDimension(k=8), EffectiveRank()
wide.update(torch.randn(20, 3 + rank))
broken.update(torch.full((20, 3), torch.nan if rank else 1.0))
for metric in (wide, broken, EffectiveRank()):
    try:
        metric.compute()
    except ValueError as error:
        assert str(error).startswith("representations: expected")
    else:
        raise AssertionError("nothing was raised")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    a, b, c, d = batches()
    layouts = [
        [[a, c], [b, d]], [[a, c, b], [d[:13]]], [[a, b], []], [[], [a.half(), b.half()]], [[a.half()], [b]],
        [[a, c], [b.double()]],
    ]  # fmt: skip
    wholes = [torch.cat([batch.double() for part in parts for batch in part]) for parts in layouts]
    torch.save(
        [(parts, expected_lid(x), expected_rank(x)) for parts, x in zip(layouts, wholes, strict=True)],
        tmp_path / "cases.pt",
    )
    words = [str(tmp_path / "store"), str(tmp_path / "cases.pt")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", SHARED, str(rank), *words], env=environment, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors
    finally:
        for process in processes:
            process.kill()
