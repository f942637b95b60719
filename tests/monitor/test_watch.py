from typing import Any

import pytest

from ldreg.monitor.watch import MonitorConfig


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("k", {"k": 1}),
        ("every_steps", {"every_steps": 0}),
        ("every_epochs", {"every_epochs": 0}),
        ("knn_k", {"knn_k": 0}),
        ("points", {"points": 64}),
        ("alarm", {"alarm": 1.0}),
        ("alarm", {"alarm": -0.1}),
        ("stop_on_alarm", {"alarm": 0.0, "stop_on_alarm": True}),
    ],
)
def test_a_setting_out_of_range_is_named(option: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{option}: "):
        MonitorConfig(**settings)


def test_settings_at_their_bounds_are_accepted() -> None:
    config = MonitorConfig(k=2, points=3, every_steps=1, every_epochs=1, knn_k=1, alarm=0)
    assert (config.k, config.points, config.alarm) == (2, 3, 0)
