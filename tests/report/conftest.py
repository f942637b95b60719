from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch

from ldreg.dimension.geometry import regular
from ldreg.inspection.report import ClassLID, CollapsedPoint, Comparison, DimensionReport, MeanLID, Reading
from ldreg.record import Finding, PointCloud, Record, Thumbnail
from ldreg.report.pages import Section, clouds_section, comparison_page, inspection_page, study_page
from ldreg.report.plots import Series, bars, lines, scatter_panels
from ldreg.report.tables import Cell, Table
from ldreg.thumbnails import data_uri

MakeReport = Callable[..., DimensionReport]
MakeRun = Callable[..., Record]


def _make(
    *, points: int = 60, names: tuple[str, ...] = (), comparison: str | None = None, **changes: Any
) -> DimensionReport:
    """A report with made-up but coherent numbers; `names` are its class names in turn."""
    generator = torch.Generator().manual_seed(0)
    lid = 2 + 8 * torch.rand(points, generator=generator)
    labels = tuple(names[i % len(names)] for i in range(points)) if names else None
    fields: dict[str, Any] = {
        "points": points,
        "dimensions": 16,
        "measured": points,
        "k": 20,
        "estimator": "mom",
        "convention": "paper",
        "seed": 0,
        "device": "cpu",
        "mean": MeanLID(5.5, 5.1, 5.9),
        "quartiles": (4.0, 5.5, 7.0),
        "frechet_variance": 0.2,
        "arithmetic_mean": 6.0,
        "harmonic_mean": 5.0,
        "zero": 0,
        "infinite": 0,
        "duplicated": 0,
        "effective_rank": 9.5,
        "rankme": 10.5,
        "twonn": Reading(6.25),
        "danco": Reading(None, "not available: expected at least 12 distinct points, got 5"),
        "comparison": None if comparison is None else _compared(comparison),
        "most_collapsed": tuple(
            CollapsedPoint(i, lid[i].item(), 0.5, None if labels is None else labels[i])
            for i in lid.argsort()[:10].tolist()
        ),
        "classes": tuple(ClassLID(name, 9, 8, MeanLID(4.0 + i, 3.5 + i, 4.5 + i)) for i, name in enumerate(names)),
        "index": torch.arange(points),
        "lid": lid,
        "standard_error": lid / 4,
        "kth_distance": 1 + torch.rand(points, generator=generator),
        "nearest": torch.arange(points).roll(1),
        "nearest_distance": torch.rand(points, generator=generator),
        "eigenvalues": torch.logspace(0, -4, 16, dtype=torch.float64),
        "coordinates": torch.randn(points, 2, generator=generator),
        "duplicate_group": torch.full((points,), -1),
        "neighbor_of": torch.full((points,), 8),
        "measures": {},
        "names": None,
        "labels": labels,
        "version": "1.2.3",
        "title": "embeddings.npy",
    }
    return DimensionReport(**{**fields, **changes})


def _compared(title: str) -> Comparison:
    """With 40 points of LID 3 to 5 in 8 dimensions."""
    other = _make(
        points=40, dimensions=8, title=title, mean=MeanLID(4.0, 3.5, 4.5), quartiles=(3.25, 3.75, 4.75),
        effective_rank=6.5, twonn=Reading(3.125), lid=torch.linspace(3, 5, 40),
        kth_distance=torch.linspace(0.1, 0.2, 40), eigenvalues=torch.linspace(1, 0.5, 8, dtype=torch.float64),
    )  # fmt: skip
    return Comparison(other, 0.318)


@pytest.fixture
def make_report() -> MakeReport:
    return _make


@pytest.fixture
def collapsed_report() -> DimensionReport:
    """Of points that are all the same."""
    nan = float("nan")
    lid = torch.zeros(60)
    assert not regular(lid).any()
    return _make(
        mean=MeanLID(nan, nan, nan), quartiles=(nan, nan, nan), frechet_variance=nan, arithmetic_mean=nan,
        harmonic_mean=nan, zero=60, duplicated=60, effective_rank=0.0, rankme=1.0, twonn=Reading(None, "not available"),
        lid=lid, standard_error=torch.full((60,), nan), kth_distance=torch.zeros(60), eigenvalues=torch.zeros(16),
        coordinates=torch.zeros(60, 2), names=("a", "b"),
        classes=(ClassLID("a", 30, 0, MeanLID(nan, nan, nan)), ClassLID("b", 30, 0, MeanLID(nan, nan, nan))),
        most_collapsed=(CollapsedPoint(0, 0.0, nan, "a"),),
    )  # fmt: skip


def _run(name: str = "SimCLR", *, size: int = 40, **changes: Any) -> Record:
    """A record of a run with made-up but coherent numbers."""
    generator = numpy.random.default_rng(0)
    epochs = (0.0, 5.0, 10.0)
    values: dict[str, Any] = {
        "settings": {"method": "simclr", "regularizer": "none", "epochs": 10, "lr": 0.3, "scale": [0.5, 1.0]},
        "results": {"minutes": 1.5, "lid": 8.0, "effective_rank": 30.0, "linear": 0.96, "knn": 0.95},
        "curves": {
            "lid": [(epoch, 4 + epoch / 5) for epoch in epochs],
            "loss": [(epoch, 5 - epoch / 5) for epoch in epochs],
            "linear": [(epoch, 0.5 + epoch / 40) for epoch in epochs],
        },
        "lid": generator.uniform(4, 12, size).tolist(),
        "eigenvalues": numpy.logspace(0, -4, 16).tolist(),
        "map": [(float(x), float(y)) for x, y in generator.normal(size=(size, 2))],
        "labels": [str(place % 3) for place in range(size)],
        "origin": {"command": "ldreg pretrain --seed 0", "commit": "abc1234", "hardware": "2 cores", "minutes": 1.5},
    }
    return Record(name, **{**values, **changes})


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    return _run


@pytest.fixture(scope="session")
def two_runs() -> list[Record]:
    """A run without and one with LDReg."""
    plain = _run()
    settings = {**plain.settings, "regularizer": "ldreg", "ldreg.beta": 0.01}
    results = {**plain.results, "lid": 10.0, "linear": 0.953, "knn": 0.95}
    return [plain, _run("SimCLR + LDReg", settings=settings, results=results)]


# Names that are no names. Each would run a script in some place of a page: in text, in an attribute, in a title, in a
# style, in a comment, in SVG, in what is unescaped twice.
LONG = "a_name_without_any_space_" * 8
PAYLOADS = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    '"><svg onload="window.hit = 1">',
    "' autofocus onfocus='window.hit = 1' x='",
    "</title></style></textarea><script>window.hit = 1</script>",
    "--><script>window.hit = 1</script><!--",
    "]]></text></svg><script>window.hit = 1</script>",
    "javascript:window.hit=1",
    "&lt;script&gt;window.hit = 1&lt;/script&gt;",
    "&#60;script&#62;window.hit = 1&#60;/script&#62;",
    "<iframe srcdoc='<script>top.hit = 1</script>'></iframe>",
    "<base href='http://127.0.0.1:9/'><link rel=stylesheet href=x>",
    LONG,
    "$\\frac{<script>}{window.hit}$ {{7*7}} ${7*7} {% raw %}",
    "\u202e<script>window.hit = 1</script>\x00\x1b[31m\u2028",
]
TESTED_IMAGE = data_uri(torch.zeros(1, 8, 8, dtype=torch.uint8))


@pytest.fixture(scope="session")
def hostile_pages() -> dict[str, str]:
    """A page of each kind, all of whose words are payloads."""
    whole = " ".join(PAYLOADS)
    report = _make(
        names=tuple(PAYLOADS), comparison=PAYLOADS[0], title=whole, command=whole, version=whole, device=whole,
        most_collapsed=tuple(CollapsedPoint(i, 1.0, 0.5, word) for i, word in enumerate(PAYLOADS)),
        danco=Reading(None, whole), twonn=Reading(None, whole),
    )  # fmt: skip
    images = [Thumbnail(TESTED_IMAGE, i, 1.0, word, word[::-1]) for i, word in enumerate(PAYLOADS)]
    labels = [PAYLOADS[place % len(PAYLOADS)] for place in range(40)]
    run = _run(
        PAYLOADS[2], settings={word: [word] for word in PAYLOADS}, results={f"knn/{word}": 0.5 for word in PAYLOADS},
        curves={whole: [(0, 1.0), (1, 2.0)]}, labels=labels, tsne=[(0, 1)] * 40, tsne_labels=labels, notes=PAYLOADS,
        origin={"command": whole, **{word: word for word in PAYLOADS}}, most_collapsed=images, least_collapsed=images,
        classes=dict.fromkeys(PAYLOADS, 1.0), findings=[Finding(whole, "note", 1.0, {}, of=whole, text=whole)],
    )  # fmt: skip
    cells = [Cell(whole, whole, "agrees")] * 2
    figures = {
        f"{whole}\n{whole}": lines([Series(whole, [(1, 2.0), (2, 3.0)])], xlabel=whole, ylabel=whole),
        f"{whole} bars": bars([whole], [(whole, [1.0])], ylabel=whole),
        f"{whole} panels": scatter_panels([(whole, [(0, 0), (1, 1)], [whole, "y"])], columns=1),
    }
    study = Section(whole, f"{whole}\n\n{whole}", Table([whole, f"{whole} 2"], [cells]), figures)
    cloud = PointCloud(whole, torch.rand(40, 2), torch.full((40,), 2.0), 2.0, 0.0, 2.0, 0, 0.1)
    return {
        "inspect": inspection_page(report, further=[clouds_section(whole, whole, [cloud])]),
        "report": comparison_page([_run(), run], title=whole),
        "study": study_page(whole, whole, [study, *(replace(study, title=f"{i}") for i in range(3))], footer=whole),
    }
