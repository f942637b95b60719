import pytest

from ldreg.bench.benchmark import Batches, Pictures, Points, Size, parse_sizes
from ldreg.bench.suite import BENCHMARKS


@pytest.mark.parametrize(
    ("kind", "text", "size", "shown"),
    [
        (Points, "2000x512", Points(2000, 512), "2k×512"),
        (Points, "10K×128", Points(10_000, 128), "10k×128"),
        (Points, "1281167x2048", Points(1_281_167, 2048), "1281167×2048"),
        (Pictures, "512x32", Pictures(512, 32), "512 × 32 px"),
        (Pictures, "files:64x224", Pictures(64, 224, files=True), "64 × 224 px from files"),
        (Batches, "64x16:small_cnn", Batches(64, 16, "small_cnn"), "64 × 16 px, small_cnn"),
        (Batches, "512x32", Batches(512, 32, "resnet18"), "512 × 32 px, resnet18"),
    ],
)
def test_sizes_are_read_and_shown(kind: type[Size], text: str, size: Size, shown: str) -> None:
    assert parse_sizes(f"{text}, {text}", kind) == (size, size)
    assert str(size) == shown


@pytest.mark.parametrize(
    ("kind", "text"), [(Points, "10by3"), (Points, "0x3"), (Points, ""), (Pictures, "4x0"), (Batches, "4x8:")]
)
def test_what_is_no_size_is_refused(kind: type[Size], text: str) -> None:
    with pytest.raises(ValueError, match=r"sizes: expected .*, got '"):
        parse_sizes(text, kind)


def test_pictures_come_in_the_size_of_photographs_where_views_are_large() -> None:
    assert Pictures(1, 32).shape == (32, 32)
    assert Pictures(1, 224).shape == (350, 400)
    assert Pictures(2, 224).input_bytes == 2 * 3 * 350 * 400


def test_work_and_candidates() -> None:
    assert Points(10, 3).work == 300
    assert (Points(10, 3).candidates, Batches(8, 4, "a").candidates, Pictures(8, 4).candidates) == (10, 16, None)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_size_is_told_apart_and_goals_are_of_sizes_that_are_run(name: str) -> None:
    benchmark = BENCHMARKS[name]
    for device in benchmark.sizes:
        sizes = benchmark.full_sizes(device)
        assert len({str(size) for size in sizes}) == len(sizes)
        assert {goal.size for goal in benchmark.goals if goal.device == device} <= set(sizes)
        assert all(goal.of in benchmark.contenders for goal in benchmark.goals)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_contenders_can_be_named_in_a_list(name: str) -> None:
    assert not [key for key in BENCHMARKS[name].contenders if "," in key]


def test_the_study_goes_from_1k_to_50k_points_and_over_dimensions() -> None:
    sizes = BENCHMARKS["lid"].full_sizes("cpu")
    assert {1000, 50_000} <= {size.points for size in sizes if size.dimensions == 128}
    assert {2, 8192} <= {size.dimensions for size in sizes if size.points == 5000}
    assert [size.work for size in sizes] == sorted(size.work for size in sizes)
