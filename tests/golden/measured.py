"""Cases of `ldreg inspect` and `ldreg bench`, which need no training."""

import re
from typing import Any

import numpy
import pandas
import safetensors.numpy
import torch
from tests.golden.cases import case
from tests.golden.place import Place
from tests.golden.public import points

ALL_FIELDS = ("--labels", "y.csv", "--k", "20", "--json", "found.json")


def with_labels(place: Place) -> None:
    numpy.save(place.folder / "x.npy", points())
    names = [f"class {i // 100}" for i in range(400)]
    (place.folder / "y.csv").write_text("label\n" + "\n".join(names) + "\n", encoding="utf-8")


@case()
def inspect_labels(place: Place) -> Any:
    with_labels(place)
    answer = place.ldreg("inspect", "x.npy", *ALL_FIELDS)
    found = place.json("found.json")
    assert f"{found['mean']['value']:.2f}" in answer.out
    assert f"{found['effective_rank']:.2f}" in answer.out
    return {"json": found, "files": place.tree()}


@case()
def inspect_compare(place: Place) -> Any:
    with_labels(place)
    numpy.save(place.folder / "other.npy", points(300, 12, seed=1))
    words = ("--compare", "other.npy", "--html", "page.html", "--sample", "200", "--seed", "3")
    answer = place.ldreg("inspect", "x.npy", *ALL_FIELDS, *words)
    found = place.json("found.json")
    other = found["comparison"]["mean"]["value"]
    assert f"{other:.2f}" in answer.out
    page = (place.folder / "page.html").read_text(encoding="utf-8")
    return {
        "json": found,
        "files": place.tree(),
        "page": seen(page, "x.npy", f"{found['mean']['value']:.2f}", f"{other:.2f}"),
    }


def seen(page: str, *words: str) -> Any:
    """Whether a page stands alone, and which of these words it has; tests/report has what its scripts ask for."""
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    return {
        "complete": page.rstrip().endswith("</html>"),
        "scripts loaded": "<script src" in page,
        "requests": any(f'{where}="{scheme}' in markup for where in ("src", "srcset") for scheme in ("http", "//")),
        "style sheets loaded": '<link rel="stylesheet"' in page,
        "words": {word: word in page for word in words},
    }


@case()
def inspect_options(place: Place) -> Any:
    with_labels(place)
    found = {}
    for words in (
        ("--estimator", "mle"),
        ("--estimator", "tle", "--k", "30"),
        ("--convention", "pseudocode"),
        ("--sample", "100", "--seed", "1"),
    ):
        place.ldreg("inspect", "x.npy", *words, "--json", "found.json")
        found[" ".join(words)] = without_edges(place.json("found.json"))
    return found


def without_edges(report: Any) -> Any:
    """A report without the edges of groups, which the rounding of a processor may move by some points."""
    findings = [{"kind": one["kind"], "severity": one["severity"]} for one in report["findings"]]
    return {**report, "findings": findings}


@case()
def inspect_formats(place: Place) -> Any:
    """The same points in every format that is read."""
    x, labels = points(200, 5), numpy.arange(200) % 4
    numpy.save(place.folder / "a.npy", x)
    numpy.savez(place.folder / "b.npz", train=x, test=x[:100], y=labels)
    torch.save({"z": torch.from_numpy(x)}, place.folder / "c.pt")
    safetensors.numpy.save_file({"z": x}, place.folder / "d.safetensors")
    table = pandas.DataFrame(x, columns=[f"f{i}" for i in range(5)]).assign(id=range(200), species=labels)
    table.to_csv(place.folder / "e.csv", index=False)
    table.to_csv(place.folder / "f.tsv", index=False, sep="\t")
    table.to_parquet(place.folder / "g.parquet")
    found = {}
    for words in (
        ("a.npy",),
        ("b.npz", "--key", "train", "--label-key", "y"),
        ("c.pt",),
        ("d.safetensors", "--key", "z"),
        ("e.csv", "--label-key", "species", "--exclude", "id"),
        ("f.tsv", "--label-key", "species", "--include", "id"),
        ("g.parquet", "--exclude", "id,species"),
    ):
        place.ldreg("inspect", *words, "--k", "10", "--json", "found.json")
        one = place.json("found.json")
        found[" ".join(words)] = {
            key: one[key] for key in ("points", "dimensions", "mean", "classes", "quartiles", "title")
        }
    return found


@case(slow=True)
def bench_lid(place: Place) -> Any:
    words = ("--sizes", "200x4", "--repeats", "1", "--device", "cpu", "--contenders", "ldreg,scikit-learn")
    place.ldreg("bench", "lid", *words, "--json", "found.json", "--out", "out")
    found = place.json("found.json")
    for one in found:
        one["environment"]["packages"] = sorted(one["environment"]["packages"])  # which are installed is not ours
    return {"json": found, "files": place.tree()}
