"""Maps by t-SNE and UMAP: neighborhoods are kept, the same seed gives the same map, odd sets have one too."""

import sys

import pytest
import torch
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

import ldreg
from ldreg.inspection import maps
from ldreg.inspection.maps import Map, laid_out
from ldreg.inspection.measure import principal_plane

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def x() -> Tensor:
    """Points around the corners of a simplex in nine dimensions."""
    return 4 * torch.eye(9).repeat(20, 1) + torch.randn(180, 9, generator=torch.Generator().manual_seed(0)) / 2


def map_of(x: Tensor, kind: Map = "tsne", seed: int = 0) -> Tensor:
    assert kind != "pca"
    rows = torch.arange(len(x))
    return laid_out(x, rows, principal_plane(x, rows), kind, seed, device=CPU)


def kept(x: Tensor, flat: Tensor) -> float:
    """The share of the five nearest neighbors that are among the five on the map."""
    near, close = (NearestNeighbors(n_neighbors=5).fit(y).kneighbors(return_distance=False) for y in (x, flat))
    shared = [len(set(a) & set(b)) for a, b in zip(near.tolist(), close.tolist(), strict=True)]
    return sum(shared) / 5 / len(x)


def test_tsne_keeps_neighborhoods_as_scikit_learn_does_from_the_rows(x: Tensor) -> None:
    own = kept(x, map_of(x))
    from_rows = TSNE(perplexity=30, random_state=0).fit_transform(x.numpy())
    assert own > kept(x, torch.from_numpy(from_rows)) - 0.05
    assert own > 2 * kept(x, principal_plane(x, torch.arange(180)))


@pytest.mark.parametrize("kind", ["tsne", pytest.param("umap", marks=pytest.mark.slow)])
def test_the_seed_alone_decides(x: Tensor, kind: Map) -> None:
    pytest.importorskip("umap" if kind == "umap" else "sklearn")
    map_of(x, kind)  # where UMAP's compiler starts, it changes the threads of torch, and so the last digits
    first, again, other = map_of(x, kind), map_of(x, kind), map_of(x, kind, seed=2**33 + 1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert kept(x, first) > 1.5 * kept(x, principal_plane(x, torch.arange(180)))


@pytest.mark.parametrize("kind", ["tsne", pytest.param("umap", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "odd", [torch.zeros(50, 5), torch.arange(6.0)[:, None], torch.eye(30), 1e-20 * torch.eye(9), 1e18 * torch.eye(9)]
)
def test_odd_sets_have_a_map(odd: Tensor, kind: Map) -> None:
    pytest.importorskip("umap" if kind == "umap" else "sklearn")
    assert map_of(odd, kind).isfinite().all()


def test_few_points_stay_on_the_principal_axes() -> None:
    x = torch.eye(4)
    assert torch.equal(map_of(x), principal_plane(x, torch.arange(4)))


def test_of_many_points_a_sample_is_laid_out(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(maps.MOST_MAPPED, "tsne", 50)
    flat = map_of(x)
    placed = flat.isfinite().all(1)
    assert placed.sum() == 50
    assert flat[~placed].isnan().all()
    assert kept(x[placed], flat[placed]) > 0.4


@pytest.mark.usefixtures("quick_danco")
def test_the_report_has_the_map_and_the_same_numbers(x: Tensor) -> None:
    plain, flat = ldreg.inspect(x, k=10), ldreg.inspect(x, k=10, map="tsne", sample=60)
    assert (plain.map, flat.map) == ("pca", "tsne")
    rows = flat.index
    assert torch.equal(flat.lid, plain.lid[rows])
    assert torch.equal(flat.coordinates, laid_out(x, rows, principal_plane(x, rows), "tsne", 0, device=CPU))


def test_what_is_not_there_is_refused(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"map: expected pca, tsne or umap, got 'mds'"):
        ldreg.inspect(x, k=10, map="mds")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ModuleNotFoundError) as error:
        ldreg.inspect(x, k=10, map="umap")
    assert error.value.name == "umap"
