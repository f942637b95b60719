from typing import Any

from ldreg.bench.benchmark import Pictures, Points
from ldreg.bench.measure import Measurement
from ldreg.bench.record import Result, Run
from ldreg.bench.tables import headline, series


def run_of(*sizes: Any, benchmark: str = "lid") -> Run:
    results = tuple(Result("ldreg", size, Measurement((1.0,), 1.0)) for size in sizes)
    return Run(benchmark, "cpu", "", 64, 0, 1, {}, results)


def test_series_are_the_longest_along_each_axis() -> None:
    points = [Points(n, 128) for n in (50_000, 1000, 5000)]
    dimensions = [Points(5000, d) for d in (2, 8192, 128)]
    over_points, over_dimensions = series(run_of(*points, *dimensions, Points(7, 7)))
    assert over_points.sizes == (Points(1000, 128), Points(5000, 128), Points(50_000, 128))
    assert over_points.title == "over points, at 128 dimensions"
    assert over_dimensions.sizes == (Points(5000, 2), Points(5000, 128), Points(5000, 8192))
    assert over_dimensions.title == "over dimensions, at 5,000 points"


def test_two_sizes_and_other_kinds_of_sizes_are_no_series() -> None:
    assert series(run_of(Points(1000, 128), Points(5000, 128))) == []
    assert series(run_of(Pictures(4, 32), Pictures(8, 32), Pictures(16, 32), benchmark="views")) == []


def test_sizes_of_a_series_alone_are_not_shown_in_full() -> None:
    main = Points(10_000, 128)  # which is of the study too
    study = [Points(1000, 128), Points(2000, 128)]
    assert headline(run_of(main, *study)) == [main]
    assert headline(run_of(*study)) == study  # no series: there is no other place for them
    own = [Points(n, 50) for n in (100, 200, 300)]
    assert headline(run_of(*own)) == own
