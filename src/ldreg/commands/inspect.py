"""`ldreg inspect`: read, measure, write and show, in one process or in those of torchrun."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ldreg.commands.inspected import InspectedFiles
from ldreg.commands.messages import fail, is_out_of_memory
from ldreg.subcommands import command_line
from ldreg.terminal import progress_bar, show


def inspect_command(
    file: str,
    *,
    labels: str | None = None,
    compare: str | None = None,
    k: int = 64,
    sample: int | None = None,
    estimator: Literal["mom", "mle", "tle"] = "mom",
    convention: Literal["paper", "pseudocode"] = "paper",
    device: str = "auto",
    seed: int = 0,
    key: str | None = None,
    label_key: str | None = None,
    compare_key: str | None = None,
    compare_labels: str | None = None,
    compare_label_key: str | None = None,
    exclude: str | None = None,
    include: str | None = None,
    json: str | None = None,
    html: str | None = None,
) -> None:
    """Measure the local and global dimensionality of embeddings in a file.

    Args:
        file: embeddings, one row per point: .npy, .npz, .pt, .safetensors, .csv, .tsv or .parquet
        labels: file with one class label per point, for LID per class
        compare: second file of embeddings, that you trust: whether LID is lower than theirs, as after a collapse
        k: nearest neighbors that LID is estimated from
        sample: measure this many points, drawn at random; neighbors still come from all
        estimator: of LID: mom (method of moments), mle (maximum likelihood), tle (tight locality)
        convention: mean over all k distances (paper) or over the first k - 1 (pseudocode)
        device: auto (cuda where there is one), cpu or cuda; sets larger than its memory come to it in blocks
        seed: of every random draw
        key: which array or list column of FILE, where it holds several
        label_key: which array or column holds the labels, in the file of --labels or else in FILE
        compare_key: which array or list column of the second file
        compare_labels: file with one class label per point of the second file, to compare class by class
        compare_label_key: which array or column holds the labels of the second file, in that of --compare-labels or
            else in the second file; by default, with --compare-labels, the one that --label-key names
        exclude: columns of a table that are no dimensions, separated by commas; of FILE, the second file or both
        include: columns of a table that are dimensions though they look like ids or labels, separated by commas; of
            FILE, the second file or both
        json: write every number, with LID per point, to this file
        html: write a self-contained page with figures to this file
    """
    command = command_line("inspect", inspect_command, locals())
    from ldreg.distributed import agreed
    from ldreg.inspection import check_settings, inspect

    files = InspectedFiles(
        file, labels, compare, key, label_key, compare_key, compare_labels, compare_label_key, exclude, include
    )  # fmt: skip

    def read(first: bool) -> tuple[Any, Any, Any, Any]:
        check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
        if first:
            files.check_outputs(json=json, html=html)
        return files.read()

    with _together("ldreg inspect") as first, progress_bar(shown=first) as progress:
        progress("reading", 0.0)
        x, names, other, others = agreed(lambda: read(first))
        with _named(x=file, compare=compare):
            report = inspect(
                x, names, k, estimator=estimator, convention=convention, compare=other, compare_labels=others,
                sample=sample, device=device, seed=seed, share=True, progress=progress,
            )  # fmt: skip
        report = files.named_in(replace(report, command=command))
        agreed(lambda: _write({json: report.to_json, html: report.to_html}) if first else None)
    if first:
        from ldreg.report.inspection_tables import inspection_text

        show(partial(inspection_text, report))
        if hint := files.hint(report.points):
            print(hint, file=sys.stderr)


@contextmanager
def _together(program: str) -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; yields whether this is the one that speaks for all.

    What goes wrong in here must go wrong for all of them. It is said by that one alone, and before any of them ends,
    since torchrun ends the others when it sees one end. Where one is gone, each of the others says so.
    """
    from ldreg.distributed import LostProcessError, agreed, joined, launched, rank

    if not launched():
        yield True
        return
    with joined():
        try:
            yield rank() == 0
        except LostProcessError:
            raise
        except Exception as error:
            expected = isinstance(error, ValueError | OSError | MemoryError) or is_out_of_memory(error)
            if expected and rank() == 0:
                fail(program, error)
            with suppress(LostProcessError):
                agreed(lambda: None)
            if not expected:
                raise
            raise SystemExit(2) from error


@contextmanager
def _named(**files: str | None) -> Iterator[None]:
    """Say the file's name where an error speaks of the argument that was read from it."""
    try:
        yield
    except ValueError as error:
        argument, colon, rest = str(error).partition(": ")
        if colon and files.get(argument) is not None:
            rest = rest.replace("; try k=", "; try --k ")  # as it is written here
            raise ValueError(f"{files[argument]}: {rest}") from error
        raise


def _write(outputs: dict[str | None, Callable[[str], None]]) -> None:
    """Write every output that has a path, and say so."""
    for path, write in outputs.items():
        if path is not None:
            write(path)
            print(f"wrote {path}", file=sys.stderr)
