"""Distances, LID, effective rank and reports of any set of points: the float64 answer, or a defined value."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.properties.conftest import (
    HOW_MANY,
    LEAST_NORMAL,
    MANY,
    QUANTUM,
    QUICK,
    WAYS,
    Array,
    Exact,
    Points,
    Way,
    assert_lid,
    brute_force,
    inverse_lid,
    points,
    rounded,
    tolerance,
    two_clusters,
    unsettled,
)
from torch import Tensor

from ldreg import effective_rank, inspect, lid, neighbor_distances
from ldreg.dimension.estimators import estimate_lid
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.streaming import stream_lid, stream_neighbors
from ldreg.inspection import measure

ELSEWHERE = "cpu:0"  # a device that points on "cpu" do not lie on, so that they are sent there in blocks


class Search(NamedTuple):
    """Queries, k, and where to look for neighbors, with the row that each query is there."""

    queries: Points
    k: int
    reference: Points | None = None
    own: NDArray[np.int64] | None = None

    @property
    def arguments(self) -> tuple[Tensor, int, Tensor | None]:
        return self.queries.x, self.k, None if self.reference is None else self.reference.x

    @property
    def self_index(self) -> Tensor | None:
        return None if self.own is None else torch.from_numpy(self.own)

    @property
    def rows(self) -> Array:
        return self.queries.exact if self.reference is None else self.reference.exact

    @property
    def single(self) -> bool:
        return self.queries.single and (self.reference is None or self.reference.single)

    @property
    def exact(self) -> Exact:
        reference = None if self.reference is None else self.reference.exact
        return brute_force(self.queries.exact, self.k, reference, self.own)


@st.composite
def alone(draw: st.DrawFn, /, *, least_k: int = 1, **options: Any) -> Search:
    """A set against itself, often with the fewest or the most neighbors."""
    queries = draw(points(least=least_k + 1, **options))
    most = len(queries.x) - 1
    return Search(queries, draw(st.sampled_from((least_k, most)) | st.integers(least_k, most)))


@st.composite
def in_reference(draw: st.DrawFn, /, *, least_k: int = 1, **options: Any) -> Search:
    """Queries in a reference, some of them rows of it."""
    reference = draw(points(least=least_k + 1, **options))
    m, d = reference.x.shape
    queries = draw(points(least=1, most=12, widest=1))
    wide = queries.x[:, :1].expand(-1, d)
    places = draw(st.lists(st.integers(-1, m - 1), min_size=len(wide), max_size=len(wide)))
    own = np.array(places, dtype=np.int64)
    if draw(st.booleans()):  # most often of the same kind, as a batch in its queue is
        wide = reference.x[torch.from_numpy(np.maximum(own, 0))]
    named = draw(st.booleans())
    most = m - 1 if named else m
    k = draw(st.sampled_from((least_k, most)) | st.integers(least_k, most))
    return Search(Points(queries.kind, wide), k, reference, own if named else None)


def assert_distances(found: Tensor, search: Search) -> None:
    """Right to rounding in the dtype they are in, ascending, and 0 where a duplicate is and nowhere else."""
    exact = search.exact.distances
    assert found.dtype == (torch.float32 if search.single else torch.float64)
    assert (found.diff(dim=1) >= 0).all()
    wide = found.double().numpy()
    room = 5e-7 if search.single else (search.rows.shape[1] + 8) * 2.0**-53
    least = QUANTUM if search.single else 0.0
    assert (np.abs(wide - exact) <= room * exact + np.where(exact < LEAST_NORMAL, least, 0)).all(), (wide, exact)
    assert ((wide == 0) == (exact == 0)).all()


def assert_all_lid(measured: Callable[[Way], Tensor], search: Search) -> None:
    """LID by every estimator and convention is that of float64 brute force."""
    exact = search.exact
    room = tolerance(exact, single=search.single)
    for way in WAYS:
        if way != "tle" or tight_is_settled(search):
            inverse = inverse_lid(exact, way, search.queries.exact, search.rows)
            more = 100 * unsettled(exact, search.queries.exact, search.rows) if way == "tle" else 0.0
            assert_lid(measured(way), inverse, room + more, way)
        else:
            assert (measured(way) >= 0).all()


def tight_is_settled(search: Search) -> bool:
    """Whether the tight estimates can be told from float64 brute force.

    They look at the neighbors themselves, and which of equally far rows is the k-th is open. And float64 cannot say by
    how much neighbors miss each other where they are spread over more orders of magnitude than it has digits, nor by
    how much they miss each other's mirror images where its own last digit decides.
    """
    kinds = {search.queries.kind} | ({search.reference.kind} if search.reference is not None else set())
    wide = any("all sizes" in kind or kind == "drawn" for kind in kinds)
    mirrored = not search.single and bool(kinds & {"steps", "grid"})
    return not wide and not mirrored and not tied(search) and not almost_equally_far(search.exact.distances)


def tied(search: Search) -> bool:
    """Whether the k-th and the next neighbor of some query are equally far but for rounding."""
    count = len(search.rows) - (search.reference is None or search.own is not None)
    if search.k == count:  # all that there are, but for queries that are none of the rows and so have one more
        free = np.full(len(search.queries.x), False) if search.own is None else search.own < 0
        if not free.any():
            return False
        kept = Points(search.queries.kind, search.queries.x[torch.from_numpy(free)])
        search = search._replace(queries=kept, own=np.full(len(kept.x), -1))
    exact = search._replace(k=search.k + 1).exact.distances
    return bool((exact[:, -1] - exact[:, -2] <= 1e-6 * exact[:, -1]).any())


def almost_equally_far(exact: Array) -> bool:
    """Whether rounding decides if all neighbors of some query are equally far, which has a LID of its own."""
    gap = exact[:, -1] - exact[:, 0]
    return bool(((gap > 0) & (gap <= 1e-6 * exact[:, -1])).any())


def searched(rows: list[list[float]], k: int, kind: str = "by hand") -> Search:
    return Search(Points(kind, torch.tensor(rows)), k)


# Where something was wrong once: ratios that underflow, neighbors that almost coincide, or are mirror images.
OF_ALL_SIZES = searched([[0.0], [1e-30], [1e30], [2e30], [-3e30]], 2, "of all sizes")
ALMOST_MIRRORED = searched([[0.1 * i, 0.3] for i in range(7)] + [[9.0, 9.0]], 7)
ALMOST_EQUALLY_FAR = Search(
    Points("by hand", torch.tensor([[0.0], [1.0], [1.0], [1.0], [1 - 2.0**-53]], dtype=torch.float64)), 4
)
ALMOST_THE_SAME = searched([[0.0, 1.0], [1.0, 0.0], [1.0, 1e-7], [1.0, 3e-7], [3.0, 2.0]], 4)


def copied() -> Search:
    """Two queries in a reference; the nearest of the second is the first row of another block, that the first is in."""
    rows = np.random.default_rng(0).normal(size=(20, 100))
    rows[9] = rows[0]
    reference, own = torch.from_numpy(rows), np.array([3, 9])
    return Search(Points("by hand", reference[torch.from_numpy(own)]), 1, Points("by hand", reference), own)


@HOW_MANY
def test_distances_are_those_of_float64(how_many: settings) -> None:
    @how_many
    @given(alone() | in_reference())
    def check(search: Search) -> None:
        assert_neighbors(search)

    check()


@example(Search(Points("two clusters", rounded(two_clusters(np.random.default_rng(0), 300, 12), torch.float32)), 4), 4)
@QUICK
@given(alone(most=400, widest=6), st.integers(1, 4))
def test_distances_among_more_points_than_candidates_are_kept(search: Search, k: int) -> None:
    assert_neighbors(search._replace(k=min(k, search.k)))


def assert_neighbors(search: Search) -> None:
    found = neighbors(*search.arguments, self_index=search.self_index)
    assert_distances(found.distances, search)
    assert all(len(set(row)) == search.k for row in found.indices.tolist())
    own = np.arange(len(found.indices)) if search.reference is None else search.own
    assert own is None or not (found.indices.numpy() == own[:, None]).any()
    if search.own is None:
        assert torch.equal(neighbor_distances(*search.arguments), found.distances)


@HOW_MANY
def test_lid_is_that_of_float64(how_many: settings) -> None:
    @example(OF_ALL_SIZES)
    @example(ALMOST_MIRRORED)
    @example(ALMOST_THE_SAME)
    @how_many
    @given(alone(least_k=2) | in_reference(least_k=2))
    def check(search: Search) -> None:
        def measured(way: Way) -> Tensor:
            found = estimate_lid(*search.arguments, self_index=search.self_index, **WAYS[way])
            regular = torch.isfinite(found.lid) & (found.lid > 0)
            assert torch.equal(torch.isnan(found.standard_error), ~regular)
            assert torch.equal(lid(*search.arguments, self_index=search.self_index, **WAYS[way]), found.lid)
            return found.lid

        assert_all_lid(measured, search)

    check()


@HOW_MANY
def test_blocks_give_the_same(how_many: settings) -> None:
    """Blocks of so many rows of the reference, or of somewhat more queries."""

    @example(copied(), 4)
    @settings(how_many, max_examples=20 if how_many is QUICK else 300)
    @given(alone(most=20, widest=160) | in_reference(most=20, widest=160), st.integers(1, 12))
    def check(search: Search, rows: int) -> None:
        sizes = [each.x.element_size() for each in (search.queries, search.reference) if each is not None]
        width = max(sizes) * search.rows.shape[1]
        budget = 2 * rows * (2 * width + max(width, 4 * search.rows.shape[1]))
        more: dict[str, Any] = {"self_index": search.self_index, "device": ELSEWHERE, "budget": budget}
        assert_distances(stream_neighbors(*search.arguments, **more).distances, search)
        if search.k > 1:
            assert_all_lid(lambda way: stream_lid(*search.arguments, **(WAYS[way] | more)).lid, search)

    check()


@HOW_MANY
def test_effective_rank_is_that_of_float64(how_many: settings) -> None:
    @how_many
    @given(points(widest=60))
    def check(given: Points) -> None:
        found = effective_rank(given.x)
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(exact_rank(given.exact), rel=1e-9, abs=1e-9)

    check()


def exact_rank(x: Array) -> float:
    """Exp of the entropy of the squared singular values of the centered rows; 0 where those are all 0."""
    moved = x - x[0]
    largest = np.abs(moved).max()
    if largest == 0:
        return 0.0
    moved = moved / largest
    values = np.linalg.svd(moved - moved.mean(0), compute_uv=False) ** 2
    shares = values / values.sum()
    shares = shares[shares > 1e-14]
    return float(np.exp(-(shares * np.log(shares)).sum()))


# Sets whose rows are spread over few enough orders of magnitude for a move to round all of them alike.
MOVABLE = ("gaussian", "line", "grid", "duplicates", "outlier", "collapsed in part", "mostly zero")


def scaled(rng: np.random.Generator, x: Array) -> tuple[Array, float]:
    factor = float(rng.choice((1e-30, 1e-7, 3.0, 1e30)))
    return x * factor, factor


# The points moved, and the factor that this puts on distances.
MOVES: dict[str, Callable[[np.random.Generator, Array], tuple[Array, float]]] = {
    "shift": lambda rng, x: (x + rng.choice((-1000.0, 0.3, 1e4)) * np.abs(x).max(), 1.0),
    "scale": scaled,
    "rotation": lambda rng, x: (x @ np.linalg.qr(rng.normal(size=(x.shape[1], x.shape[1]))).Q, 1.0),
}


@pytest.mark.parametrize("name", MOVES)
@QUICK
@given(search=alone(least_k=2, dtypes=(torch.float64,), kinds=MOVABLE), seed=st.integers(0, 2**32 - 1))
def test_moves_change_nothing(name: str, search: Search, seed: int) -> None:
    """But numbers by rounding, u of the largest, and so distances by as much and LID accordingly."""
    x, k = search.queries.x, search.k
    moved, factor = MOVES[name](np.random.default_rng(seed), search.queries.exact)
    there = torch.from_numpy(moved)
    room = 1e-14 * x.shape[1] * max(x.abs().max().item(), there.abs().max().item() / factor)
    before, after = neighbor_distances(x, k), neighbor_distances(there, k) / factor
    assert ((after - before).abs() <= room + 1e-13 * before).all()
    # LID moves by as much as the distances do in relation to the nearest of them.
    least = torch.where(before > 0, before, torch.inf).amin(1)
    clear = ((before > 1e3 * room) | (before == 0)).all(1) & (least > 1e6 * room)
    assume(bool(clear.any()))
    share = (room / least).numpy() * 1e3 + 1e-12
    for way in ("mom", "mle"):
        inverse = inverse_lid(search.exact, way, search.queries.exact, search.rows)
        if way == "mle":
            clear &= (before > 0).all(1)
        assert_lid(lid(there, k, **WAYS[way])[clear], inverse[clear.numpy()], share[clear.numpy()], way)
    assert effective_rank(there).item() == pytest.approx(effective_rank(x).item(), rel=1e-6, abs=1e-6)


@QUICK
@given(alone(least_k=2), st.integers(0, 2**32 - 1))
def test_order_changes_nothing(search: Search, seed: int) -> None:
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(search.queries.x)))
    x, k = search.queries.x, search.k
    rtol = 5e-7 if search.single else 1e-14
    before, after = neighbor_distances(x, k), neighbor_distances(x[order], k)
    torch.testing.assert_close(after, before[order], rtol=rtol, atol=2 * QUANTUM if search.single else 0)
    room = 2 * tolerance(search.exact, single=search.single)
    for way in WAYS:
        if way != "tle" or tight_is_settled(search):
            inverse = (1 / lid(x, k, **WAYS[way])[order].double()).numpy()
            assert_lid(lid(x[order], k, **WAYS[way]), inverse, room[order.numpy()], way)
    assert effective_rank(x[order]).item() == pytest.approx(effective_rank(x).item(), rel=1e-9, abs=1e-9)


@HOW_MANY
def test_reports_are_those_of_float64(how_many: settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "danco", lambda x, *, seed: float(len(x)))  # which has tests of its own

    @example(ALMOST_EQUALLY_FAR, None)
    @how_many
    @given(alone(least_k=2), st.sampled_from((None, 1, 5)))
    def check(search: Search, sample: int | None) -> None:
        exact = search.exact
        inverse = inverse_lid(exact, "mom", search.queries.exact, search.rows)
        report = inspect(search.queries.x, k=search.k, sample=sample, device="cpu")
        rows = report.index.numpy()
        assert_lid(report.lid, inverse[rows], tolerance(exact, single=search.single)[rows])
        values = report.lid.double().numpy()
        assert report.zero == (values == 0).sum() == np.isinf(inverse[rows]).sum()
        assert report.infinite == np.isinf(values).sum()
        assert report.duplicated == (exact.distances[rows, 0] == 0).sum()
        assert_means(report, values[np.isfinite(values) & (values > 0)])
        assert report.effective_rank == pytest.approx(exact_rank(search.queries.exact), rel=1e-9, abs=1e-9)
        assert torch.isfinite(report.coordinates).all()
        assert torch.isfinite(report.eigenvalues).all()
        assert str(report)

    check()


def assert_means(report: Any, regular: Array) -> None:
    """Statistics are those of the regular values, and NaN where there are none."""
    if not len(regular):
        expected = [np.nan] * 4
    else:
        logs = np.log(regular)
        expected = [np.exp(logs.mean()), regular.mean(), 1 / (1 / regular).mean(), logs.var()]
    means = [report.mean.value, report.arithmetic_mean, report.harmonic_mean, report.frechet_variance]
    assert means == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
    if len(regular) > 1:
        assert report.mean.low <= report.mean.value * (1 + 1e-9)
        assert report.mean.value <= report.mean.high * (1 + 1e-9)


@pytest.mark.slow
@MANY
@given(alone(least_k=2))
def test_the_whole_report_is_made_of_anything(search: Search) -> None:
    """With DANCo, which draws its calibration for sets of such sizes."""
    report = inspect(search.queries.x, k=search.k, device="cpu")
    for reading in (report.twonn, report.danco):
        assert reading.note.startswith("not available") if reading.value is None else reading.value > 0
