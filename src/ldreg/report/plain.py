"""Values as JSON holds them."""

import math
from typing import Any


def strict(value: Any) -> Any:
    """The same nested value, floats to nine digits (the rest is rounding), None for those that JSON cannot hold."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value
