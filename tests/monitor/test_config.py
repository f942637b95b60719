from typing import Any

import pytest

from ldreg.monitor.config import MonitorConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 1}, "k: expected at least 2, got 1"),
        ({"every_steps": 0}, "every_steps: expected at least 1, got 0"),
        ({"every_epochs": 0}, "every_epochs: expected at least 1, got 0"),
        ({"knn_k": 0}, "knn_k: expected at least 1, got 0"),
        ({"points": 64}, r"points: expected more than k \(64\), got 64"),
        ({"alarm": 1.0}, r"alarm: expected 0 \(off\) or a share under 1, got 1.0"),
        ({"alarm": -0.1}, "alarm: expected 0"),
        ({"alarm": 0.0, "stop_on_alarm": True}, "stop_on_alarm: expected an alarm above 0"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonitorConfig(**settings)


def test_settings_at_their_bounds_are_taken() -> None:
    config = MonitorConfig(k=2, points=3, every_steps=1, every_epochs=1, knn_k=1, alarm=0)
    assert (config.k, config.points, config.alarm) == (2, 3, 0)
