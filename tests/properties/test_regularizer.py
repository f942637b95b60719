"""LDReg of any batch: value and gradient are those of float64, and finite on every finite batch."""

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interpreter import needs_interpreter, run_interpreted, take_small_blocks
from tests.properties.conftest import (
    HOW_MANY,
    KINDS,
    QUICK,
    WAYS,
    Array,
    Exact,
    Points,
    Way,
    brute_force,
    inverse_lid,
    points,
    tolerance,
)
from torch import Tensor

from ldreg import LDReg
from ldreg.dimension.cuda import step as fused

NORMS: dict[str, dict[str, Any]] = {
    "l1": {},
    "l2": {"norm": "l2"},
    "minimize": {"direction": "minimize"},
    "target": {"target": 3.0},
    "target l2": {"target": 3.0, "norm": "l2"},
    "frechet": {"target": 3.0, "norm": "frechet"},
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# 1/LID under this is decided by the last digits of the distances, and so is whether LID is regular.
SETTLED = {True: 1e-4, False: 1e-9}


class Step(NamedTuple):
    """A batch, k, what LDReg is asked for, and where neighbors are sought (None: in the batch)."""

    batch: Points
    k: int
    way: Way
    norm: str
    reference_grad: bool
    reference: Tensor | None = None
    self_index: Tensor | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"k": self.k, "beta": 0.7, "reference_grad": self.reference_grad} | WAYS[self.way] | NORMS[self.norm]

    @property
    def arguments(self) -> tuple[Tensor, Tensor | None, Tensor | None, dict[str, Any]]:
        return self.batch.x, self.reference, self.self_index, self.options

    @property
    def rows(self) -> Array:
        return self.batch.exact if self.reference is None else self.reference.double().numpy()

    def exact(self, k: int) -> Exact:
        own = None if self.self_index is None else self.self_index.numpy()
        return brute_force(self.batch.exact, k, None if self.reference is None else self.rows, own)


@st.composite
def steps(draw: st.DrawFn, /, *, ways: tuple[Way, ...] = tuple(WAYS), most: int = 30, **options: Any) -> Step:
    given: dict[str, Any] = {"least": 3, "most": most, "dtypes": FLOATS} | options
    batch = draw(points(**given))
    n = len(batch.x)
    k = draw(st.sampled_from((2, n - 1)) | st.integers(2, n - 1))
    way, norm, grad = draw(st.sampled_from(ways)), draw(st.sampled_from(tuple(NORMS))), draw(st.booleans())
    if draw(st.booleans()):
        return Step(batch, k, way, norm, grad)
    # As BYOL has it: the batch itself and as many rows more, of which some are copies.
    more = batch.x.flip(0) * draw(st.sampled_from((1, 0.5, -1)))
    own = torch.where(torch.arange(n) % draw(st.sampled_from((2, 3, 100))) == 1, -1, torch.arange(n))
    return Step(batch, k, way, norm, grad, torch.cat((batch.x, more)), own)


class Outcome(NamedTuple):
    value: Tensor
    gradient: Tensor
    reference_gradient: Tensor | None


def outcome(batch: Tensor, reference: Tensor | None, self_index: Tensor | None, options: dict[str, Any]) -> Outcome:
    x = batch.detach().clone().requires_grad_()
    rows = None if reference is None else reference.clone().requires_grad_()
    assert fused.PATH == "auto" or fused.supports(x, rows, options["k"])
    value = LDReg(**options)(x, rows, self_index=self_index)
    value.backward()
    assert x.grad is not None
    return Outcome(value.detach(), x.grad, None if rows is None else rows.grad)


def main(path: str, cases: str, outcomes: str) -> None:
    """Outcomes of all cases on the path named, in a process in which Triton interprets its kernels."""
    if path == "screened":
        take_small_blocks()
    fused.PATH = path  # type: ignore[assignment]
    torch.save([tuple(outcome(*case)) for case in torch.load(cases)], outcomes)


class Expected(NamedTuple):
    """The value and how far rounding may move it; slopes (N, k) for the distances, and how far those."""

    value: float
    room: float
    slopes: Array
    slope_room: Array


def expected(step: Step, exact: Exact) -> Expected | None:
    """From the formulas in float64; None where rounding decides which points are regular."""
    single = step.batch.single
    inverse = inverse_lid(exact, step.way, step.batch.exact, step.rows)
    if ((inverse < SETTLED[single]) & (inverse > 0)).any() or (
        (inverse == 0).any() and not exactly_tied(exact, inverse)
    ):
        return None
    if (np.isfinite(inverse) & (inverse > 1e30)).any():  # LID that float32 may have as 0
        return None
    regular = np.isfinite(inverse) & (inverse > 0)
    logs = -np.log(inverse[regular])
    if not len(logs):
        return Expected(0.0, 0.0, np.zeros_like(exact.distances), np.zeros_like(exact.distances))
    error = (tolerance(exact, single=single)[regular] * (1 + inverse[regular]) / inverse[regular]).max()
    value, outer = reduced(logs, step.norm)
    slopes = np.zeros_like(exact.distances)
    slopes[regular] = outer[:, None] * log_slopes(exact.distances[regular], step.way)
    # The outer slope moves with ln LID, the inner one as much as LID does.
    room = np.abs(slopes).max(1, keepdims=True) * (20 * error + 1e-5) + kink(logs, error, step.norm)
    return Expected(0.7 * value, 0.7 * error + 1e-7, 0.7 * slopes, 0.7 * room + 0 * slopes)


def exactly_tied(exact: Exact, inverse: Array) -> bool:
    """Whether equal distances are so few digits long that every sum of their squares is exact."""
    ties = exact.distances[inverse == 0]
    return bool((np.square(ties) == np.round(np.square(ties))).all() and (ties < 1000).all())


def reduced(logs: Array, norm: str) -> tuple[float, Array]:
    """The value for ln LID of the regular points, without beta, and its slope for each of them."""
    n, options = len(logs), NORMS[norm]
    moved = logs - math.log(options.get("target", 1.0))
    sign = 1.0 if "target" in options or norm == "minimize" else -1.0
    if options.get("norm") == "l2":
        root = float(np.sqrt(np.square(moved).mean()))
        return sign * root, sign * moved / (n * root) if root > 0 else np.zeros(n)
    if options.get("norm") == "frechet":
        return abs(float(moved.mean())), np.full(n, np.sign(moved.mean()) / n)
    if "target" in options:
        return float(np.abs(moved).mean()), np.sign(moved) / n
    return sign * float(moved.mean()), np.full(n, sign / n)


def kink(logs: Array, error: float, norm: str) -> float:
    """Infinite where rounding decides on which side of a kink of the value the points are."""
    moved = logs - math.log(NORMS[norm].get("target", 1.0))
    edges = {"target": np.abs(moved).min(), "frechet": abs(moved.mean())}
    edges |= {name: np.sqrt(np.square(moved).mean()) / 100 for name in ("l2", "target l2")}
    return math.inf if edges.get(norm, math.inf) <= 2 * error + 1e-9 else 0.0


def log_slopes(d: Array, way: Way) -> Array:
    """Slopes of ln LID for the distances (n, k)."""
    k, w = d.shape[1], d[:, -1:]
    last = np.zeros_like(d)
    last[:, -1] = 1
    if way.startswith("mle"):
        logs = np.log(w / d).sum(1, keepdims=True)
        return np.asarray((1 / d - last * k / w) / logs)
    head = d[:, :-1] if way.endswith("pseudocode") else d
    in_head = 1 - last if way.endswith("pseudocode") else np.ones_like(d)
    gap = (w - d).sum(1, keepdims=True)
    return np.asarray(in_head / head.sum(1, keepdims=True) - (k * last - 1) / gap)


def gradients(step: Step, exact: Exact, slopes: Array) -> tuple[Array, Array]:
    """What slopes (N, k) for the distances are for the batch (N, D) and for the rows (M, D) of the reference."""
    x, rows = step.batch.exact, step.rows
    difference = x[:, None] - rows[exact.indices]
    length = np.where(exact.distances > 0, exact.distances, np.inf)[:, :, None]
    along = slopes[:, :, None] * (difference / length)
    of_rows = np.zeros_like(rows)
    np.add.at(of_rows, exact.indices.reshape(-1), -along.reshape(-1, x.shape[1]))
    return along.sum(1), of_rows


def assert_right(step: Step, got: Outcome) -> None:
    assert torch.isfinite(got.value)
    wide = step.batch.x.dtype == torch.float16  # whose gradients may overflow, as all in float16 may
    assert wide or torch.isfinite(got.gradient).all()
    assert not torch.isnan(got.gradient).any()
    assert wide or got.reference_gradient is None or torch.isfinite(got.reference_gradient).all()
    assert (got.reference_gradient is not None) == (step.reference_grad and step.reference is not None)
    if step.way == "tle":
        return
    exact = step.exact(step.k)
    wanted = expected(step, exact)
    if wanted is None:
        return
    assert abs(got.value.item() - wanted.value) <= wanted.room, (got.value, wanted.value, wanted.room)
    if not clear(step, exact):
        return
    assert_gradients(step, exact, got, wanted)


def clear(step: Step, exact: Exact) -> bool:
    """Whether it is clear beyond rounding which neighbors there are, and which is the last, and no slope overflows."""
    count = len(step.rows) - (step.reference is None or step.self_index is not None)
    d = step.exact(min(step.k + 1, count)).distances
    ends = d[:, step.k - 2 :]
    apart = np.diff(ends, axis=1) > 1e-5 * ends[:, 1:]
    return bool(apart.all() and (exact.distances > 1e-34).all())


def assert_gradients(step: Step, exact: Exact, got: Outcome, wanted: Expected) -> None:
    of_batch, of_rows = gradients(step, exact, wanted.slopes)
    # A gradient of `of_rows` gathers the rounding of all slopes that lead to a row.
    room = step.k * wanted.slope_room.max() * max(1, len(step.rows))
    if not np.isfinite(room) or max(np.abs(of_batch).max(), np.abs(of_rows).max()) > 1e30:
        return
    if step.reference is None and step.reference_grad:
        of_batch = of_batch + of_rows
    pairs = [(got.gradient, of_batch)]
    if got.reference_gradient is not None:
        pairs.append((got.reference_gradient, of_rows))
    for ours, theirs in pairs:
        limit = torch.finfo(ours.dtype)
        last = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(ours.dtype, 0.0)
        held = np.abs(theirs) < limit.max * 0.9
        error = np.abs(ours.double().numpy() - theirs)
        assert (error <= room + last * np.abs(theirs) + limit.tiny)[held].all(), (ours, theirs, room)


@HOW_MANY
def test_steps_are_those_of_float64(how_many: settings) -> None:
    @how_many
    @given(steps())
    def check(step: Step) -> None:
        assert_right(step, outcome(*step.arguments))

    check()


def draw_steps(count: int) -> list[Step]:
    """Batches that the kernels take, with no distances under 1e-32 of the largest value, which they have as 0."""
    found: list[Step] = []
    kinds = tuple(kind for kind in KINDS if "all sizes" not in kind)

    @settings(QUICK, max_examples=count)
    @given(steps(ways=("mom", "mom, pseudocode"), most=14, widest=9, dtypes=FLOATS[:3], kinds=kinds))
    def collect(step: Step) -> None:
        found.append(step)

    collect()
    return found


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize("path", ["differences", "screened"])
def test_fused_kernels_give_the_float64_answer(path: str, tmp_path: Path) -> None:
    """In Triton's interpreter, which must be asked for before Triton is imported."""
    drawn = draw_steps(120)
    torch.save([step.arguments for step in drawn], tmp_path / "cases.pt")
    run_interpreted(__file__, path, str(tmp_path / "cases.pt"), str(tmp_path / "outcomes.pt"))
    outcomes = torch.load(tmp_path / "outcomes.pt")
    assert len(outcomes) == len(drawn) >= 100
    for step, saved in zip(drawn, outcomes, strict=True):
        assert_right(step, Outcome(*saved))


@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
@pytest.mark.parametrize("scale", [1e-30, 1e-38, 1e-40, 1e-44])
def test_gradients_of_tiny_batches_are_finite(estimator: Any, scale: float) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    half = torch.cat((x[:20], x[20:] * scale))
    for batch in (x * scale, half):
        for beta in (0.01, 1e10):
            batch = batch.detach().requires_grad_()
            LDReg(k=5, beta=beta, estimator=estimator)(batch).backward()
            assert batch.grad is not None
            assert batch.grad.isfinite().all()
            assert batch.grad.abs().max() > 0


if __name__ == "__main__":
    main(*sys.argv[1:])
