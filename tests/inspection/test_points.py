"""Per-point results: the table, the graph of neighbors, and the measures beside LID."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.sparse import csr_matrix, load_npz
from scipy.stats import skew
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from torch import Tensor

import ldreg
from ldreg.cli import main
from ldreg.dimension.quality import lidar
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
        *("name", "input_row", "row", "label", "lid", "standard_error", "kth_distance", "nearest", "nearest_distance"),
        *("finding", "duplicate_group", "neighbor_of"),
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
    table = points_table(report, {"number": range(0, 4000, 10)})
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


def with_self(graph: csr_matrix) -> tuple[Any, Any]:
    """Neighbors and distances (N, k + 1) of each point, itself first, as docs/howto/other-tools.md makes them."""
    rows = np.arange(graph.shape[0])
    near, far = (values.reshape(len(rows), -1) for values in (graph.indices, graph.data))
    return np.column_stack([rows, near]), np.column_stack([np.zeros(len(rows), far.dtype), far])


def test_scikit_learn_takes_the_graph(x: Tensor) -> None:
    graph = neighbor_graph(ldreg.inspect(x, k=10, keep_neighbors=True))
    near, far = with_self(graph)
    own = csr_matrix((far.ravel(), near.ravel(), range(0, near.size + 1, 11)), graph.shape)
    expected = LocalOutlierFactor(n_neighbors=10).fit(x.double()).negative_outlier_factor_
    found = LocalOutlierFactor(n_neighbors=10, metric="precomputed").fit(own).negative_outlier_factor_
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("default")
def test_umap_takes_the_graph(x: Tensor) -> None:
    umap = pytest.importorskip("umap")
    knn = with_self(neighbor_graph(ldreg.inspect(x[41:], k=10, keep_neighbors=True)))
    options = {"n_neighbors": 11, "random_state": 0, "n_jobs": 1, "n_epochs": 5}
    found, expected = (umap.UMAP(**options, **more).fit(x[41:].numpy()) for more in ({"precomputed_knn": knn}, {}))
    assert found.graph_.toarray() == pytest.approx(expected.graph_.toarray(), abs=1e-4)


def test_a_graph_needs_the_neighbors_of_all_points(x: Tensor) -> None:
    for options in ({}, {"keep_neighbors": True, "sample": 20}):
        with pytest.raises(ValueError, match=r"^report: expected .*, got "):
            neighbor_graph(ldreg.inspect(x, k=10, **options))  # type: ignore[arg-type]  # of a dictionary


def test_the_measures_are_those_of_the_functions(x: Tensor) -> None:
    found = ldreg.inspect(x, k=20).measures
    values = covariance_eigenvalues(x)
    counts = ldreg.inspect(x, k=20).to_frame()["neighbor_of"].to_numpy()
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


def test_views_have_alignment_and_lidar(
    x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    views = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    units = [value.double() / value.double().norm(dim=1, keepdim=True) for value in (x, views)]
    expected = {"alignment": (units[0] - units[1]).square().sum(1).mean().item(), "lidar": lidar([x, views]).item()}
    assert {name: ldreg.inspect(x, k=20, views=views).measures[name] for name in expected} == pytest.approx(expected)
    alone = ldreg.inspect(x, k=20).measures
    assert alone["alignment"] is alone["lidar"] is None
    spoiled = x.clone()
    spoiled[[3, 70]] = math.nan
    kept = [row for row in range(len(x)) if row not in (3, 70)]
    left = ldreg.inspect(spoiled, k=20, views=views, skip_nonfinite=True).measures["alignment"]
    assert left == pytest.approx((units[0] - units[1])[kept].square().sum(1).mean().item())
    for wrong in (views[:50], views[:, :5], views * math.nan):
        with pytest.raises(ValueError, match=r"^views: expected "):
            ldreg.inspect(x, k=20, views=wrong)

    np.savez("pairs.npz", a=x, b=views, c=views[:50])
    words = ["inspect", "pairs.npz", "--key", "a", "--k", "20"]
    assert main([*words, "--views", "pairs.npz", "--views-key", "b", "--json", "x.json"]) == 0
    printed = capsys.readouterr().out
    assert "Alignment" in printed
    assert "LiDAR" in printed
    written = json.loads(Path("x.json").read_text())["measures"]
    assert {name: written[name] for name in expected} == pytest.approx(expected)
    for given, named in (
        (["--views-key", "b"], "--views-key"),
        (["--views", "pairs.npz"], "--views-key"),
        (["--views", "pairs.npz", "--views-key", "c"], "pairs.npz"),
        (["--views", "pairs.npz", "--views-key", "b", "--json", "pairs.npz"], "pairs.npz"),
    ):
        assert main([*words, *given]) == 2
        assert named in capsys.readouterr().err


def test_lidar_of_large_numbers_is_not_known(x: Tensor) -> None:
    found = ldreg.inspect(1e160 * x.double(), k=20, views=1.1e160 * x.double()).measures
    assert found["lidar"] is None
    assert found["alignment"] == pytest.approx(0, abs=1e-9)


def test_measures_are_defined_where_all_rows_are_equal() -> None:
    found = ldreg.inspect(torch.ones(100, 4), k=10)
    assert found.measures["participation_ratio"] == found.measures["nesum"] == 0
    assert math.isnan(found.measures["gride"][0]["dimension"])
    assert found.to_dict()["measures"]["alpha_req"] is None
    assert found.to_frame()["duplicate_group"].nunique() == 1


def test_points_and_their_neighbors_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x: Any = np.random.default_rng(0).normal(size=(80, 4))
    x[50] = x[20]
    texts = [f"text {i}" for i in range(80)]
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"]).assign(text=texts, cls=["cat", "dog"] * 40)
    frame.to_parquet("x.parquet")
    words = ["x.parquet", "--label-key", "cls", "--k", "16", "--points", "p.parquet", "--neighbors", "n.npz"]
    assert main(["inspect", *words]) == 0
    said = capsys.readouterr().err
    assert "'text'" in said
    points = pd.read_parquet("p.parquet")
    assert points["text"].tolist() == texts
    assert "name" not in points
    assert points["label"].tolist() == ["cat", "dog"] * 40
    assert points["duplicate_group"].dropna().to_dict() == {20: 0, 50: 0}
    assert points["lid"].to_numpy() == pytest.approx(ldreg.lid(x.astype("float32"), k=16).numpy(), rel=1e-4)
    graph = load_npz("n.npz")
    assert (graph.shape, graph.nnz) == ((80, 80), 80 * 16)
    frame.to_csv("x.csv", index=False)
    assert main(["inspect", "x.csv", "--label-key", "cls", "--k", "16", "--points", "p.csv", "--json", "x.json"]) == 0
    assert pd.read_csv("p.csv")["text"].tolist() == texts
    written = json.loads(Path("x.json").read_text())
    assert written["names"] == texts
    assert all(point["name"] == texts[point["index"]] for point in written["most_collapsed"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--points", "p.txt"], "--points"),
        (["--neighbors", "n.csv"], "--neighbors"),
        (["--neighbors", "n.npz", "--sample", "20"], "--neighbors"),
        (["--points", "x.npy"], "x.npy"),
        (["--points", "y.npy"], "--points"),
        (["--neighbors", "y.npz"], "--neighbors"),
        (["--names", "short.txt"], "short.txt"),
        (["--name-key", "y"], "--name-key"),
        *((["--" + option, ""], "--" + option) for option in ("names", "points", "neighbors", "reference", "labels")),
    ],
)
def test_outputs_and_names_that_cannot_be_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(80, 4)))
    np.save("y.npy", np.ones((3, 2)))
    np.savez("y.npz", a=np.ones((3, 2)))
    before = Path("x.npy").read_bytes()
    Path("short.txt").write_text("a\nb\n")
    assert main(["inspect", "x.npy", "--k", "16", *words]) == 2
    assert named in capsys.readouterr().err
    assert Path("x.npy").read_bytes() == before


def test_missing_names_are_empty_and_missing_labels_are_refused(
    x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ldreg.inspect(x, k=20, names=pd.array([None, "b"] * 200, dtype="string")).names == ("", "b") * 200
    for labels in (pd.array([None, 1] * 200, dtype="Int64"), [math.nan, 1.0] * 200, pa.array(["a", None] * 200)):
        with pytest.raises(ValueError, match=r"^labels: expected one for each row of x, got .* in row [01]"):
            ldreg.inspect(x, k=20, labels=labels)

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", x)
    Path("names.txt").write_text("a\n" * 398 + "\n\n")  # the last two points have no name
    assert main(["inspect", "x.npy", "--names", "names.txt", "--json", "x.json", "--k", "20"]) == 0
    assert json.loads(Path("x.json").read_text())["names"][-3:] == ["a", "", ""]


def test_odd_columns_beside_the_embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float16")
    texts = [None, *(f"text {i}" for i in range(59))]
    columns = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4),
        "lid": pa.array(texts, pa.string_view()),
        "map": pa.array([[("a", 1)]] * 60, pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1}] * 60),
        "😀": pa.array(["a", "b"] * 30).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), "x.parquet", row_group_size=17)
    assert main(["inspect", "x.parquet", "--k", "8", "--points", "p.parquet"]) == 0
    points = pd.read_parquet("p.parquet")
    assert list(points)[:4] == ["input_lid", "struct", "😀", "row"]
    assert points["input_lid"].isna().tolist() == [True] + 59 * [False]
    assert points["input_lid"][1:].tolist() == texts[1:]
    assert points["lid"].to_numpy() == pytest.approx(ldreg.lid(torch.from_numpy(x), k=8).numpy(), rel=1e-3)


def test_columns_of_a_reference_are_in_the_order_of_x(x: Tensor) -> None:
    frame = pd.DataFrame(x.numpy()).rename(columns=str)
    arrow = pa.table(frame)
    assert ldreg.inspect(frame, k=20, reference=arrow).mean == ldreg.inspect(x, k=20, reference=x).mean
    for other in (frame[frame.columns[::-1]], arrow.select(arrow.column_names[::-1])):
        with pytest.raises(ValueError, match=r"^reference: expected the columns of x in their order, got '11', '10'"):
            ldreg.inspect(frame, k=20, reference=other)


def test_one_of_equal_rows_stands_for_all_among_the_lowest() -> None:
    x = torch.randn(300, 20, generator=torch.Generator().manual_seed(0))
    x[:40] = x[0]  # more than k equal rows: LID 0
    lowest = ldreg.inspect(x, k=16, names=[f"p{i}" for i in range(300)]).most_collapsed
    assert (lowest[0].index, lowest[0].lid, lowest[0].copies, lowest[0].name) == (0, 0, 40, "p0")
    assert all(point.copies == 1 for point in lowest[1:])
    assert len({point.index for point in lowest}) == len(lowest) == 10


def test_findings_name_rows(x: Tensor) -> None:
    report = ldreg.inspect(x, k=20, names=[f"text\n{i}" for i in range(400)])
    assert "row" in report.in_words()
    assert 'rows 3 "text 3", 20 "text 20"' in report.in_words()
    assert report.name_of(20) == "text\n20"
    with pytest.raises(ValueError, match=r"^names: expected 400, one for each row of x, got 3"):
        ldreg.inspect(x, k=20, names=["a", "b", "c"])


@pytest.fixture(scope="module")
def new_and_reference() -> tuple[Tensor, Tensor]:
    """Of 400 new points, 20 are rows of the reference, 20 nearly so and 20 far from it."""
    source = torch.Generator().manual_seed(0)
    reference, new = torch.randn(2000, 12, generator=source), torch.randn(400, 12, generator=source)
    new[:20] = reference[100:120]
    new[20:40] = reference[200:220] + 1e-3 * torch.randn(20, 12, generator=source)
    new[40:60] *= 5
    return new, reference


def test_new_points_are_measured_in_a_reference(new_and_reference: tuple[Tensor, Tensor]) -> None:
    new, reference = new_and_reference
    report = ldreg.inspect(new, k=20, reference=reference)
    assert report.lid.tolist() == pytest.approx(ldreg.lid(new, k=20, reference=reference).tolist(), rel=1e-5)
    found = {finding.kind: finding for finding in report.findings}
    assert found["leaked"].rows == tuple(range(20))
    assert found["leaked"].numbers["usual"] == 0
    assert found["nearly_leaked"].rows == tuple(range(20, 40))
    assert (found["leaked"].severity, found["nearly_leaked"].severity) == ("critical", "warning")
    assert set(range(40, 60)) <= set(found["out_of_distribution"].rows)
    assert len(found["out_of_distribution"].rows) < 25
    table = report.to_frame()
    assert table["nearest"][:40].tolist() == [*range(100, 120), *range(200, 220)]
    assert (table["nearest_distance"][:20] == 0).all()
    assert not {"duplicate_group", "neighbor_of"} & {*table}
    assert report.comparison is not None
    assert report.comparison.other.mean == ldreg.inspect(reference, k=20).mean
    graph = neighbor_graph(ldreg.inspect(new, k=20, reference=reference, keep_neighbors=True))
    assert graph.shape == (400, 2000)


def test_what_comes_from_the_reference_fits_it(new_and_reference: tuple[Tensor, Tensor]) -> None:
    new, reference = new_and_reference
    for count in (2, 300):
        assert [f.kind for f in ldreg.inspect(new[60 : 60 + count], k=20, reference=reference).findings] == [
            "fits_reference"
        ]


@pytest.mark.parametrize(("rows", "k"), [(70, 64), (100, 16), (200, 16)])
def test_points_like_a_small_reference_are_not_far_from_it(rows: int, k: int) -> None:
    source = torch.Generator().manual_seed(1)
    kinds = []
    for _ in range(10):
        x = torch.randn(500 + rows, 8, generator=source)
        kinds += [found.kind for found in ldreg.inspect(x[rows:], k=k, reference=x[:rows]).findings]
    assert set(kinds) == {"fits_reference"}


def test_a_collapsed_set_does_not_fit_the_reference(new_and_reference: tuple[Tensor, Tensor]) -> None:
    _, reference = new_and_reference
    for value, kind in ((0.5, "complete_collapse"), (0.0, "complete_collapse")):
        found = ldreg.inspect(torch.full((60, 12), value), k=20, reference=reference).findings
        assert found[0].kind == kind


def test_one_near_copy_is_named(new_and_reference: tuple[Tensor, Tensor]) -> None:
    new, reference = new_and_reference
    report = ldreg.inspect(torch.cat([new[60:], reference[7:8] + 1e-4]), k=20, reference=reference)
    assert [(found.kind, found.severity, found.rows) for found in report.findings] == [
        ("nearly_leaked", "note", (340,))
    ]
    assert report.to_frame()["finding"].iloc[-1] == "nearly_leaked"


def test_the_interval_in_a_reference_is_that_of_independent_points(new_and_reference: tuple[Tensor, Tensor]) -> None:
    new, reference = new_and_reference
    mean = ldreg.inspect(new[60:], k=20, reference=reference).mean
    logs = ldreg.lid(new[60:], k=20, reference=reference).double().log()
    assert np.log(mean.high / mean.low) / 2 == pytest.approx(1.967 * logs.std().item() / 340**0.5, rel=1e-3)


def test_the_command_takes_a_reference(
    new_and_reference: tuple[Tensor, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    new, reference = new_and_reference
    np.save("new.npy", new)
    np.savez("train.npz", a=reference, b=reference[:5])
    words = ["inspect", "new.npy", "--reference", "train.npz", "--k", "20"]
    files = ["--html", "r.html", "--json", "r.json", "--points", "p.csv"]
    assert main([*words, "--reference-key", "a", *files]) == 0
    written = json.loads(Path("r.json").read_text())
    assert {finding["kind"] for finding in written["findings"]} == {"leaked", "nearly_leaked", "out_of_distribution"}
    assert written["comparison"]["title"] == "train.npz"
    assert pd.read_csv("p.csv")["nearest"][0] == 100
    capsys.readouterr()
    for wrong, named in (
        ([], "train.npz"),
        (["--reference-key", "a", "--compare", "new.npy"], "--reference"),
        (["--reference-key", "b"], "train.npz"),
    ):
        assert main([*words, *wrong]) == 2
        assert named in capsys.readouterr().err
    assert main(["inspect", "new.npy", "--reference-key", "a"]) == 2
    assert "--reference-key" in capsys.readouterr().err


def test_a_reference_with_columns_in_another_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(60, 3))
    np.savetxt("new.csv", rows[:30], delimiter=",", header="a,b,c", comments="")
    np.savetxt("old.csv", rows[:, [0, 2, 1]], delimiter=",", header="a,c,b", comments="")
    assert main(["inspect", "new.csv", "--reference", "old.csv", "--k", "5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "old.csv" in error
    assert "'c' in place of 'b'" in error


def test_a_reference_of_another_width_is_refused(new_and_reference: tuple[Tensor, Tensor]) -> None:
    new, reference = new_and_reference
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"reference": reference[:, :5]}, "reference: expected 12 dimensions"),
        ({"reference": reference[:20]}, "reference: expected more points than k"),
        ({"reference": reference, "compare": new}, "reference: expected it without compare"),
        ({"reference": reference * torch.nan}, "reference: expected finite numbers"),
    ]
    for options, named in wrong:
        with pytest.raises(ValueError, match=rf"^{named}"):
            ldreg.inspect(new, k=20, **options)


def test_a_column_of_another_scale_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x: Any = np.random.default_rng(0).normal(size=(80, 6))
    frame = pd.DataFrame(x, columns=list("abcdef")).assign(score=np.linspace(0, 99, 80) ** 1.1, word="w")
    frame.to_csv("x.csv", index=False)
    for options, named in ([], True), (["--exclude", "score"], False):
        assert main(["inspect", "x.csv", "--k", "16", *options]) == 0
        assert ("column 'score' has" in capsys.readouterr().err) == named
