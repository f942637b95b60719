"""Candidates on the tensor cores: on the CPU through Triton's interpreter, and on a CUDA device.

The interpreter must be asked for before Triton is imported, so this file also runs as a script in a process of its own.
"""

import secrets
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.interpreter import needs_interpreter, run_interpreted
from tests.points import normal
from torch import Tensor

from ldreg.dimension import search as details
from ldreg.dimension.candidates import Frame, Query
from ldreg.dimension.cuda import nearest
from ldreg.dimension.cuda.nearest import Halves
from ldreg.dimension.neighbors import neighbors
from ldreg.dimension.search import first_pass


class Case(NamedTuple):
    """Rows, how many neighbors, where to look for them, and which of those each row is."""

    x: Tensor
    k: int
    reference: Tensor | None = None
    self_index: Tensor | None = None


class Outcome(NamedTuple):
    """What the whole search found, and for which rows the tensor cores alone could prove it."""

    distances: Tensor
    indices: Tensor
    proven: Tensor


def momentum() -> Case:
    both = normal(61, 9, seed=1)
    own = torch.arange(13) + 20
    own[::4] = -1
    return Case(both[20:33], 6, both, own)


def clusters(narrow: float) -> Tensor:
    """Points around three centers, those of one center after the other as in a folder of classes."""
    return normal(3, 6, seed=3).repeat_interleave(26, 0) + narrow * normal(78, 6, seed=4)


CASES: dict[str, Callable[[], Case]] = {
    "awkward": lambda: Case(normal(67, 37), 5),
    "another reference": lambda: Case(normal(9, 17), 7, normal(83, 17, seed=2)),
    "momentum": momentum,
    "offset": lambda: Case(normal(53, 20) * 0.01 + 300, 4),
    "doubled": lambda: Case(normal(29, 3).repeat(2, 1), 5),
    "constant": lambda: Case(torch.full((40, 3), 0.1), 4),
    "in order": lambda: Case(clusters(0.3), 3),
    "too narrow": lambda: Case(clusters(1e-6), 3),
    "all candidates": lambda: Case(normal(21, 6), 20),
    "bfloat16": lambda: Case(normal(45, 24).bfloat16(), 3),
}

MORE: dict[str, Callable[[], Case]] = {
    "two columns": lambda: Case(normal(90, 2), 3),
    "one column": lambda: Case(normal(60, 1), 3),
    "one-hot": lambda: Case(torch.eye(6)[torch.arange(60) % 6], 5),
    "simplex": lambda: Case(torch.eye(45), 4),
    "1e-30": lambda: Case(normal(45, 6) * 1e-30, 3),
    "1e30": lambda: Case(normal(45, 6) * 1e30, 3),
    "far outlier": lambda: Case(torch.cat((normal(50, 5), torch.full((1, 5), 1e6))), 3),
    "float16": lambda: Case(normal(45, 24).half(), 3, normal(70, 24, seed=9)),
    "many neighbors": lambda: Case(normal(3, 5), 512, normal(900, 5, seed=5)),
    "8192 columns": lambda: Case(normal(3, 8192), 3, normal(40, 8192, seed=6)),
    "no columns in common": lambda: Case(normal(40, 130).triu(), 3),
    "float16 underflows": lambda: Case(normal(60, 4) * torch.tensor([1.0, 1e-3, 1e-6, 1e-9]), 3),
}


def fresh(seed: int) -> Case:
    """A case of random size, dimension, k, offset and scale."""
    draw = torch.Generator().manual_seed(seed)
    n, m, dim = (int(torch.randint(1, high, (), generator=draw)) for high in (40, 120, 70))
    k = int(torch.randint(1, min(m, 12) + 1, (), generator=draw))
    scale = 10.0 ** float(torch.randint(-8, 9, (), generator=draw))
    offset = 10.0 ** float(torch.randint(-2, 4, (), generator=draw))
    points = (torch.randn(n + m, dim, generator=draw) + offset) * scale
    return Case(points[:n], k, points[n:])


def search(case: Case) -> Outcome:
    """Neighbors by way of the tensor cores, whatever the size and device."""
    proofs: list[Tensor] = []

    def watched(query: Query, progress: object = None) -> tuple[details.Neighbors, Tensor]:
        found, proven = first_pass(query)
        proofs.append(proven.clone())
        return found, proven

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "PATH", "screen")
        patch.setattr(details, "first_pass", watched)
        found = neighbors(case.x, case.k, case.reference, self_index=case.self_index)
    return Outcome(found.distances.cpu(), found.indices.cpu(), proofs[0].cpu())


def check(case: Case, got: Outcome, name: str) -> None:
    """Distances are those of float64, and so are the distances of the rows that the indices name."""
    x = case.x.double()
    reference = x if case.reference is None else case.reference.double()
    distances = torch.cdist(x, reference, compute_mode="donot_use_mm_for_euclid_dist")
    own = torch.arange(len(x)) if case.reference is None else case.self_index
    if own is not None:
        rows = (own >= 0).nonzero().squeeze(1)
        distances[rows, own[rows]] = torch.inf
    expected = distances.sort(1).values[:, : case.k]
    assert torch.equal(got.distances, got.distances.sort(1).values), name
    torch.testing.assert_close(got.distances.double(), expected, rtol=2e-6, atol=0, msg=lambda m: f"{name}: {m}")
    named = distances.gather(1, got.indices)
    torch.testing.assert_close(named, expected, rtol=2e-6, atol=0, msg=lambda m: f"{name}: {m}")
    assert (got.indices.sort(1).values.diff(dim=1) > 0).all(), f"{name}: a row is its neighbor twice"


def interpreted(names: Iterable[str], folder: Path, *, room: int = 8) -> list[Outcome]:
    """Outcomes of cases, named or fresh ones by their seed, from a process in which Triton interprets its kernels."""
    run_interpreted(__file__, str(folder / "outcomes.pt"), str(room), *names)
    return [Outcome(*saved) for saved in torch.load(folder / "outcomes.pt")]


def main(out: str, room: str, *names: str) -> None:
    from ldreg.dimension.cuda import nearest_kernels

    # Small blocks and stretches, so that small cases have several.
    nearest_kernels.TILES = nearest_kernels.Tiles(16, 128, 16, 1, 1, 2)
    nearest.WALK = nearest.Walk(24, 2.0, 1)
    nearest.ROOM = int(room)
    torch.save([tuple(search(case(name))) for name in names], out)


def case(name: str) -> Case:
    return fresh(int(name)) if name.isdecimal() else (CASES | MORE)[name]()


@needs_interpreter
def test_interpreted_search_is_exact(tmp_path: Path) -> None:
    outcomes = dict(zip(CASES, interpreted(CASES, tmp_path), strict=True))
    for name, got in outcomes.items():
        check(CASES[name](), got, name)
    for name in ("awkward", "another reference", "momentum", "in order", "all candidates", "bfloat16"):
        assert outcomes[name].proven.all(), name
    assert not outcomes["too narrow"].proven.any()
    (overrun,) = interpreted(["awkward"], tmp_path, room=1)  # a list that ran over proves nothing
    check(CASES["awkward"](), overrun, "awkward")
    assert not overrun.proven.all()


@needs_interpreter
@pytest.mark.slow
def test_interpreted_search_is_exact_on_more_cases(tmp_path: Path) -> None:
    names = [*MORE, *(str(secrets.randbelow(2**31)) for _ in range(12))]
    for name, got in zip(names, interpreted(names, tmp_path), strict=True):
        check(case(name), got, name)


def halved(x: Tensor, depth: int) -> Halves:
    """What the kernels make of rows in the range of float16, in plain torch."""
    rows = torch.zeros(len(x), depth, dtype=torch.float16)
    rows[:, : x.shape[1]] = x.half()
    norms = rows.double().square().sum(1).div(2).float()
    rounding = (x - x.half().float()).norm(dim=1)
    return Halves(rows, norms, rounding, torch.stack((norms.max(), rounding.max())))


@pytest.mark.parametrize(("dim", "scale"), [(2, 1.0), (40, 100.0), (700, 300.0), (64, 1e-3)])
def test_no_row_left_out_is_nearer_than_the_bound(dim: int, scale: float) -> None:
    """Whatever the threshold, the bound lies under the true distance of every row whose score reaches it."""
    x = normal(300, dim, seed=dim) * scale
    x[250:] *= 20
    halves = halved(x, 64 * -(-dim // 64))
    scores = halves.norms - halves.rows.float() @ halves.rows.float().T
    distances = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    close = 0.0
    for quantile in (0.05, 0.3, 0.9):
        thresholds = scores.quantile(quantile, dim=1)
        bound = (2 * nearest.half_bound(halves, halves, thresholds)).sqrt()
        nearest_left = torch.where(scores >= thresholds.unsqueeze(1), distances, torch.inf).amin(1)
        assert (bound <= nearest_left).all()
        close = max(close, float((bound / nearest_left).median()))
    assert close > 0.9  # a bound of 0 would be true as well
    everything = nearest.half_bound(halves, halves, torch.full((300,), torch.inf))
    nothing = nearest.half_bound(halves, halves, torch.full((300,), -torch.inf))
    assert torch.isinf(everything).all()
    assert not nothing.any()


def supported(x: Tensor, reference: Tensor | None = None, k: int = 64) -> bool:
    return nearest.supports(Query(x, reference, None, k, Frame(x.new_zeros(x.shape[1]), 1.0), torch.float32, 1 << 20))


def test_products_are_used_on_the_cpu_in_float64_and_for_many_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not supported(torch.zeros(5000, 2))
    monkeypatch.setattr(nearest, "PATH", "screen")
    assert supported(torch.zeros(500, 2))
    assert not supported(torch.zeros(500, 2).double())
    assert not supported(torch.zeros(500, 2), torch.zeros(500, 2).double())
    assert not supported(torch.zeros(5000, 2), k=1500)


@pytest.mark.parametrize(
    ("missing", "attribute", "value"),
    [
        ("the package triton", "importlib.util.find_spec", lambda name: None),
        ("compute capability 8.0", "torch.cuda.get_device_capability", lambda device: (7, 5)),
        ("an NVIDIA device", "torch.version.hip", "6.0"),
    ],
)
def test_what_the_kernels_miss_is_said_once(
    missing: str, attribute: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribute, value)
    device = torch.device("cuda")
    nearest.can_launch.cache_clear()
    try:
        with pytest.warns(UserWarning, match=missing):
            assert not nearest.can_launch(device, nearest.CAPABILITY)
        assert not nearest.can_launch(device, nearest.CAPABILITY)  # a second warning would be an error
    finally:
        nearest.can_launch.cache_clear()


def on_cuda(case: Case) -> Case:
    x, k, reference, self_index = case
    moved = [None if tensor is None else tensor.cuda() for tensor in (reference, self_index)]
    return Case(x.cuda(), k, *moved)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, *MORE, *(f"fresh {attempt}" for attempt in range(20))])
def test_cuda_search_is_exact(name: str) -> None:
    name = str(secrets.randbelow(2**31)) if name.startswith("fresh") else name
    check(case(name), search(on_cuda(case(name))), name)


LARGE: dict[str, Callable[[], Case]] = {
    "normal": lambda: Case(normal(20_000, 2048), 64),
    "offset": lambda: Case(normal(20_000, 512) * 0.02 + 31, 64),
    "flat": lambda: Case(normal(20_000, 20) @ normal(20, 1024, seed=1), 64),
    "many neighbors": lambda: Case(normal(3000, 64), 512, normal(30_000, 64, seed=1)),
    "wide": lambda: Case(normal(4000, 8192), 64),
    "plane": lambda: Case(normal(100_000, 2), 20),
    "in order": lambda: Case(normal(100, 256).repeat_interleave(300, 0) + 0.3 * normal(30_000, 256, seed=2), 100),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_cuda_search_is_exact_at_real_sizes(name: str) -> None:
    """Of a few hundred rows, in float64; nearly all are proven without a second search."""
    case = on_cuda(LARGE[name]())
    got = search(case)
    some = torch.arange(0, len(case.x), max(1, len(case.x) // 200), device="cuda")
    rows = case.x if case.reference is None else case.reference
    distances = torch.stack([(rows.double() - case.x[row].double()).norm(dim=1) for row in some])
    if case.reference is None:
        distances[torch.arange(len(some)), some] = torch.inf
    expected = distances.sort(1).values[:, : case.k].cpu()
    torch.testing.assert_close(got.distances[some.cpu()].double(), expected, rtol=1e-6, atol=0)
    assert got.proven.float().mean() > 0.95


if __name__ == "__main__":
    main(*sys.argv[1:])
