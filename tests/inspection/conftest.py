import pytest
from torch import Tensor

from ldreg.inspection import measure


@pytest.fixture
def quick_danco(monkeypatch: pytest.MonkeyPatch) -> None:
    """DANCo has tests of its own and takes most of the time; here it tells how many points it was given."""

    def stand_in(x: Tensor, *, seed: int) -> float:
        if len(x) < 12:
            raise ValueError(f"x: expected at least 12 distinct points, got {len(x)}")
        return float(len(x))

    monkeypatch.setattr(measure, "danco", stand_in)
