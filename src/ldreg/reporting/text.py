"""Numbers and user text as people read them."""

import math


def number(value: float | None) -> str:
    """A measured value to three or four digits, or a dash where there is none.

    >>> number(7.8954), number(123.456), number(0.01234), number(0.0), number(float("nan")), number(float("inf"))
    ('7.90', '123.5', '0.0123', '0', '–', '∞')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{4 if abs(value) < 0.1 else 3 if abs(value) < 1 else 2 if abs(value) < 100 else 1}f}"


def interval(low: float, high: float) -> str:
    """A confidence interval.

    >>> interval(7.85, 7.94), interval(float("nan"), float("nan"))
    ('7.85 to 7.94', '–')
    """
    return "–" if math.isnan(low) or math.isnan(high) else f"{number(low)} to {number(high)}"


def count(value: int) -> str:
    """A count with its thousands apart.

    >>> count(1281167)
    '1,281,167'
    """
    return f"{value:,}"


def percent(share: float) -> str:
    """A share in percent, never rounded to 0 or to 100 unless it is exactly that.

    >>> percent(0), percent(0.25), percent(1e-6), percent(0.99999)
    ('0 %', '25.0 %', '< 0.1 %', '> 99.9 %')
    """
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return "< 0.1 %" if share < 0.001 else "> 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"


def printable(text: str) -> str:
    r"""User text with every control or unprintable character spelled out, safe for a terminal and for XML.

    >>> print(printable("cat\x1b[31m"), printable("a\nb"), printable("naïve 猫"))
    cat\x1b[31m a\nb naïve 猫
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
