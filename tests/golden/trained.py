"""Cases of commands that train or judge an encoder of digits."""

import csv
import tarfile
from typing import Any

import safetensors.torch
from tests.golden.cases import case
from tests.golden.frozen import DATA, VOLATILE
from tests.golden.measured import seen
from tests.golden.place import TINY, Place


@case(training=True)
def pretrain(place: Place) -> Any:
    run = place.run()
    return what_a_run_leaves(place, run)


def what_a_run_leaves(place: Place, run: Any) -> Any:
    numbers: dict[str, list[list[float]]] = {}
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            value = 0.0 if row["name"] in VOLATILE else float(row["value"])
            numbers.setdefault(row["name"], []).append([float(row["epoch"]), int(row["step"]), value])
    config = (run / "config.yaml").read_text(encoding="utf-8")
    environment = place.json(run / "environment.json")
    return {
        "files": place.tree(run),
        "card": place.json(run / "card.json"),
        "metrics": numbers,
        "config": config.splitlines(),
        "environment": sorted(environment),
    }


@case(training=True)
def evaluate(place: Place) -> Any:
    """Every quick kind of evaluation of a run; `report` then shows what was evaluated."""
    run = place.copy()
    found = {}
    for name, words in {
        "linear": ("linear", run),
        "linear strength": ("linear", run, "--strength", "100"),
        "linear transfer": ("linear", run, "--protocol", "transfer", "--epochs", "1"),
        "linear imagenet": ("linear", run, "--protocol", "imagenet", "--epochs", "1", "--seed", "1"),
        "knn": ("knn", run, "--k", "20"),
        "finetune": ("finetune", run, "--epochs", "1", "--fraction", "0.5"),
        "dimension": ("dimension", run, "--html", "dimension.html", "--k", "20"),
    }.items():
        place.ldreg("evaluate", *words, "--json", f"{name}.json")
        found[name] = place.json(f"{name}.json")
    page = (place.folder / "dimension.html").read_text(encoding="utf-8")
    lid = found["dimension"]["results"]["lid"]
    return {"json": found, "files": place.tree(), "page": seen(page, f"{lid:.2f}")}


@case(training=True)
def evaluate_weights(place: Place) -> Any:
    """An encoder.safetensors that lies outside a run is read too, and judged on another set."""
    (place.folder / "weights").mkdir()
    (place.folder / "weights" / "encoder.safetensors").write_bytes((place.run() / "encoder.safetensors").read_bytes())
    words = ("--data.name", "shapes", "--data.limit", "300", "--size", "8", "--json", "knn.json", "--out", "here")
    place.ldreg("evaluate", "knn", "weights/encoder.safetensors", *words)
    return {"json": place.json("knn.json"), "files": place.tree()}


@case(training=True)
def report(place: Place) -> Any:
    run = place.copy("first")
    place.copy("second")
    place.ldreg("report", run, "second", "--names", "A,B", "--title", "Two runs", "--json", "records")
    page = (place.folder / "comparison.html").read_text(encoding="utf-8")
    records = {name: place.json(f"records/{name}") for name in place.tree("records")}
    return {"records": records, "files": place.tree(), "page": seen(page, "Two runs", "A", "B")}


@case(training=True)
def export(place: Place) -> Any:
    place.ldreg("export", place.run(), "--out", "encoder.onnx", "--normalize")
    return place.tree()


@case()
def exit_of_failed_training(place: Place) -> Any:
    """Training that diverges ends with 1."""
    answer = place.answer("pretrain", "--out", "run", *TINY, "--optimizer.lr", "1e30", "--optimizer.name", "sgd")
    return {"code": answer.code, "lines": len(answer.err.strip().splitlines()) > 0}


def old_runs(place: Place) -> None:
    """Unpack what the version before has written; see old_run.py."""
    with tarfile.open(DATA / "old_runs.tar.xz") as archive:
        archive.extractall(place.folder, filter="data")


@case(training=True)
def resume_old_run(place: Place) -> Any:
    """A run that the version before left in the midst of an epoch ends with the numbers of that version."""
    old_runs(place)
    place.ldreg("pretrain", "--resume", "interrupted")
    run = place.folder / "interrupted"
    weights = safetensors.torch.load_file(run / "encoder.safetensors")
    sums = {
        name: [float(weight.double().sum()), float(weight.double().abs().sum())] for name, weight in weights.items()
    }
    return {**what_a_run_leaves(place, run), "weights": sums}


@case(training=True)
def read_old_run(place: Place) -> Any:
    """A run that the version before finished is evaluated, and compared with what it has evaluated."""
    old_runs(place)
    for words in (
        ("linear", "finished"),
        ("knn", "finished/encoder.safetensors", "--data.name", "digits", "--k", "10"),
    ):
        place.ldreg("evaluate", *words, "--json", f"{words[0]}.json")
    place.ldreg("report", "finished", "--json", "records")
    found = {name: place.json(name) for name in ("linear.json", "knn.json", "records/finished.json")}
    return {"json": found, "files": place.tree()}


@case(training=True)
def transfer(place: Place) -> Any:
    words = ("--datasets", "digits,shapes", "--protocol", "fast", "--json", "transfer.json")
    place.ldreg("evaluate", "transfer", place.copy(), *words)
    return {"json": place.json("transfer.json"), "files": place.tree()}
