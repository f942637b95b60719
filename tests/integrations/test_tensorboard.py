"""What `add_dimensions` writes, read back by TensorBoard itself."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ldreg
from ldreg.evaluate.measure import measure

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from torch.utils.tensorboard import SummaryWriter

from ldreg.integrations.tensorboard import add_dimensions


def points() -> torch.Tensor:
    return torch.randn(120, 5, generator=torch.Generator().manual_seed(0))


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"histograms": 0})  # all of them
    found.Reload()
    return found


def write(folder: Path, x: torch.Tensor, **options: Any) -> dict[str, float]:
    with SummaryWriter(folder) as writer:
        return add_dimensions(writer, x, **{"k": 10, "step": 7, **options})


def test_scalars_are_those_of_the_monitor(tmp_path: Path) -> None:
    returned, expected = write(tmp_path, points()), measure(points(), k=10)
    found = read(tmp_path)
    assert returned == {name: pytest.approx(value) for name, value in expected.items()}
    assert found.Tags()["scalars"] == [f"ldreg/{name}" for name in expected]
    for name, value in expected.items():
        [event] = found.Scalars(f"ldreg/{name}")
        assert (event.step, event.value) == (7, pytest.approx(value, rel=1e-5))


def test_the_histogram_holds_the_lid_of_every_regular_point(tmp_path: Path) -> None:
    x = torch.cat([points(), torch.full((12, 5), 50.0)])  # twelve at one place: LID 0
    scalars = write(tmp_path, x, tag="mine")
    assert scalars["degenerate"] == pytest.approx(12 / 132)
    values = ldreg.lid(x, k=10)[:120].double()
    [event] = read(tmp_path).Histograms("mine/lid_of_points")
    histogram = event.histogram_value
    assert (event.step, histogram.num) == (7, 120)
    assert (histogram.min, histogram.max) == (pytest.approx(values.min().item()), pytest.approx(values.max().item()))
    assert histogram.sum == pytest.approx(values.sum().item())


def table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("labels", [[f"a {i}\tb\n" for i in range(120)], torch.arange(120)])
def test_the_projector_is_given_points_with_lid_and_labels(tmp_path: Path, labels: Any) -> None:
    write(tmp_path, points(), labels=labels, projector=40)
    [tensors], [metadata] = tmp_path.rglob("tensors.tsv"), tmp_path.rglob("metadata.tsv")
    chosen = list(range(0, 120, 3))
    values = torch.tensor([[float(cell) for cell in row] for row in table(tensors)])
    assert torch.allclose(values, points()[chosen], atol=1e-5)
    header, *rows = table(metadata)
    assert header == ["lid", "label"]
    expected = ldreg.lid(points(), k=10)[chosen].tolist()  # among all points, not among those shown
    assert [float(row[0]) for row in rows] == pytest.approx(expected, rel=1e-3)
    assert [row[1] for row in rows] == [f"a {i} b" if isinstance(labels, list) else str(i) for i in chosen]
    config = (tmp_path / "projector_config.pbtxt").read_text()
    assert f'tensor_path: "{tensors.relative_to(tmp_path)}"' in config
    assert f'metadata_path: "{metadata.relative_to(tmp_path)}"' in config


def test_the_projector_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, points(), projector=0)
    assert not list(tmp_path.rglob("*.tsv"))
    assert read(tmp_path).Tags()["histograms"] == ["ldreg/lid_of_points"]


def test_divergence_is_logged_and_no_error(tmp_path: Path) -> None:
    x = points()
    x[3, 1] = math.nan
    assert math.isnan(write(tmp_path, x)["lid"])
    found = read(tmp_path)
    assert math.isnan(found.Scalars("ldreg/lid")[0].value)
    assert found.Tags()["histograms"] == []
    assert not list(tmp_path.rglob("*.tsv"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [1, 2]}, "^labels: expected one for each of 120 points, got 2"),
        ({"projector": -1}, "^projector: expected a number of points"),
        ({"k": 120}, "^k: expected"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path, points(), **options)
    assert read(tmp_path).Tags()["scalars"] == []
