"""Per-point results: the table, the graph of neighbors, and the measures beside LID."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix, load_npz
from scipy.stats import skew
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

import ldreg
from ldreg.dimension.spectrum import covariance_eigenvalues, rankme
from ldreg.inspection.points import neighbor_graph, points_table, write_graph, write_points


@pytest.fixture(scope="module")
def x() -> Tensor:
    """Points with two groups of equal rows: 3 and 7 and 11; 20 and 40."""
    x = torch.randn(400, 12, generator=torch.Generator().manual_seed(0))
    x[[7, 11]], x[40] = x[3].clone(), x[20].clone()
    return x


def test_the_table_has_a_row_for_each_point(x: Tensor) -> None:
    names = [f"p{i}" for i in range(400)]
    report = ldreg.inspect(x, labels=[i % 2 for i in range(400)], k=20)
    table = points_table(report, {"name": names, "row": range(400)})
    assert list(table) == [
        *("name", "row", "label", "lid", "standard_error", "kth_distance", "finding", "duplicate_group", "neighbor_of")
    ]
    assert table["row"].tolist() == list(range(400))
    assert table["name"].tolist() == names
    assert table["lid"].tolist() == report.lid.tolist()
    distances, indices = NearestNeighbors(n_neighbors=21).fit(x.double()).kneighbors(x.double())
    assert table["kth_distance"].to_numpy() == pytest.approx(distances[:, -1], rel=1e-6)
    counts = np.bincount(np.concatenate([near[near != i][:20] for i, near in enumerate(indices)]), minlength=400)
    assert (abs(table["neighbor_of"] - counts) <= 1).all()  # of equal rows, another may be named
    groups = table["duplicate_group"]
    assert groups.dropna().to_dict() == {3: 0, 7: 0, 11: 0, 20: 1, 40: 1}
    assert table["finding"][[3, 20]].tolist() == ["duplicates", "duplicates"]
    assert set(table["finding"].drop([3, 7, 11, 20, 40])) == {""}


def test_a_sample_names_the_rows_of_the_data(x: Tensor) -> None:
    report = ldreg.inspect(x, k=20, sample=50)
    table = points_table(report, {"number": np.arange(400) * 10})
    assert table["row"].tolist() == report.index.tolist()
    assert (table["number"] == 10 * table["row"]).all()
    assert len(report.to_frame()) == 50


def test_groups_of_one_kind_are_numbered() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 30, generator=source)
    for place in range(2):
        rows = slice(150 * place, 150 * (place + 1))
        x[rows] = torch.randn(150, 2, generator=source) @ torch.randn(2, 30, generator=source) + 40 * (place + 1)
    found = ldreg.inspect(x, k=32).to_frame()["finding"]
    assert set(found[:300]) == {"collapsed_group 1", "collapsed_group 2"}
    assert found[:150].nunique() == found[150:300].nunique() == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_tables_are_written_and_read_again(x: Tensor, tmp_path: Path, suffix: str) -> None:
    table = ldreg.inspect(x, k=20).to_frame()
    path = tmp_path / f"points{suffix}"
    write_points(table, path)
    if suffix == ".npy":
        read = pd.DataFrame(np.load(path))
        assert "finding" not in read
    else:
        read = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
        assert read["finding"].fillna("").tolist() == table["finding"].tolist()
    assert read["lid"].to_numpy() == pytest.approx(table["lid"].to_numpy())
    assert read["duplicate_group"].notna().sum() == 5


def test_the_graph_is_that_of_scikit_learn(x: Tensor, tmp_path: Path) -> None:
    x = x[41:]
    report = ldreg.inspect(x, k=10, keep_neighbors=True)
    write_graph(neighbor_graph(report), tmp_path / "graph.npz")
    graph = csr_matrix(load_npz(tmp_path / "graph.npz"))
    expected = NearestNeighbors(n_neighbors=10).fit(x.double()).kneighbors_graph(mode="distance").tocsr()
    assert graph.shape == expected.shape
    assert (graph.indices == expected.indices).all()
    assert graph.data == pytest.approx(expected.data, rel=1e-6)


def test_a_graph_needs_the_neighbors_of_all_points(x: Tensor) -> None:
    for options in ({}, {"keep_neighbors": True, "sample": 20}):
        with pytest.raises(ValueError, match=r"^report: expected .*, got "):
            neighbor_graph(ldreg.inspect(x, k=10, **options))  # type: ignore[arg-type]  # of a dictionary


def test_the_measures_are_those_of_the_functions(x: Tensor) -> None:
    found = ldreg.inspect(x, k=20).measures
    values = covariance_eigenvalues(x)
    counts = ldreg.inspect(x, k=20).neighbor_of.numpy()
    assert found["rankme"] == pytest.approx(rankme(x).item())
    assert found["participation_ratio"] == pytest.approx((values.sum() ** 2 / values.square().sum()).item())
    assert found["nesum"] == pytest.approx((values.sum() / values[0]).item())
    assert 0 < found["alpha_req"] < 1 > found["alpha_req_r2"] > 0
    assert -4 < found["uniformity"] < -2
    assert found["hubness"] == pytest.approx(skew(counts))
    assert found["antihubs"] == (counts == 0).mean()
    assert [scale["neighbor"] for scale in found["gride"]] == [2, 4, 8, 16]
    assert all(8 < scale["dimension"] < 14 for scale in found["gride"])
    assert found["duplicates"] == {"points": 5, "groups": 2}
    sampled = ldreg.inspect(x, k=20, sample=50).measures
    assert sampled["hubness"] is sampled["antihubs"] is None


def test_measures_are_defined_where_all_rows_are_equal() -> None:
    found = ldreg.inspect(torch.ones(100, 4), k=10)
    assert found.measures["participation_ratio"] == found.measures["nesum"] == 0
    assert math.isnan(found.measures["gride"][0]["dimension"])
    assert found.to_dict()["measures"]["alpha_req"] is None
    assert found.to_frame()["duplicate_group"].nunique() == 1
