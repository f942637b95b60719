"""What every odd input gets from each function: the table of docs/reliability.md, with its rows executed."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.points import normal
from tests.properties.conftest import QUANTUM, WAYS, Array, Way, brute_force, inverse_lid
from torch import Tensor

from ldreg import LDReg, effective_rank, inspect, lid, neighbor_distances
from ldreg.inspection import measure

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"

# "float64": the answer of float64 brute force, to rounding. "`x`": a ValueError that names that argument.
TABLE = re.findall(r"^\|.*\|$", DOCUMENT.read_text().partition("\n| input |")[2].partition("\n\n")[0], re.MULTILINE)


def with_entry(value: float) -> Tensor:
    x = normal(20, 3)
    x[4, 1] = value
    return x


class Odd(NamedTuple):
    """Arguments of all functions."""

    x: Any
    k: Any = 5
    reference: Any = None
    self_index: Any = None


# Of several inputs in a row, each gets what the row says.
ROWS: dict[str, Callable[[], list[Odd]]] = {
    "float32 at scales 1e-30 and 1e30": lambda: [Odd(normal(20, 3) * scale) for scale in (1e-30, 1e30)],
    "float32 offset by 1000 times its spread": lambda: [Odd(normal(20, 3) + 1000)],
    "float64, float16, bfloat16, float8": lambda: [
        Odd(normal(20, 3).to(dtype))
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    ],
    "whole numbers of any width": lambda: [
        Odd((30 * normal(20, 8)).abs().to(dtype))
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64)
    ],
    "whole numbers from 2^53 on": lambda: [
        Odd((torch.arange(60).view(20, 3) + 2**60).to(dtype)) for dtype in (torch.int64, torch.uint64)
    ],
    "NumPy arrays, nested lists": lambda: [Odd(normal(20, 3).numpy()), Odd(normal(20, 3).tolist())],
    "not contiguous": lambda: [Odd(normal(6, 40).T[::2, ::2]), Odd(normal(3, 20).T)],
    "NumPy arrays that run backwards, or big-endian": lambda: [
        Odd(normal(20, 3).numpy()[::-1]),
        Odd(normal(20, 3).numpy().astype(">f4")),
    ],
    "NaN, inf, -inf": lambda: [Odd(with_entry(value)) for value in (math.nan, math.inf, -math.inf)],
    "distances beyond the largest float32": lambda: [Odd(with_entry(3e38))],
    "complex numbers": lambda: [Odd(normal(20, 3) + 1j)],
    "text, None, ragged lists": lambda: [Odd("abc"), Odd(None), Odd([[1.0, 2.0], [3.0]])],
    "sparse tensors": lambda: [Odd(normal(20, 3).to_sparse())],
    "one axis, or three": lambda: [Odd(normal(20)), Odd(normal(20, 3, 2))],
    "no rows, or no columns": lambda: [Odd(normal(0, 3)), Odd(normal(20, 0))],
    "one row": lambda: [Odd(normal(1, 3))],
    "all rows the same": lambda: [Odd(torch.full((20, 3), 0.1)), Odd(torch.zeros(20, 3))],
    "8 of 20 rows the same": lambda: [Odd(torch.cat((normal(12, 3) + 9, torch.zeros(8, 3))))],
    "each row twice": lambda: [Odd(normal(10, 3).repeat(2, 1))],
    "two rows the same": lambda: [Odd(normal(19, 3)[[0, *range(19)]])],
    "rows 1e-6 from each other": lambda: [Odd(torch.cat((normal(10, 3), normal(10, 3) * (1 + 1e-6))))],
    "one-hot, each more than k times": lambda: [Odd(torch.eye(3)[torch.arange(20) % 3])],
    "one-hot, each once": lambda: [Odd(torch.eye(20)), Odd(1e30 * torch.eye(20))],
    "k = 1": lambda: [Odd(normal(20, 3), 1)],
    "k = N - 1": lambda: [Odd(normal(20, 3), 19)],
    "k = N and more": lambda: [Odd(normal(20, 3), k) for k in (20, 10**30)],
    "k = 0, -1, 2.5, True, None": lambda: [Odd(normal(20, 3), k) for k in (0, -1, 2.5, True, None)],
    "NaN in the reference": lambda: [Odd(normal(20, 3), 5, with_entry(math.nan))],
    "a reference of another width": lambda: [Odd(normal(20, 3), 5, normal(20, 4))],
    "`self_index` that is no row": lambda: [
        Odd(normal(20, 3), 5, normal(20, 3), torch.full((20,), index)) for index in (20, -2)
    ],
    "`self_index` without a reference": lambda: [Odd(normal(20, 3), 5, None, torch.arange(20))],
}


def wide(values: Any) -> Array:
    numpy = values if isinstance(values, np.ndarray) else torch.as_tensor(values).double().numpy()
    return numpy.astype(np.float64)


def kinds(values: Tensor, exact: Array) -> str:
    """Which kinds of values there are: 0, inf, and "float64" for those that are right to rounding."""
    found = wide(values).ravel()
    close = np.isclose(found, exact.ravel(), rtol=1e-4, atol=0)
    special = {0.0: "0", math.inf: "inf"}
    named = (special.get(each, "float64") if right else "wrong" for each, right in zip(found, close, strict=True))
    return " / ".join(sorted(set(named)))


def exact_lid(odd: Odd, way: Way) -> Array:
    x = wide(odd.x)
    with np.errstate(divide="ignore"):
        exact: Array = 1 / inverse_lid(brute_force(x, odd.k), way, x, x)
    return exact


def of_distances(odd: Odd) -> str:
    if odd.self_index is not None:
        return "–"
    found = neighbor_distances(odd.x, odd.k, odd.reference)
    return kinds(found, brute_force(wide(odd.x), odd.k).distances)


def of_lid(odd: Odd) -> str:
    cells = {}
    ways: tuple[Way, ...] = ("mom", "mle", "tle")
    for way in ways:
        values = lid(odd.x, odd.k, odd.reference, self_index=odd.self_index, **WAYS[way])
        cells[way] = kinds(values, exact_lid(odd, way))
    if len(set(cells.values())) == 1:
        return cells["mom"]
    return ", ".join(f"{cell} ({way})" for way, cell in cells.items())


def of_ldreg(odd: Odd) -> str:
    differentiable = isinstance(odd.x, Tensor) and odd.x.is_floating_point()
    given = odd.x.clone().requires_grad_() if differentiable else odd.x
    value = LDReg(k=odd.k, beta=1.0)(given, odd.reference, self_index=odd.self_index)
    if differentiable:
        value.backward()
        assert given.grad is not None
        assert torch.isfinite(given.grad.float()).all()
    exact = exact_lid(odd, "mom")
    regular = exact[np.isfinite(exact) & (exact > 0)]
    if not len(regular):
        assert value == 0
        return "0, no gradient"
    return "float64" if value.item() == pytest.approx(-np.log(regular).mean(), rel=1e-4) else "wrong"


def of_rank(odd: Odd) -> str:
    if odd.reference is not None or odd.self_index is not None:
        return "–"
    found, x = effective_rank(odd.x).item(), wide(odd.x)
    moved = x - x[0]
    if not moved.any():
        return f"{found:g}"
    moved = moved / np.abs(moved).max()
    shares = np.linalg.svd(moved - moved.mean(0), compute_uv=False) ** 2
    shares = shares[shares > 0] / shares.sum()
    return "float64" if found == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-9) else "wrong"


def of_inspect(odd: Odd) -> str:
    if odd.reference is not None or odd.self_index is not None:
        return "–"
    report = inspect(odd.x, k=odd.k, device="cpu")
    exact = exact_lid(odd, "mom")
    regular = exact[np.isfinite(exact) & (exact > 0)]
    assert (report.zero, report.infinite) == ((exact == 0).sum(), np.isinf(exact).sum())
    counted = "".join(f", {n} counted as {name}" for n, name in ((report.zero, "0"), (report.infinite, "inf")) if n)
    if not len(regular):
        assert math.isnan(report.mean.value)
        return f"mean NaN{counted}"
    right = report.mean.value == pytest.approx(np.exp(np.log(regular).mean()), rel=1e-4)
    return f"float64{counted}" if right else "wrong"


COLUMNS: dict[str, Callable[[Odd], str]] = {
    "`neighbor_distances`": of_distances,
    "`lid`": of_lid,
    "`LDReg`": of_ldreg,
    "`effective_rank`": of_rank,
    "`inspect`": of_inspect,
}


def cell(function: Callable[[Odd], str], odd: Odd) -> str:
    try:
        return function(odd)
    except ValueError as error:
        name = re.match(r"\w+", str(error))
        assert name
        return f"`{name.group()}`"


def row(name: str) -> str:
    """The line of the table, from what the functions give."""
    odd = ROWS[name]()
    cells = [{cell(function, each) for each in odd} for function in COLUMNS.values()]
    return f"| {name} | " + " | ".join(" or ".join(sorted(each)) for each in cells) + " |"


@pytest.fixture(autouse=True)
def _quick_danco(monkeypatch: pytest.MonkeyPatch) -> None:
    """DANCo has tests of its own."""
    monkeypatch.setattr(measure, "danco", lambda x, *, seed: float(len(x)))


@pytest.mark.parametrize("name", ROWS)
def test_every_odd_input_gets_what_the_table_says(name: str) -> None:
    assert row(name) in TABLE


def test_the_table_has_no_other_rows() -> None:
    assert f"\n| input | {' | '.join(COLUMNS)} |\n" in DOCUMENT.read_text()
    assert [line.split(" | ")[0].removeprefix("| ") for line in TABLE[1:]] == list(ROWS)
    assert "wrong" not in "".join(TABLE)


def test_distances_under_the_normal_numbers_of_float32_are_rounded_to_multiples_of_its_least() -> None:
    """And LID with them: at 1e-40 it is right to a thousandth, at 1e-44 it is not."""
    for scale in (1e-38, 1e-40, 1e-44):
        x = normal(20, 3) * scale
        found = neighbor_distances(x, 5).double().numpy()
        assert np.abs(found - brute_force(wide(x), 5).distances).max() <= QUANTUM
    x = normal(20, 3) * 1e-40
    for way in ("mom", "mle"):
        torch.testing.assert_close(lid(x, 5, **WAYS[way]).double(), lid(x.double(), 5, **WAYS[way]), rtol=1e-3, atol=0)
    assert torch.isfinite(lid(x.double() * 1e-4, 5)).all()


def test_gradients_in_float16_overflow_where_those_in_float32_do_not_fit() -> None:
    x = (normal(20, 3) * 1e-6).half()
    wide, narrow = x.float().requires_grad_(), x.clone().requires_grad_()
    for each in (wide, narrow):
        LDReg(k=5, beta=1.0)(each).backward()
    assert wide.grad is not None
    assert narrow.grad is not None
    assert torch.equal(narrow.grad, wide.grad.half())


def test_what_has_no_plain_numbers_is_refused_by_name() -> None:
    masked = np.ma.masked_array(np.ones((9, 3)), mask=np.eye(9, 3, dtype=bool))
    with_k: list[Callable[..., object]] = [lid, neighbor_distances, inspect]
    functions: list[Callable[..., object]] = [LDReg(k=2), effective_rank, *(partial(each, k=2) for each in with_k)]
    for x, word in ((masked, "a masked array"), (torch.ones(9, 3, device="meta"), "meta")):
        for function in functions:
            with pytest.raises(ValueError, match=rf"^(x|representations): expected .*{word}"):
                function(x)
    for k in (torch.tensor(True), torch.tensor(2, device="meta"), np.bool_(True)):
        for function in with_k:
            with pytest.raises(ValueError, match=r"^k: expected an integer"):
                function(normal(9, 3), k=k)
