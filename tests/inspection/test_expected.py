"""What Gaussian points read beside sets whose shape is known."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits, make_swiss_roll
from torch import Tensor

from ldreg.dimension.synthetic import ball, cube, sphere
from ldreg.inspection.measure import inspect

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("quick_danco")


def gaussian(n: int, d: int, *, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def clusters(apart: float, n: int = 3000, d: int = 64) -> Tensor:
    cluster = torch.randint(10, (n,), generator=torch.Generator().manual_seed(4))
    return apart * gaussian(10, d, seed=1)[cluster] + gaussian(n, d)


SETS: dict[str, Callable[[], Tensor]] = {
    "isotropic Gaussian": lambda: gaussian(2000, 30),
    "steep spectrum": lambda: gaussian(2000, 100) * torch.arange(1, 101) ** -1.0,
    "plane in 64 coordinates": lambda: gaussian(2000, 2) @ gaussian(2, 64, seed=1),
    "more coordinates than points": lambda: gaussian(500, 600),
    "cube": lambda: cube(2000, 20),
    "ball": lambda: ball(2000, 10),
    "sphere": lambda: sphere(2000, 50),
    "distant clusters": lambda: clusters(3.0),
    "swiss roll": lambda: torch.from_numpy(make_swiss_roll(2000, random_state=0)[0]),
    "digits": lambda: torch.from_numpy(load_digits().data),
}


@pytest.mark.parametrize("name", SETS)
def test_the_documented_table_is_measured(name: str) -> None:
    report = inspect(SETS[name](), k=64, sample=800)
    told, found = documented(name), report.expected
    assert found.note == ""
    assert told["N × D"] == f"{report.points:,} × {report.dimensions}"
    numbers = {
        "LID": report.mean.value,
        "of a Gaussian": found.gaussian_lid,
        "Gaussian dimension": found.gaussian_dimension,
    }
    for column, value in numbers.items():
        assert float(told[column]) == pytest.approx(value, rel=0.02, abs=0.06)


def documented(name: str) -> dict[str, str]:
    """The row of a set in docs/guidance.md, by column."""
    lines = (ROOT / "docs" / "guidance.md").read_text(encoding="utf-8").splitlines()
    head, row = (next(line for line in lines if line.startswith(f"| {start} |")) for start in ("set", name))
    return dict(zip(*([cell.strip() for cell in line.split("|")] for line in (head, row)), strict=True))


@pytest.mark.parametrize(("d", "dimensions"), [(5, 64), (20, 128), (50, 50)])
def test_the_dimension_is_freed_of_the_bias(d: int, dimensions: int) -> None:
    report = inspect(gaussian(3000, d) @ torch.eye(d, dimensions), k=64, sample=800)
    assert report.expected.gaussian_dimension == pytest.approx(d, rel=0.05)
    assert d == 5 or report.mean.value < 0.8 * d


@pytest.mark.parametrize(
    ("x", "options", "reason"),
    [
        (gaussian(100, 5), {"k": 20}, "100"),
        (gaussian(300, 5), {"k": 100}, "k = 100"),
        (gaussian(300, 5), {"k": 20, "estimator": "tle"}, "tle"),
        (torch.ones(200, 5), {"k": 20}, "no point"),
    ],
)
def test_a_number_that_is_not_known_has_its_reason(x: Tensor, options: dict[str, int], reason: str) -> None:
    found = inspect(x, **options).expected  # type: ignore[arg-type]
    assert (found.gaussian_lid, found.gaussian_dimension) == (None, None)
    assert reason in found.note
