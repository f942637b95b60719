"""`ldreg bench`: measure, show and keep."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ldreg.terminal import progress_bar, show

if TYPE_CHECKING:  # imported where it is used, so that help stays quick
    from ldreg.bench.keeping import Keeper
    from ldreg.bench.plan import Plan


def bench(
    what: str,
    device: Literal["auto", "cpu", "cuda"],
    sizes: str,
    contenders: tuple[str, ...],
    k: int,
    repeats: int,
    threads: int | None,
    seed: int,
    *,
    json: str | None,
    out: str | None,
    command: str,
) -> None:
    """Measure, print and write, as `ldreg bench` documents its options.

    Raises:
        ValueError: an unknown name or a number out of range.
        OSError: a file cannot be written.
    """
    from ldreg.bench.plan import Plan
    from ldreg.bench.suite import BENCHMARKS

    chosen = tuple(BENCHMARKS) if what == "all" else (what,)
    plan = Plan(chosen, sizes, contenders, k, repeats, threads, seed, command, device)
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
