"""A finished run as one record: its settings, final figures, curves and points."""

import json
from inspect import signature
from typing import Any

from ldreg.data import load_images
from ldreg.evaluation.knn import knn_accuracy
from ldreg.evaluation.linear import linear_accuracy
from ldreg.inspection import inspect
from ldreg.monitor.log import read_metrics
from ldreg.reporting.comparison import RunRecord
from ldreg.training.assembly import held_out_images, represent
from ldreg.training.recipes import flattened
from ldreg.training.regularization import REGULARIZERS
from ldreg.training.run import Result
from ldreg.training.settings import Settings

# Metrics of the log, and what a record calls their curves.
CURVES = {
    "set/lid": "lid",
    "set/effective_rank": "effective_rank",
    "set/linear": "linear",
    "set/knn": "knn",
    "set/frechet_variance": "frechet_variance",
    "batch/loss": "loss",
}


def run_record(name: str, settings: Settings, result: Result) -> RunRecord:
    """Evaluate the run's encoder after its last epoch on all images, and join that with what its log has.

    Dimensions are those of the training images without augmentation, accuracies those on the test images of a linear
    probe and of kNN that know the training images, where there are labels.
    """
    train, test = load_images(settings.data, "train"), held_out_images(settings)
    x, labels = represent(result.module, train)
    classes = [train.classes[label] for label in labels.tolist()] if train.labeled else None
    report = inspect(x, classes, settings.monitor.k)
    results = {
        "lid": report.mean.value,
        "effective_rank": report.effective_rank,
        "frechet_variance": report.frechet_variance,
        "degenerate": report.degenerate_share,
        "minutes": result.minutes,
    }
    if test is not None and test.labeled and train.labeled:
        x_test, labels_test = represent(result.module, test)
        k = settings.monitor.voters(len(x))
        results["linear"] = linear_accuracy(x, labels, x_test, labels_test).accuracy
        results["knn"] = knn_accuracy(x, labels, x_test, labels_test, k=k)
    logged = read_metrics(result.folder.metrics)
    return RunRecord(
        name,
        settings=told_settings(settings),
        results=results,
        curves={
            short: [(epoch, value) for _, epoch, value in logged[long]]
            for long, short in CURVES.items()
            if long in logged
        },
        lid=report.lid.tolist(),
        eigenvalues=report.eigenvalues.tolist(),
        map=[(across, up) for across, up in report.coordinates.tolist()],
        labels=classes,
        origin=_origin(settings, result),
    )


def told_settings(settings: Settings) -> dict[str, Any]:
    """All settings by their dotted keys, without those of the regularizer that nobody changed.

    A run without a regularizer has none of them, and a comparison with it would list them all.
    """
    flat, name = flattened(settings.tree), settings.run.regularizer
    if name == "none":
        return flat
    usual = signature(REGULARIZERS[name].type).parameters
    for option, value in settings.regularizer.items():
        if option not in ("beta", "k") and value == usual[option].default:
            del flat[f"{name}.{option}"]
    return flat


def _origin(settings: Settings, result: Result) -> dict[str, str | float | int | None]:
    environment = json.loads(result.folder.environment.read_text(encoding="utf-8"))
    return {
        "command": environment["command"],
        "commit": environment["commit"],
        "version": environment["ldreg"],
        "hardware": environment["gpu"] or f"{environment['processor']}, {environment['cores']} cores",
        "seed": settings.run.seed,
        "epochs": result.module.current_epoch,
        "minutes": round(result.minutes, 2),
    }
