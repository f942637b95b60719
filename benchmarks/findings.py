"""Calibrate the findings of `ldreg inspect` on healthy sets and on sets spoiled in known ways.

Run `python benchmarks/findings.py --half tune --cache FOLDER [--images FOLDER]`. The sources of `sources.py` are in two
halves: one sets the thresholds of `ldreg.inspection.findings` (`--half tune`), the other judges them (`--half judge`).
The script prints Markdown tables and writes its half of benchmarks/findings.json.

- A set squeezed in part counts for `collapsed_group` if the group has more than 2k points and 5 % of all, and the
  median LID of its points falls to half or less. It is found if a finding overlaps the group. Its share is right if
  the shares of all such findings add up to the true one within 5 points.
- A false alarm is a warning or critical finding in a healthy set. Near-copies (`duplicates`, `near_duplicates`) and
  classes that are low by nature (`NATURAL`) are counted apart and listed with examples.
- `compare` of a spoiled set with the same points before must not say `higher_beside` or `similar_beside`.
"""

import argparse
import json
import platform
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sources import Array, Source, sources

import ldreg
from ldreg.dimension.spectrum import effective_rank, relative_spread
from ldreg.dimension.streaming import stream_lid
from ldreg.inspection.findings import Points, compare, find
from ldreg.record import Finding

OUT = Path(__file__).with_name("findings.json")
Rng = np.random.Generator

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DIMENSIONS = (1, 2, 3, 5, 10)
RESIDUES = (0.0, 0.0, 0.01, 0.03, 0.1)
SQUEEZES = 24  # of each source
DEAD, COPIED = (0.05, 0.2, 0.45, 0.9), (0.05, 0.2, 0.6)
COPIES = {"duplicates", "near_duplicates", "copies"}
NATURAL = {"comments": {"encodings"}}  # its comments are tables of characters


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


def summary(found: Sequence[Finding]) -> list[list[Any]]:
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
        for f in (f for f in found if f.serious):
            natural = f.kind in COPIES or (f.labels and {f.labels[0][0]} <= NATURAL.get(name, set()))
            (apart if natural else alarms).append(f)
        healthy.append((x, y, shown, points, found))
        result = Result(name, "healthy", f"{n} x {x.shape[1]}", n, k, shown is not None, summary(found), ok=not alarms)
        texts = source.texts(n, seed) if apart and source.texts else None
        result.apart = [f"{f.kind} {f.share:.0%}, N = {n}, k = {k}: {shown_rows(f, texts)}" for f in apart]
        if k in (16, 32):
            order = np.random.default_rng(seed).permutation(n)
            (first, a), (second, b) = (measured(x[np.sort(order[part::2])], None, k) for part in (0, 1))
            result.beside = compare(first, second, own_findings=a, other_findings=b).kind
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
            yield judged(name, "Min LID", detail, (low, None, np.arange(len(low))), twin, before)


def judged(
    name: str, kind: str, detail: str, spoiled: tuple[Array, Array | None, Array], twin: Points, before: Any
) -> Result:
    z, shown, rows = spoiled
    points, found = measured(z, shown, twin.k)
    share = len(rows) / len(z)
    labels, spoiling = shown is not None, f"{share:.0%} {detail}".strip()
    result = Result(name, kind, spoiling, len(z), twin.k, labels, summary(found), share)
    result.beside = compare(points, twin, own_findings=found, other_findings=before).kind
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
            share = "to 20 %" if row.share <= 0.2 else "to 50 %" if row.share <= 0.5 else "above 50 %"
            kinds[f"eligible, share {share}"].append(row)
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
    parser.add_argument("--images", type=Path, help="folder of image archives")
    parser.add_argument("--points", type=int, default=50_000, help="leave out larger sets")
    given = parser.parse_args()
    (given.cache / "runs").mkdir(parents=True, exist_ok=True)
    start, rows = time.monotonic(), []
    for name, source in sources(given.cache, given.images)[given.half].items():
        sizes = tuple(size for size in source.sizes if size[0] <= given.points)
        rows += list(results(name, replace(source, sizes=sizes)))
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    print(tables(rows))
    kept = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    versions = {package.__name__: package.__version__ for package in (ldreg, torch, np)}
    versions["python"] = platform.python_version()
    names = list(Result.__dataclass_fields__)
    kept[given.half] = {
        "command": f"python benchmarks/findings.py --half {given.half} --points {given.points}", "versions": versions,
        "seconds": round(time.monotonic() - start), "columns": names,
        "sets": [[getattr(row, column) for column in names] for row in rows],
    }  # fmt: skip
    text = json.dumps(kept, allow_nan=False).replace(']], "', ']],\n"').replace('], ["', '],\n["')
    OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
