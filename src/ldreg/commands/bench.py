"""`ldreg bench`: measure, show and keep."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ldreg.subcommands import command_line
from ldreg.terminal import progress_bar, show

if TYPE_CHECKING:  # imported where it is used, so that help stays quick
    from ldreg.bench.keeping import Keeper
    from ldreg.bench.plan import Plan


def bench_command(
    what: Literal["lid", "regularizer", "views", "step", "all"],
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    sizes: str = "full",
    contenders: str | None = None,
    k: int = 64,
    repeats: int = 3,
    threads: int | None = None,
    seed: int = 0,
    json: str | None = None,
    out: str | None = None,
) -> None:
    """Measure the speed and memory of ldreg beside other ways to do the same.

    Args:
        what: lid (of a whole set), regularizer (forward and backward), views (of images), step (of training) or all
        device: auto, cpu or cuda, for ldreg and all others who can; auto is CUDA where there is a GPU
        sizes: full, quick, or separated by commas POINTSxDIMENSIONS, as 2000x512,10kx128; for views
            [files:]IMAGESxPIXELS, for step IMAGESxPIXELS[:ENCODER]
        contenders: names from the table, separated by commas; all by default
        k: nearest neighbors
        repeats: of each measurement, of which the median; one where it takes over 10 seconds
        threads: that each contender gets, or worker processes; all cores by default
        seed: of the points and images
        json: write every number to this file
        out: write RESULTS.md, plots and numbers into this folder
    """
    command = command_line("bench", bench_command, locals())
    from ldreg.bench.plan import Plan
    from ldreg.bench.suite import BENCHMARKS

    names = () if contenders is None else tuple(name.strip() for name in contenders.split(","))
    chosen = tuple(BENCHMARKS) if what == "all" else (what,)
    plan = Plan(chosen, sizes, names, k, repeats, threads, seed, command, device)
    _measure(plan, _keeper(plan, json, None if out is None else Path(out)))


def _keeper(plan: "Plan", json: str | None, folder: Path | None) -> "Keeper":
    """Who takes the results of the plan; that they can be written is found out now."""
    from ldreg.bench.keeping import Keeper, replaced_by
    from ldreg.bench.results import RESULTS
    from ldreg.io.files import check_outputs

    def warn(line: str) -> None:
        print(f"ldreg bench: warning: {line}", file=sys.stderr)

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    check_outputs(inputs=[], outputs=[json, None if folder is None else folder / RESULTS])
    if plan.left_out:
        warn(f"left out, as none of the contenders takes part: {', '.join(plan.left_out)}")
    return Keeper(json, folder, replaced=replaced_by(plan.taken, plan.place), warn=warn)


def _measure(plan: "Plan", keeper: "Keeper") -> None:
    """Carry out the plan; interrupted, what is measured by then is shown and written all the same."""
    from ldreg.bench.processes import stoppable
    from ldreg.bench.report import as_text
    from ldreg.bench.runner import run

    stopped: KeyboardInterrupt | None = None
    with stoppable():
        try:
            with progress_bar() as progress:
                run(plan, progress, keeper.take)
        except KeyboardInterrupt as stop:
            stopped = stop
        keeper.finish()
        if keeper.runs:
            show(partial(as_text, keeper.runs))
    for path in keeper.written:
        print(f"wrote {path}", file=sys.stderr)
    keeper.settle(stopped)
