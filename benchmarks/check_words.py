"""Check the words of `ldreg inspect` against encoders and sets that had no part in choosing its rules.

Run as `python benchmarks/check_words.py --runs FOLDER` (about a minute of one core for each of the 33 encoders, which
stay in the folder, then two minutes); it writes benchmarks/words.json and prints the tables of docs/guidance.md. What
is said of an encoder beside plain SimCLR is from a comparison with SimCLR's representations of the same images.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from torch import Tensor
from torch.nn.functional import one_hot

import ldreg
from ldreg.reporting.record import DimensionReport

OUT = Path(__file__).with_name("words.json")
PLAIN = "SimCLR"
SPLITS = ("train", "test")
VOTERS = 20

# Encoders: by name, a recipe of digits/ and options over it.


def _minimizing(beta: float) -> dict[str, str]:
    return {"regularizer": "minlid", "minlid.beta": f"{beta:g}", "minlid.k": "32"}


ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    PLAIN: ("simclr", {}),
    "SimCLR + LDReg": ("simclr_ldreg", {}),
    "SimCLR + Min LID 0.01": ("simclr", _minimizing(0.01)),
    "SimCLR + Min LID 0.1": ("simclr", _minimizing(0.1)),
    "SimCLR + Min LID 1": ("simclr", _minimizing(1)),
    "SimCLR + Min LID 10": ("simclr", _minimizing(10)),
    "BYOL": ("byol", {}),
    "BYOL + LDReg": ("byol_ldreg", {}),
    "BYOL + Min LID 1": ("byol", _minimizing(1)),
    "BYOL, learning rate 1": ("byol", {"optimizer.lr": "1.0"}),
    "VICReg": ("vicreg", {}),
    "VICReg + LDReg": ("vicreg_ldreg", {}),
    "VICReg, invariance alone": ("vicreg", {"vicreg.variance": "0", "vicreg.covariance": "0"}),
    "Barlow Twins": ("barlow_twins", {}),
    "MoCo": ("moco", {}),
    "MAE": ("mae", {}),
    "untrained": ("simclr", {"optimizer.lr": "1e-12", "schedule.epochs": "1"}),
}
FEWER = (
    PLAIN,
    "SimCLR + LDReg",
    "SimCLR + Min LID 0.1",
    "SimCLR + Min LID 1",
    "BYOL",
    "VICReg",
    "VICReg, invariance alone",
    "untrained",
)
# The rule was made from what the encoders of digits read, and is checked by the others.
IMAGES: dict[str, tuple[str, ...]] = {"digits": tuple(ENCODERS), "shapes": FEWER, "textures": FEWER}


def trained(runs: Path, images: str, name: str) -> Path:
    """The folder of a run, which is trained where it is not there yet."""
    from ldreg.training.recipes import load_recipe
    from ldreg.training.run import pretrain
    from ldreg.training.settings import resolve

    recipe, options = ENCODERS[name]
    words = "".join(letter if letter.isalnum() or letter == "." else "_" for letter in name.lower())
    folder = runs / f"{images}_{words}"
    if not (folder / "card.json").exists():
        every = {"data.name": images, "monitor.every_epochs": "80", "monitor.probe": "false", **options}
        settings = resolve(load_recipe(f"digits/{recipe}"), list(every.items()))
        pretrain(settings, folder, command=f"python benchmarks/check_words.py ({images}, {name})")
    return folder


def encoders(runs: Path, images: str) -> list[dict[str, Any]]:
    """What is said of the encoders of some images, of training and held-out images each."""
    from ldreg.assessment.source import open_source
    from ldreg.evaluation.features import features
    from ldreg.evaluation.knn import knn_accuracy
    from ldreg.evaluation.linear import linear_accuracy

    rows, plain = [], {}
    for name in IMAGES[images]:
        source = open_source(trained(runs, images, name))
        train, test = (features(source.encoder, source.data, split, cache=runs / "cache") for split in SPLITS)
        known = (train.representations, train.labels, test.representations, test.labels)
        accuracy = {"knn": knn_accuracy(*known, k=VOTERS), "linear": linear_accuracy(*known).accuracy}
        for split, found in zip(SPLITS, (train, test), strict=True):
            x = found.representations
            compare = plain.setdefault(split, x)
            report = ldreg.inspect(x, compare=None if name == PLAIN else compare, k=64)
            rows.append({"images": images, "encoder": name, "split": split, **accuracy, **told(report)})
        print(f"{images}, {name}", flush=True)
    return rows


# Sets: by name, how many neighbors, how the points are drawn.


def gaussian(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def uniform(n: int, d: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(0))


def falling(n: int = 2000, d: int = 128) -> Tensor:
    """Gaussian, eigenvalues 1 / i."""
    return gaussian(n, d) * torch.arange(1, d + 1) ** -0.5


def scaled(x: NDArray[np.float64]) -> Tensor:
    """With variance 1 in every coordinate that varies."""
    deviation = x.std(0)
    return torch.from_numpy((x - x.mean(0)) / np.where(deviation > 0, deviation, 1))


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def member(count: int, n: int = 2000) -> Tensor:
    return torch.randint(count, (n,), generator=torch.Generator().manual_seed(4))


def zipf(count: int, n: int = 2000) -> Tensor:
    chance = 1 / np.arange(1, count + 1)
    return torch.from_numpy(np.random.default_rng(1).choice(count, n, p=chance / chance.sum()))


def clusters(apart: float) -> Tensor:
    return apart * gaussian(10, 64, 1)[member(10)] + gaussian(2000, 64)


def subspaces(apart: float) -> Tensor:
    """Ten clusters, each in three directions of its own, with a little noise."""
    cluster = member(10)
    inside = torch.einsum("nk,nkd->nd", gaussian(2000, 3), gaussian(10, 3 * 64, 2).view(10, 3, 64)[cluster])
    return apart * gaussian(10, 64, 1)[cluster] + inside + 0.05 * gaussian(2000, 64, 5)


def probabilities(confidence: float) -> Tensor:
    return torch.softmax(confidence * one_hot(member(10), 10) + gaussian(2000, 10), 1)


def tfidf(n: int = 2000, vocabulary: int = 2000, topics: int = 20, words: int = 60) -> Tensor:
    """Word counts of documents that mix topics, by Zipf's law, weighted and of unit norm."""
    random = np.random.default_rng(0)
    common = 1 / np.arange(1, vocabulary + 1)
    each = np.stack([random.permutation(common) + common for _ in range(topics)]) / (2 * common.sum())
    mixed = random.dirichlet(np.full(topics, 0.2), n) @ each
    counts = np.stack([random.multinomial(words, chance / chance.sum()) for chance in mixed])
    weighted = counts * np.log(n / (1 + (counts > 0).sum(0)).clip(1))
    return unit(torch.from_numpy(weighted))


def rectified() -> Tensor:
    """The output of a random network of three layers."""
    x = gaussian(2000, 64)
    for place, width in enumerate((256, 256, 128)):
        x = torch.relu(x @ gaussian(x.shape[1], width, 1 + place) / math.sqrt(x.shape[1]))
    return x


def cone() -> Tensor:
    """Far from the origin, with one wide coordinate, as transformers have them."""
    x = falling() + 3
    x[:, 5] *= 10
    return x


TOKENS = gaussian(300, 64, 1)
SETS: dict[str, tuple[int, Callable[[], Tensor]]] = {
    "wine": (32, lambda: torch.from_numpy(load_wine().data)),
    "wine, scaled": (32, lambda: scaled(load_wine().data)),
    "breast cancer": (64, lambda: torch.from_numpy(load_breast_cancer().data)),
    "breast cancer, scaled": (64, lambda: scaled(load_breast_cancer().data)),
    "iris": (32, lambda: torch.from_numpy(load_iris().data)),
    "diabetes": (64, lambda: torch.from_numpy(load_diabetes().data)),
    "digits, scaled": (64, lambda: scaled(load_digits().data)),
    "digits, 20 random projections": (64, lambda: torch.from_numpy(load_digits().data).float() @ gaussian(64, 20, 1)),
    "Gaussian": (64, lambda: gaussian(2000, 64)),
    "uniform": (64, lambda: uniform(2000, 64)),
    "Laplace": (64, lambda: torch.from_numpy(np.random.default_rng(0).laplace(size=(2000, 32)))),
    "Student's t, 2, by coordinate": (
        64,
        lambda: torch.from_numpy(np.random.default_rng(0).standard_t(2, size=(2000, 32))),
    ),
    "Student's t, 3, by radius": (64, lambda: gaussian(2000, 32) / gaussian(2000, 3, 9).norm(dim=1, keepdim=True)),
    "log-normal": (64, lambda: gaussian(2000, 32).exp()),
    "mixture of 10, near": (64, lambda: clusters(1.0)),
    "mixture of 10, apart": (64, lambda: clusters(2.0)),
    "mixture of 10, far apart": (64, lambda: clusters(5.0)),
    "mixture of 100, 20 points each": (
        64,
        lambda: 3 * gaussian(100, 64, 1).repeat_interleave(20, 0) + gaussian(2000, 64),
    ),
    "mixture of 40, of Zipf's sizes": (64, lambda: 3 * gaussian(40, 64, 1)[zipf(40)] + gaussian(2000, 64)),
    "10 subspaces, near": (64, lambda: subspaces(1.0)),
    "10 subspaces, far apart": (64, lambda: subspaces(5.0)),
    "two scales": (64, lambda: torch.cat([gaussian(1000, 32), 0.05 * gaussian(1000, 32, 2)])),
    "one-hot with noise": (64, lambda: one_hot(member(10), 10) + 0.1 * gaussian(2000, 10)),
    "class probabilities, unsure": (64, lambda: probabilities(0.0)),
    "class probabilities, confident": (64, lambda: probabilities(6.0)),
    "16 bits": (64, lambda: (uniform(2000, 16) > 0.5).float()),
    "256 bits": (64, lambda: (uniform(2000, 256) > 0.5).float()),
    "TF-IDF": (64, tfidf),
    "int8": (64, lambda: (20 * falling()).round().clamp(-128, 127)),
    "three levels": (64, lambda: gaussian(2000, 64).round().clamp(-1, 1)),
    "unit norm": (64, lambda: unit(falling())),
    "unit norm, mixture of 10": (64, lambda: unit(clusters(1.5))),
    "repeated tokens": (64, lambda: TOKENS[zipf(300)]),
    "repeated tokens with noise": (64, lambda: TOKENS[zipf(300)] + 0.1 * gaussian(2000, 64)),
    "repeated tokens with much noise": (64, lambda: TOKENS[zipf(300)] + 0.5 * gaussian(2000, 64)),
    "two views of each": (64, lambda: gaussian(1000, 64, 1).repeat_interleave(2, 0) + 0.1 * gaussian(2000, 64)),
    "random network": (64, rectified),
    "cone": (64, cone),
    "random walk": (64, lambda: gaussian(2000, 32).cumsum(0)),
    "line": (64, lambda: gaussian(2000, 1) @ gaussian(1, 64, 1) + 1e-3 * gaussian(2000, 64, 2)),
    "6 of 128 coordinates": (64, lambda: gaussian(2000, 6) @ torch.eye(6, 128)),
    "constant with noise": (64, lambda: 1 + 1e-4 * gaussian(2000, 64)),
}


def sets() -> list[dict[str, Any]]:
    return [{"set": name, **told(ldreg.inspect(draw(), k=k))} for name, (k, draw) in SETS.items()]


def told(report: DimensionReport) -> dict[str, Any]:
    """What is kept of a report."""
    found, other = report.guidance, report.comparison
    facts = {
        "points": report.points,
        "dimensions": report.dimensions,
        "k": report.k,
        "lid": report.mean.value,
        "usual": found.usual,
        "gaussian_dimension": found.gaussian_dimension,
        "effective_rank": report.effective_rank,
        "verdict": found.verdict,
        "doubt": found.doubt,
        "compared": None if other is None else other.mean.value,
        "beside": None if other is None else other.verdict,
    }
    digits = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in facts.items()}
    return {**digits, "words": report.in_words()}


# Tables.


def ratio(row: Mapping[str, Any], other: str) -> str:
    return "-" if not row[other] else f"{row['lid'] / row[other]:.2f}"


def spoken(row: Mapping[str, Any]) -> str:
    """The verdict, or why there is none, with what else the words say."""
    remarks = [row["verdict"] or (f"none: {row['doubt']}" if row["doubt"] else "none")]
    phrases = {"effective rank": "they fill few directions", "ties": "tie in distance", "a shell": "tells of a shell"}
    return ", ".join(remarks + [short for short, phrase in phrases.items() if phrase in row["words"]])


def encoder_table(rows: list[dict[str, Any]], split: str) -> list[str]:
    lines = [
        "| images | encoder | kNN | linear | LID | of usual | verdict | effective rank | of SimCLR's | beside SimCLR |",
        "|---|---|---:|---:|---:|---:|---|---:|---:|---|",
    ]
    for row in (row for row in rows if row["split"] == split):
        lines.append(
            f"| {row['images']} | {row['encoder']} | {100 * row['knn']:.0f} | {100 * row['linear']:.0f} | "
            f"{row['lid']:.1f} | {ratio(row, 'usual')} | {row['verdict'] or row['doubt'] or '-'} | "
            f"{row['effective_rank']:.1f} | {ratio(row, 'compared')} | {row['beside'] or '-'} |"
        )
    return lines


def set_table(rows: list[dict[str, Any]]) -> list[str]:
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(spoken(row), []).append(f"{row['set']} ({ratio(row, 'usual')})")
    return [
        "| words | sets (LID / usual) |",
        "|---|---|",
        *(f"| {said} | {'; '.join(of)} |" for said, of in named.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained encoders")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = {"encoders": [row for images in IMAGES for row in encoders(options.runs, images)], "sets": sets()}
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for lines in (*(encoder_table(found["encoders"], split) for split in SPLITS), set_table(found["sets"])):
        print("", *lines, sep="\n")
    print(f"\nwrote {options.out}")


if __name__ == "__main__":
    main()
