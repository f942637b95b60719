"""Numbers and user text as people read them."""

import math
import re
import textwrap
from collections.abc import Iterable


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


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(0, "run")
    ('1 run', '0 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share in percent, never rounded to 0 or to 100 unless it is exactly that.

    >>> percent(0), percent(0.25), percent(1e-6), percent(0.99999)
    ('0 %', '25.0 %', '< 0.1 %', '> 99.9 %')
    """
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return "< 0.1 %" if share < 0.001 else "> 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"


def duration(minutes: float) -> str:
    """A time as people say it, to two digits or three.

    >>> duration(0.08), duration(1.5), duration(12.3), duration(200), duration(5000), duration(float("nan"))
    ('4.8 s', '90 s', '12 min', '3.3 h', '3.5 days', '–')
    """
    if not math.isfinite(minutes):
        return number(minutes)
    size = abs(minutes)
    value, unit = next(
        (minutes / length, unit)
        for length, most, unit in ((1 / 60, 2, "s"), (1, 120, "min"), (60, 2880, "h"), (1440, math.inf, "days"))
        if size < most
    )
    return f"{value:.{1 if 0 < abs(value) < 9.95 else 0}f} {unit}"


def broken(text: str, width: int) -> str:
    r"""Text in lines of at most `width` characters, broken after spaces, hyphens, underscores and slashes.

    A part that is longer than a line is cut.

    >>> broken("simclr_ldreg-seed_1", 12), broken("abcdef", 4), broken("SimCLR + LDReg", 9)
    ('simclr_\nldreg-seed_1', 'abcd\nef', 'SimCLR +\nLDReg')
    """
    width = max(1, width)
    lines = [""]
    for part in re.findall(r"[^-_/\s]*[-_/\s]|[^-_/\s]+", text):
        if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
            lines.append("")
        pieces = [part[start : start + width] for start in range(0, len(part.rstrip()) or 1, width)]
        lines[-1] += pieces[0]
        lines += pieces[1:]
    return "\n".join(line.strip() for line in lines)


def label_order(label: str) -> tuple[bool, int, str]:
    """A key that sorts class labels: whole numbers by value, then words by alphabet.

    >>> sorted(["10", "b", "9", "a", "-1"], key=label_order)
    ['-1', '9', '10', 'a', 'b']
    """
    whole = label.removeprefix("-").isdecimal()
    return not whole, int(label) if whole else 0, label


def filled(text: str, width: int) -> str:
    r"""Sentences in lines of at most `width` characters, and of no more than 100, as longer ones are hard to read.

    >>> filled("Of 3 effects, 3 within noise.", 20)
    'Of 3 effects, 3\nwithin noise.'
    """
    return textwrap.fill(text, min(width, 100))


def markdown_text(text: str) -> str:
    r"""User text as one line of Markdown that says just that: no markup, no HTML, no heading, no list.

    >>> print(markdown_text("# a <b>\n- *c*"), markdown_text("1. d_e"))
    \# a \<b\> - \*c\* 1\. d\_e
    """
    line = re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", printable(" ".join(text.split())))
    line = re.sub(r"^(#|[-+=](?=[-=\s]|$))", r"\\\1", line)
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def printable(text: str) -> str:
    r"""User text with every control or unprintable character spelled out, safe for a terminal and for XML.

    >>> print(printable("cat\x1b[31m"), printable("a\nb"), printable("naïve 猫"))
    cat\x1b[31m a\nb naïve 猫
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def printable_unless_markup(value: object) -> object:
    """What a page shows of a value: drawings as they are, all else as printable text."""
    return value if hasattr(value, "__html__") else printable(str(value))


def one_line(text: str, limit: int = 300) -> str:
    r"""Text with its line breaks and control characters made spaces, shortened to `limit` characters.

    >>> one_line("a\n  b")
    'a b'
    """
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Names in quotes and commas, the first `limit` of them.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    quoted = [repr(one_line(name, 60)) for name in names]
    more = f" and {len(quoted) - limit} more" if len(quoted) > limit else ""
    return ", ".join(quoted[:limit]) + more


def quoted_if_odd(text: object) -> str:
    r"""A path or message unchanged, or quoted with escapes if it would break a line of a log.

    >>> print(quoted_if_odd("a b.png"), quoted_if_odd("a\nb.png"))
    a b.png 'a\nb.png'
    """
    plain = str(text)
    return plain if plain.isprintable() else repr(plain)
