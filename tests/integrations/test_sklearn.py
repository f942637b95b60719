"""LID as scikit-learn and scikit-dimension know estimators."""

import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.estimator_checks import check_estimator

import ldreg
from ldreg.integrations.sklearn import LIDEstimator

# The checks fit as few as 10 points, of which k is then cut; one wants another environment (SCIPY_ARRAY_API).
CHECKED = pytest.mark.filterwarnings("ignore:k. expected fewer than", "ignore:.*SCIPY_ARRAY_API is not set")


@pytest.fixture
def ball() -> NDArray[numpy.float64]:
    """300 points of a 4-dimensional ball in 10 dimensions."""
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    x *= (rng.random((300, 1)) ** 0.25) / numpy.linalg.norm(x, axis=1, keepdims=True)
    rotation = numpy.linalg.qr(rng.normal(size=(10, 10)))[0]
    return numpy.asarray(x @ rotation[:4])


@pytest.fixture
def arrays(ball: NDArray[numpy.float64]) -> tuple[NDArray[Any], NDArray[Any]]:
    distances, indices = NearestNeighbors(n_neighbors=20).fit(ball).kneighbors()
    return distances, indices


@CHECKED
@pytest.mark.filterwarnings("ignore:Skipping check_:sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_scikit_learn_has_nothing_to_object_to(estimator: Any) -> None:
    results = check_estimator(LIDEstimator(estimator=estimator))
    if results is not None:  # before scikit-learn 1.6 there are none, only an error where a check fails
        assert len(results) > 30
        assert {result["status"] for result in results} <= {"passed", "skipped"}
        assert {r["check_name"] for r in results if r["status"] == "skipped"} <= {"check_array_api_input"}


@pytest.mark.parametrize("convention", ["paper", "pseudocode"])
@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
def test_values_are_those_of_lid(ball: NDArray[Any], estimator: Any, convention: Any, dtype: Any) -> None:
    x = ball.astype(dtype)
    tested = LIDEstimator(k=15, estimator=estimator, convention=convention)
    if (estimator, convention) == ("tle", "pseudocode"):
        with pytest.raises(ValueError, match="convention: expected 'paper'"):
            tested.fit(x)
        return
    expected = ldreg.lid(torch.tensor(x), k=15, estimator=estimator, convention=convention).numpy()
    found = tested.fit(x).dimension_pw_
    assert found.dtype == dtype
    numpy.testing.assert_array_equal(found, expected)
    assert tested.n_neighbors_ == 15


COUNTERPARTS: dict[str, tuple[LIDEstimator, dict[str, Any]]] = {
    "MOM": (LIDEstimator(), {}),
    "MLE": (LIDEstimator(estimator="mle", convention="pseudocode"), {}),
    "TLE": (LIDEstimator(estimator="tle"), {"epsilon": 0}),
}


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("name", list(COUNTERPARTS))
def test_it_stands_in_for_scikit_dimension(ball: NDArray[Any], name: str, smooth: bool) -> None:
    skdim = pytest.importorskip("skdim")
    tested, options = COUNTERPARTS[name]
    with numpy.errstate(all="ignore"):
        theirs = getattr(skdim.id, name)(**options).fit(ball, n_neighbors=20, smooth=smooth)
    ours = clone(tested).fit(ball, n_neighbors=20, smooth=smooth)
    numpy.testing.assert_allclose(ours.dimension_pw_, theirs.dimension_pw_, rtol=1e-9)
    assert ours.dimension_ == pytest.approx(theirs.dimension_, rel=1e-9)
    assert (ours.comb_, ours.n_neighbors_) == (theirs.comb_, theirs.n_neighbors_)
    assert clone(tested).fit_transform(ball, n_neighbors=20) == ours.dimension_
    expected, found = theirs.transform_pw(), ours.transform_pw()
    if not smooth:
        expected, found = (expected,), (found,)
    assert len(expected) == len(found) == 1 + smooth
    for one, other in zip(expected, found, strict=True):
        numpy.testing.assert_allclose(other, one, rtol=1e-9)
    again = clone(tested).fit_transform_pw(ball, smooth=smooth, n_neighbors=20)
    numpy.testing.assert_array_equal(again[1] if smooth else again, found[1] if smooth else found[0])


@pytest.mark.parametrize(
    ("name", "comb"), [("MOM", "mean"), ("MOM", "median"), ("MLE", "mean"), ("MLE", "median"), ("MLE", "mle")]
)
def test_points_are_averaged_as_in_scikit_dimension(ball: NDArray[Any], name: str, comb: Any) -> None:
    skdim = pytest.importorskip("skdim")
    expected = getattr(skdim.id, name)().fit(ball, n_neighbors=20, comb=comb).dimension_
    tested = clone(COUNTERPARTS[name][0])
    assert tested.fit(ball, n_neighbors=20, comb=comb).dimension_ == pytest.approx(expected, rel=1e-9)
    assert tested.set_params(comb=comb, k=20).fit(ball).dimension_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("comb", ["mean", "median", "mle", "geometric"])
def test_degenerate_points_are_left_out_and_counted(comb: Any) -> None:
    line = numpy.array([[0.0], [0.0], [0.0], [10.0], [11.0], [13.0], [16.0]])
    # Of two neighbors: the three at 0 have both at distance 0, 11 has 10 and 13 at 1 and 2, and so on.
    expected = {3: 1 + 3, 4: 1 + 2, 5: 2 + 3, 6: 3 + 5}
    far = {3: 3, 4: 2, 5: 3, 6: 5}
    values = numpy.array([(total / 2) / (far[i] - total / 2) for i, total in expected.items()])
    found = LIDEstimator(k=2, comb=comb).fit(line)
    numpy.testing.assert_allclose(found.dimension_pw_, [0, 0, 0, *values], rtol=1e-12)
    means = {
        "mean": values.mean(),
        "median": numpy.median(values),
        "mle": 1 / (1 / values).mean(),
        "geometric": numpy.exp(numpy.log(values).mean()),
    }
    assert found.dimension_ == pytest.approx(means[comb], rel=1e-12)
    assert (found.n_zero_, found.n_infinite_) == (3, 0)
    square = LIDEstimator(k=2, comb=comb).fit(numpy.array([[0.0, 0], [0, 1], [1, 0], [1, 1]]), smooth=True)
    assert (square.n_zero_, square.n_infinite_) == (0, 4)
    assert numpy.isnan(square.dimension_)
    assert numpy.isnan(square.dimension_pw_smooth_).all()


def test_smoothing_leaves_degenerate_points_out() -> None:
    line = numpy.array([[0.0], [0.0], [0.0], [1.0], [3.0]])
    found = LIDEstimator(k=2).fit(line, smooth=True)
    # 1 is among zeros at distance 1 (its value inf) and 3 has 1 and a 0: mean over the one regular value, its own.
    assert numpy.isinf(found.dimension_pw_[3])
    assert found.dimension_pw_[4] == found.dimension_pw_smooth_[4] == pytest.approx(5.0)
    assert numpy.isnan(found.dimension_pw_smooth_[:4]).all()
    assert isinstance(found.fit(line).transform_pw(), numpy.ndarray)  # a later fit forgets it


@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_neighbors_may_be_given(ball: NDArray[Any], arrays: tuple[NDArray[Any], NDArray[Any]], estimator: Any) -> None:
    sought = LIDEstimator(k=20, estimator=estimator).fit(ball, smooth=True)
    tested = LIDEstimator(estimator=estimator)
    for given in (
        tested.fit(ball, precomputed_knn_arrays=arrays, smooth=True),
        clone(tested).fit_pw(ball, precomputed_knn=arrays[1], smooth=True),
        clone(tested).fit_pw(ball, precomputed_knn=arrays[1][:, ::-1].astype(numpy.int32), smooth=True),
        clone(tested).fit_pw(ball, smooth=True, n_neighbors=20),
    ):
        assert given.n_neighbors_ == 20
        numpy.testing.assert_allclose(given.dimension_pw_, sought.dimension_pw_, rtol=1e-9)
        numpy.testing.assert_allclose(given.dimension_pw_smooth_, sought.dimension_pw_smooth_, rtol=1e-9)
    squared = clone(tested).fit(ball, precomputed_knn_arrays=(arrays[0] ** 2, arrays[1])).dimension_pw_
    assert (squared != sought.dimension_pw_).all()  # the given distances count, not those of X


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, i: (d,), "expected two arrays, distances and indices, got 1"),
        (lambda d, i: (i, d), r"expected integer indices \(300, k\) .*, got torch.float64 \(300, 20\)"),
        (lambda d, i: (d[:-1], i[:-1]), r"expected integer indices \(300, k\) .*, got torch.int64 \(299, 20\)"),
        (lambda d, i: (d[:, :-1], i), r"expected distances \(300, 20\), got \(300, 19\)"),
        (lambda d, i: (d[:, :1], i[:, :1]), "of k >= 2 neighbors"),
        (lambda d, i: (d[:, ::-1], i), "expected finite distances from 0 upward"),
        (lambda d, i: (d - 5, i), "expected finite distances from 0 upward"),
        (lambda d, i: (d * numpy.nan, i), "expected finite distances from 0 upward"),
        (lambda d, i: (d, i + 10), "expected indices from 0 to 299, got 10 to 309"),
        (lambda d, i: (d, i - 10), "expected indices from 0 to 299, got -10 to 289"),
        (lambda d, i: (d, numpy.concatenate((i[:, :1], i[:, :-1]), 1)), "every neighbor of a point once, got some"),
        (lambda d, i: (d, numpy.where(i == i[:, :1], numpy.arange(300)[:, None], i)), "no point among its own"),
    ],
)
def test_arrays_that_are_no_neighbors_are_refused(
    ball: NDArray[Any], arrays: tuple[NDArray[Any], NDArray[Any]], change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^precomputed_knn_arrays: .*{message}"):
        LIDEstimator().fit(ball, precomputed_knn_arrays=change(*arrays))


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        ({"k": 1}, {}, "^k: expected at least 2"),
        ({}, {"n_neighbors": 1}, "^n_neighbors: expected at least 2"),
        ({"k": 64.0}, {}, "^k: expected an integer, got 64.0"),
        ({}, {"n_neighbors": "20"}, "^n_neighbors: expected an integer, got '20'"),
        ({"estimator": "twonn"}, {}, "^estimator: expected one of mom, mle, tle, got 'twonn'"),
        ({"convention": "mine"}, {}, "^convention: expected one of"),
        ({"comb": "mode"}, {}, "^comb: expected one of mean, median, mle, geometric, got 'mode'"),
        ({}, {"n_jobs": 0}, "n_jobs == 0"),
    ],
)
def test_wrong_options_are_named(
    ball: NDArray[Any], parameters: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LIDEstimator(**parameters).fit(ball, **arguments)


def test_k_is_checked_only_where_it_is_used(ball: NDArray[Any], arrays: tuple[NDArray[Any], NDArray[Any]]) -> None:
    assert LIDEstimator(k=1).fit(ball, n_neighbors=20).n_neighbors_ == 20
    assert LIDEstimator(k=1).fit(ball, precomputed_knn_arrays=arrays).n_neighbors_ == 20
    with pytest.raises(ValueError, match=r"^n_neighbors: expected None or 20, .* got 10"):
        LIDEstimator().fit(ball, precomputed_knn_arrays=arrays, n_neighbors=10)


def test_too_large_a_k_is_cut_and_said(ball: NDArray[Any]) -> None:
    with pytest.warns(UserWarning, match=r"^k: .*30 points, got 64; .*29") as warned:
        found = LIDEstimator().fit(ball[:30])
    assert found.n_neighbors_ == 29
    assert found.k == 64
    assert Path(warned[0].filename) == Path(__file__)
    numpy.testing.assert_array_equal(found.dimension_pw_, ldreg.lid(torch.tensor(ball[:30]), k=29).numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LIDEstimator(k=29).fit(ball[:30])


def test_threads_are_those_asked_for_while_it_measures(ball: NDArray[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    measured = LIDEstimator._measured

    def watched(*arguments: Any, **options: Any) -> LIDEstimator:
        seen.append(torch.get_num_threads())
        return measured(*arguments, **options)

    monkeypatch.setattr(LIDEstimator, "_measured", watched)
    for n_jobs in (before + 1, None):
        LIDEstimator(k=10).fit(ball, n_jobs=n_jobs)
        assert torch.get_num_threads() == before
    LIDEstimator(k=10).fit_pw(ball, n_jobs=before + 2)
    assert seen == [before + 1, before, before + 2]
    assert torch.get_num_threads() == before


def test_columns_are_remembered(ball: NDArray[Any]) -> None:
    tested = LIDEstimator(k=10).fit(ball)
    with pytest.raises(NotFittedError):
        clone(tested).transform_pw()
    numpy.testing.assert_array_equal(tested.transform_pw(ball[:2]), tested.dimension_pw_)
    with pytest.raises(ValueError, match="X has 9 features, but LIDEstimator is expecting 10"):
        tested.transform_pw(ball[:, :9])


def test_anything_array_like_is_taken(ball: NDArray[Any]) -> None:
    expected = LIDEstimator(k=10).fit(ball).dimension_pw_
    frozen = ball.copy()
    frozen.setflags(write=False)
    for x in (torch.tensor(ball), ball.tolist(), numpy.asfortranarray(ball), ball[:, ::-1], frozen, ball.astype(">f8")):
        numpy.testing.assert_allclose(LIDEstimator(k=10).fit(x).dimension_pw_, expected, rtol=1e-9)
    assert LIDEstimator(k=10).fit(ball[:, :1]).dimension_ == pytest.approx(1, abs=0.35)
