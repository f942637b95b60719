"""A sample of shards is measured as the same rows in memory are, also after an interruption."""

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ldreg.cli import main
from ldreg.inspection import streamed
from ldreg.inspection.measure import inspect
from ldreg.inspection.report import DimensionReport
from ldreg.io import shards
from ldreg.io.shards import Block, Shards, open_shards

CUTS = [0, 1, 6, 400, 401, 1500]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_BLOCK_BYTES", 170 * 16 * 4)
    monkeypatch.setattr(streamed, "_SAVED_EVERY", -1.0)


def gaussian(n: int = 1500, d: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) @ torch.eye(d) + 5


def sharded(x: Tensor, folder: Path) -> Shards:
    folder.mkdir()
    for i, (first, last) in enumerate(pairwise(CUTS)):
        np.save(folder / f"{i}.npy", x[first:last].numpy())
    return open_shards(str(folder))


def assert_equal(found: DimensionReport, expected: DimensionReport, *, tied: bool = False) -> None:
    """The same report to rounding. Of rows that tie for a place, others may be named."""
    for field in fields(DimensionReport):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name in ("lid", "standard_error", "kth_distance", "nearest_distance", "coordinates"):
            torch.testing.assert_close(one, other, rtol=2e-6, atol=0, msg=field.name, equal_nan=True)
        elif tied and field.name in ("mean", "nearest", "neighbor_of", "measures", "neighbors"):
            continue
        elif isinstance(one, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=field.name)
        elif field.name == "comparison":
            assert (one is None) == (other is None)
            if one is not None:
                assert_equal(one.other, other.other, tied=tied)
    ours, theirs = (json.dumps(one.to_dict()["findings"]) for one in (found, expected))
    assert tied or ours == theirs
    for name in ("effective_rank", "rankme", "arithmetic_mean"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-7)
    assert found.mean.value == pytest.approx(expected.mean.value, rel=1e-6)


@pytest.mark.parametrize(
    ("sample", "k", "dtype"),
    [(100, 20, torch.float16), (9999, 20, torch.float32), (1500, 20, torch.float64), (3, 450, torch.float32)],
)
def test_a_sample_is_measured_as_in_memory(sample: int, k: int, dtype: torch.dtype, tmp_path: Path) -> None:
    x = gaussian().to(dtype)
    options: dict[str, Any] = {"k": k, "sample": sample, "keep_neighbors": True}
    found, expected = (inspect(one, **options) for one in (sharded(x, tmp_path / "x"), x))
    assert_equal(found, expected)
    exact = torch.cdist(x[found.index].double(), x.double())
    exact[torch.arange(len(found.index)), found.index] = math.inf
    assert found.neighbors is not None
    torch.testing.assert_close(
        found.neighbors.distances.double(), exact.sort(1).values[:, :k], rtol=1e-6, atol=1e-6
    )  # an independent reference


def test_ties_and_duplicates_have_the_same_distances(tmp_path: Path) -> None:
    x = gaussian(d=4).round()
    x[300:450] = x[0]
    found, expected = (inspect(one, k=32, sample=400) for one in (sharded(x, tmp_path / "x"), x))
    assert_equal(found, expected, tied=True)
    assert found.duplicated == expected.duplicated > 0


def test_a_reference_in_shards(tmp_path: Path) -> None:
    x, new = gaussian(), gaussian(60, seed=1)
    new[:5] = x[[0, 5, 399, 400, 1499]]
    there, own = sharded(x, tmp_path / "x"), gaussian(1500, seed=1)
    for one, other in ((new, new), (sharded(own, tmp_path / "own"), own)):
        assert_equal(*(inspect(a, k=12, reference=b, sample=40) for a, b in ((one, there), (other, x))))
    assert inspect(new, k=12, reference=there, sample=60).nearest[:5].tolist() == [0, 5, 399, 400, 1499]


def test_two_sets_in_shards_are_compared(tmp_path: Path) -> None:
    x, y = gaussian(), gaussian(seed=1) * torch.linspace(0, 1, 16)
    options: dict[str, Any] = {"k": 20, "sample": 500}
    found = inspect(sharded(x, tmp_path / "x"), compare=sharded(y, tmp_path / "y"), **options)
    assert_equal(found, inspect(x, compare=y, **options))


def test_without_a_sample_shards_are_loaded(tmp_path: Path) -> None:
    assert_equal(inspect(sharded(gaussian(), tmp_path / "x"), k=20), inspect(gaussian(), k=20))


@pytest.mark.parametrize("sample", [None, 1000])
@pytest.mark.parametrize("in_shards", [False, True])
def test_rows_with_nan_are_left_out(sample: int | None, in_shards: bool, tmp_path: Path) -> None:
    x = gaussian()
    wrong = [0, 5, 6, 400, 1499]
    x[wrong, 3] = torch.tensor([math.nan, math.inf, -math.inf, math.nan, math.nan])
    x[20:60] = x[19]
    kept = torch.tensor(np.delete(np.arange(1500), wrong))
    labels = [str(i % 3) for i in range(1500)]
    options: dict[str, Any] = {"k": 12, "sample": sample, "keep_neighbors": True}
    names = [f"row {i}" for i in range(1500)]
    given = sharded(x, tmp_path / "x") if in_shards else x
    with pytest.raises(ValueError, match=r"^x: .* 5 of 1500 rows \(from 0: 0, 5, 6, 400, 1499.*skip_nonfinite"):
        inspect(given, labels, names=names, **options)
    found = inspect(given, labels, names=names, skip_nonfinite=True, **options)
    expected = inspect(x[kept], [labels[i] for i in kept], names=[names[i] for i in kept], **options)
    assert (found.points, found.left_out, expected.left_out) == (1495, 5, 0)
    assert torch.equal(found.lid, expected.lid)
    assert torch.equal(found.index, kept[expected.index])
    assert (found.labels, found.names) == (expected.labels, expected.names)
    assert found.neighbors is not None
    near = torch.cdist(x[found.index].double(), x[found.neighbors.indices[:, 3]].double()).diagonal()
    torch.testing.assert_close(near.float(), found.neighbors.distances[:, 3], rtol=1e-5, atol=1e-5)
    for one, other in zip(found.findings, expected.findings, strict=True):
        assert one.rows == tuple(kept[list(other.rows)].tolist())
        assert one.examples == tuple(kept[list(other.examples)].tolist())
    assert [(one.index, one.name) for one in found.most_collapsed] == [
        (int(kept[one.index]), one.name) for one in expected.most_collapsed
    ]
    assert f"{found.left_out} rows with NaN or inf" in str(found)


def test_a_row_left_out_keeps_its_place_in_the_graph() -> None:
    from ldreg.inspection.points import neighbor_graph

    x = gaussian(40)
    x[7] = math.nan
    graph = neighbor_graph(inspect(x, k=5, skip_nonfinite=True, keep_neighbors=True))
    assert graph.shape == (40, 40)
    assert np.diff(graph.indptr).tolist() == [0 if i == 7 else 5 for i in range(40)]
    assert 7 not in graph.indices


def test_too_few_rows_left_are_an_error(tmp_path: Path) -> None:
    x = torch.full((1500, 16), math.nan)
    x[:20] = gaussian(20)
    for given in (x, sharded(x, tmp_path / "x")):
        with pytest.raises(ValueError, match="more points than k, which is 30, got 20"):
            inspect(given, k=30, sample=100, skip_nonfinite=True)


@pytest.mark.parametrize(("option", "value"), [("estimator", "tle"), ("resume", "state")])
def test_what_has_no_effect_is_refused(option: str, value: str, tmp_path: Path) -> None:
    given = sharded(gaussian(), tmp_path / "x") if option == "estimator" else gaussian()
    with pytest.raises(ValueError, match=f"^{option}: "):
        inspect(given, k=12, sample=50, **{option: value})  # type: ignore[arg-type]


def interrupted(x: Shards, after: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """Measure until some blocks were searched; the first rows of the blocks."""
    starts, blocks = list[int](), Shards.blocks

    def stopping(self: Shards, first: int = 0, last: int | None = None) -> Iterator[Block]:
        for block in blocks(self, first, last):
            starts.append(block.start)
            if len(starts) > after:
                raise KeyboardInterrupt
            yield block

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "blocks", stopping)
        with pytest.raises(KeyboardInterrupt):
            inspect(x, **options)
    return starts


def test_an_interrupted_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sharded(gaussian(), tmp_path / "x")
    state = tmp_path / "r.partial-x-0"
    options: dict[str, Any] = {"k": 20, "sample": 100, "resume": tmp_path / "r.partial"}
    expected = inspect(x, **options)
    assert not state.exists()
    interrupted(x, 14, monkeypatch, **options)  # nine blocks are looked at first
    assert state.exists()
    again = interrupted(x, 12, monkeypatch, **options)
    assert again[9] == 5 * 170
    assert_equal(inspect(x, **options), expected)
    assert not state.exists()
    interrupted(x, 14, monkeypatch, **options)
    assert_equal(inspect(x, **options | {"k": 21}), inspect(gaussian(), k=21, sample=100))  # another measurement
    np.save(state.with_suffix(".npy"), np.ones(3))
    state.with_suffix(".npy").rename(state)
    with pytest.raises(ValueError, match="expected the state of an earlier measurement"):
        inspect(x, **options)
    assert state.read_bytes().startswith(b"\x93NUMPY")


@pytest.mark.parametrize("how", ["folder", "pattern", "url", "reference"])
def test_no_output_replaces_a_shard(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sharded(gaussian(300), tmp_path / "parts")
    np.save("x.npy", gaussian(100).numpy())
    [target, *_] = sorted((tmp_path / "parts").iterdir())
    before = target.read_bytes()
    file = {"folder": "parts", "pattern": "parts/*", "url": f"file://{tmp_path}/parts", "reference": "x.npy"}[how]
    further = ["--reference", "parts/*.npy"] if how == "reference" else ["--sample", "50"]
    assert main(["inspect", file, "--k", "5", *further, "--json", str(target)]) == 2
    assert target.read_bytes() == before
