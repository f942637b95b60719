"""The loss of the same run, step by step, as it is trained in several ways that should not change it.

python benchmarks/step_numerics.py                                  digits, a small encoder
python benchmarks/step_numerics.py --recipe cifar10/simclr_ldreg --data.path cifar10.tar.xz --epochs 3 \\
    --schedule.warmup_epochs 1

The first way is float32 without any of what makes steps fast; bf16 is that in mixed precision; the others add
channels-last memory and compiled parts (on CUDA, in graphs). The table has how far each curve is off the first,
relative to it: what is compiled should be off by as much as bf16 is, and by little among the first steps, before
training has made any difference grow. All other options go to `ldreg pretrain`. Written: a plot beside --out.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from ldreg.monitor.log import read_metrics

FAST = ["--trainer.channels_last", "true", "--trainer.compile", "true"]
WAYS = {
    "float32": ["--trainer.precision", "fp32", "--trainer.channels_last", "false", "--trainer.compile", "false"],
    "float32, compiled": ["--trainer.precision", "fp32", *FAST],
    "bf16": ["--trainer.precision", "bf16", "--trainer.channels_last", "false", "--trainer.compile", "false"],
    "bf16, compiled": ["--trainer.precision", "bf16", *FAST],
}
STYLES = {"float32": "-", "float32, compiled": ":", "bf16": "--", "bf16, compiled": "-."}
EARLY = 20  # steps


def curve(recipe: str, epochs: int, options: list[str]) -> list[float]:
    """The loss at every step of a run of the command."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        said = {"recipe": recipe, "out": run, "schedule.epochs": epochs, "monitor.every_steps": 1}
        words = [str(word) for key, value in said.items() for word in (f"--{key}", value)]
        command = [sys.executable, "-m", "ldreg", "pretrain", *words, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        return [value for _, _, value in read_metrics(run / "metrics.csv")["batch/loss"]]


def draw(curves: dict[str, list[float]], title: str, path: Path) -> None:
    """Curves above, what they are off the first below."""
    first = next(iter(curves.values()))
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, constrained_layout=True)
    for name, values in curves.items():
        steps = range(1, len(values) + 1)
        above.plot(steps, values, STYLES[name], label=name)
        if values is not first:
            below.plot(steps, [abs(value / base - 1) for value, base in zip(values, first, strict=True)], STYLES[name])
        else:
            below.plot([], [])  # so that colors agree
    above.set(ylabel="loss", title=title)
    below.set(ylabel="relative to float32: off by", xlabel="step", yscale="log")
    above.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train in all ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits/simclr_ldreg")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("step_numerics.png"))
    parser.add_argument("--together", action="store_true", help="train all at once, where a machine has room for four")
    asked, options = parser.parse_known_args()
    with ThreadPoolExecutor(len(WAYS) if asked.together else 1) as pool:
        found = pool.map(lambda way: curve(asked.recipe, asked.epochs, [*way, *options]), WAYS.values())
        curves = dict(zip(WAYS, found, strict=True))
    first = curves["float32"]
    print(f"{asked.recipe}, {len(first)} steps, loss {first[0]:.4f} to {first[-1]:.4f}")
    print(f"{'off float32 by':20s} {'first step':>12s} {f'first {EARLY}':>12s} {'median':>12s} {'last loss':>12s}")
    for name, values in curves.items():
        off = [abs(value / base - 1) for value, base in zip(values, first, strict=True)]
        early = max(off[:EARLY])
        print(f"{name:20s} {off[0]:12.1e} {early:12.1e} {statistics.median(off):12.1e} {values[-1]:12.4f}")
    draw(curves, f"{asked.recipe}: the loss in four ways", asked.out)


if __name__ == "__main__":
    main()
