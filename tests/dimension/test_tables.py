"""Tables of pandas and Arrow in place of tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ldreg

X: Any = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
COLUMNS = pd.DataFrame(X, columns=list("abcd"))
LISTS = pd.DataFrame({"e": list(X)})


@pytest.mark.parametrize(
    "table",
    [
        *(COLUMNS, LISTS, LISTS["e"], COLUMNS.astype("Float32"), COLUMNS.astype("float32[pyarrow]")),
        *(pa.table(COLUMNS), pa.table(LISTS), pa.array(list(X)), pa.chunked_array([list(X[:9]), list(X[9:])])),
        pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4),
    ],
    ids=str,
)
def test_tables_are_measured_as_arrays(table: Any) -> None:
    assert ldreg.lid(table, k=8).tolist() == pytest.approx(ldreg.lid(X, k=8).tolist())
    assert ldreg.inspect(table, k=8).mean.value == pytest.approx(ldreg.inspect(X, k=8).mean.value)
    assert ldreg.effective_rank(table).item() == pytest.approx(ldreg.effective_rank(X).item())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: COLUMNS.assign(kind="cat", when=None), "got other values in kind, when"),
        (lambda: pd.DataFrame({"e": [[1, 2], [3]] * 20}), "lists of one length"),
        (lambda: pd.Series([[1.0, 2.0], [3.0]] * 20), "lists of one length"),
        (lambda: pd.Series([[1.0, 2.0], None] * 20), "lists of one length"),
        (lambda: COLUMNS.astype(str), "got other values in a, b, c, d"),
        (lambda: pd.DataFrame(), r"shape \(0, 0\)"),
        (lambda: COLUMNS.astype("Float32").mask(COLUMNS > 2), "NaN or inf in"),
        (lambda: pa.schema([("a", pa.float32())]), "numbers"),
        (lambda: pa.array([None, [1.0, 2.0]] * 20, pa.list_(pa.float32(), 2)), "lists of one length"),
    ],
)
def test_other_tables_are_refused(make: Callable[[], pd.DataFrame], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^x: expected .*{named}"):
        ldreg.lid(make(), k=3)
