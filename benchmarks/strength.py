"""How far do LID and accuracy move with LDReg's share, and with its beta? Trainings on digits.

Run as `python benchmarks/strength.py`, which trains what is missing in benchmarks/strength.json (half a minute each on
one core), keeps every run as it ends, and prints tables as Markdown: all methods with the same shares, and SimCLR with
shares and betas at two batch sizes and two learning rates.
"""

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve

RESULTS = Path(__file__).with_name("strength.json")
METHODS = ("simclr", "simclr_tuned", "byol", "moco", "vicreg", "barlow_twins", "mae")
SEEDS = {"simclr": 3, "byol": 3}  # one of the others
SHARES = (0.03, 0.1, 0.3)
GRID = {"share": (0.01, 0.03, 0.1, 0.3, 1.0), "beta": (0.01, 0.03, 0.1, 0.3, 1.0)}  # the recipe's beta is 0.1
SETTINGS = [(batch, lr) for batch in (256, 512) for lr in (0.001, 0.004)]
MEASURES = (
    *("set/lid", "set/effective_rank", "set/linear", "set/knn", "batch/view_share"),
    *("terms/pull", "terms/effective_beta"),
)


def runs() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, recipe and options of every run."""
    for batch, lr in SETTINGS:
        common = {"batch_size": str(batch), "optimizer.lr": str(lr)}
        yield f"{batch} {lr} none", "simclr", common
        for kind, values in GRID.items():
            recipe = "simclr_share" if kind == "share" else "simclr_ldreg"
            for value in values:
                yield f"{batch} {lr} {kind} {value}", recipe, {**common, f"ldreg.{kind}": str(value)}
    for method in METHODS:
        for seed in range(SEEDS.get(method, 1)):
            yield f"{method} none {seed}", method, {"seed": str(seed)}
            yield f"{method} tuned {seed}", f"{method}_ldreg", {"seed": str(seed)}
            for share in SHARES:
                yield f"{method} {share} {seed}", f"{method}_share", {"seed": str(seed), "ldreg.share": str(share)}


def trained(recipe: str, options: dict[str, str]) -> dict[str, float]:
    """The last measurements of a run."""
    settings = resolve(load_recipe(f"digits/{recipe}"), [*options.items(), ("trainer.device", "cpu")])
    with tempfile.TemporaryDirectory() as folder:
        found = pretrain(settings, Path(folder) / "run").metrics
    return {name: round(found[name], 4) for name in MEASURES if name in found}


def cell(found: list[dict[str, float]]) -> str:
    """LID, linear and kNN accuracy in per cent, with the deviation over seeds."""
    parts = []
    for name, factor in (("set/lid", 1), ("set/linear", 100), ("set/knn", 100)):
        values = [one[name] * factor for one in found]
        deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{statistics.mean(values):.1f}{deviation}")
    return " / ".join(parts)


def tables(results: dict[str, Any]) -> str:
    """Both tables, of the runs that there are."""
    lines = [
        "LID / linear % / kNN %",
        "",
        f"| method | none | tuned β | {' | '.join(f'share {one}' for one in SHARES)} |",
    ]
    lines.append("|---" * (3 + len(SHARES)) + "|")
    for method in METHODS:
        cells = []
        for strength in ("none", "tuned", *SHARES):
            found = [results[name] for seed in range(9) if (name := f"{method} {strength} {seed}") in results]
            cells.append(cell(found) if found else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    for kind, values in GRID.items():
        lines += ["", f"| batch, learning rate | none | {' | '.join(f'{kind} {one}' for one in values)} |"]
        lines.append("|---" * (2 + len(values)) + "|")
        for batch, lr in SETTINGS:
            names = [f"{batch} {lr} none", *(f"{batch} {lr} {kind} {value}" for value in values)]
            cells = [cell([results[name]]) if name in results else "" for name in names]
            lines.append(f"| {batch}, {lr} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, recipe, options in runs():
        if name not in results:
            results[name] = trained(recipe, options)
            RESULTS.write_text(json.dumps(results, indent=0) + "\n")
            print(name, results[name], flush=True)
    print(tables(results))


if __name__ == "__main__":
    main()
