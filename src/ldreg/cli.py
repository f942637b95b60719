"""The `ldreg` command: parse, call one function, turn errors into one line."""

import argparse
import difflib
import inspect as signatures
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from jsonargparse import ArgumentError, ArgumentParser

from ldreg.completion import Shell, script, table
from ldreg.extras import advice, missing
from ldreg.subcommands import Command, command_line, command_parser, option, summary
from ldreg.terminal import open_page, progress_bar, show, steps_as_lines
from ldreg.version import __version__

if TYPE_CHECKING:  # imported where it is used, so that help stays quick
    from ldreg.benchmarking.keeping import Keeper
    from ldreg.benchmarking.plan import Plan
    from ldreg.reporting.record import DimensionReport

_LONGEST = 1000  # characters of an error; names in files from strangers can be of any length
_HINTED = 3  # arrays of a file that may be labels
_TABLES = (".csv", ".tsv", ".parquet")


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
    exclude: str | None = None,
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
        exclude: columns of a table that are no dimensions, separated by commas
        json: write every number, with LID per point, to this file
        html: write a self-contained page with figures to this file
    """
    command = command_line("inspect", inspect_command, locals())
    from ldreg.distributed import agreed
    from ldreg.inspection import check_settings, inspect

    files = _Files(file, labels, compare, key, label_key, compare_key, exclude)

    def read(first: bool) -> tuple[Any, Any, Any]:
        check_settings(k, estimator=estimator, convention=convention, sample=sample, device=device, seed=seed)
        if first:
            _check_outputs(inputs=[file, labels, compare], outputs=[json, html])
            _check_page(html)
        return files.read()

    with _together("ldreg inspect") as first, progress_bar(shown=first) as progress:
        progress("reading", 0.0)
        x, names, other = agreed(lambda: read(first))
        with _named(x=file, compare=compare):
            report = inspect(
                x, names, k, estimator=estimator, convention=convention, compare=other, sample=sample, device=device,
                seed=seed, share=True, progress=progress,
            )  # fmt: skip
        report = files.named_in(replace(report, command=command))
        agreed(lambda: _write({json: report.to_json, html: report.to_html}) if first else None)
    if first:
        from ldreg.reporting.table import as_text

        show(partial(as_text, report))
        if hint := files.hint(report.points):
            print(hint, file=sys.stderr)


@dataclass(frozen=True)
class _Files:
    """What `ldreg inspect` reads: embeddings, labels and a second set, and the names of arrays or columns in them."""

    file: str
    labels: str | None
    compare: str | None
    key: str | None
    label_key: str | None
    compare_key: str | None
    exclude: str | None

    def read(self) -> tuple[Any, Any, Any]:
        """Embeddings, labels and second embeddings, each None where there are none."""
        from ldreg.loading import load_embeddings, load_labels

        if self.compare_key is not None and self.compare is None:
            raise ValueError(f"--compare-key {self.compare_key!r} was given without --compare")
        for path in (self.file, self.compare):
            if path is not None and Path(path).is_dir():
                advice = "of a run, ldreg evaluate dimension has what this has, and --representations FILE"
                raise IsADirectoryError(f"{path}: expected a file of embeddings, got a folder; {advice}")
        excluded = [] if self.exclude is None else [name.strip() for name in self.exclude.split(",")]
        labels = self.labels
        if self.label_key is not None and labels is None:  # labels beside the embeddings, in the same file
            labels = self.file
            if _is_table(self.file) and self.label_key not in excluded:
                excluded.append(self.label_key)
        x = load_embeddings(self.file, key=self.key, exclude=excluded)
        names = None if labels is None else load_labels(labels, key=self.label_key, count=len(x))
        if self.compare is None:
            return x, names, None
        others = excluded if _is_table(self.compare) else []
        try:
            return x, names, load_embeddings(self.compare, key=self.compare_key, exclude=others)
        except ValueError as error:  # of the first file the option is --key
            raise ValueError(str(error).replace(" --key ", " --compare-key ")) from error

    def hint(self, points: int) -> str:
        """Which option takes labels that lie beside the embeddings; empty where labels were given or there are none."""
        from ldreg.loading import label_arrays

        names = [] if self.labels or self.label_key else label_arrays(self.file, points)
        options = " or ".join(f"--label-key {quote(name)}" for name in names[:_HINTED])
        return f"{self.file} holds what may be labels: {options} measures LID per class" if names else ""

    def named_in(self, report: "DimensionReport") -> "DimensionReport":
        """The report with the names of the files that its sets come from."""
        title, other = self._titles()
        report, found = replace(report, title=title), report.comparison
        if found is None:
            return report
        return replace(report, comparison=replace(found, other=replace(found.other, title=other)))

    def _titles(self) -> tuple[str, str]:
        """What the two sets are called: by their files' names, or by as much more as tells them apart."""
        first, second = Path(self.file), Path(self.compare or "")
        if self.compare is None or first.name != second.name:
            return first.name, second.name
        if first != second:
            return self.file, self.compare
        one, two = (first.name if key is None else f"{first.name}, {key}" for key in (self.key, self.compare_key))
        return one, two if one != two else f"{two} again"


def _is_table(file: str) -> bool:
    return Path(file).suffix.lower() in _TABLES


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
            expected = isinstance(error, ValueError | OSError | MemoryError) or _is_out_of_memory(error)
            if expected and rank() == 0:
                _fail(program, error)
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


def demo_command(*, out: str = "ldreg-demo", seed: int = 0, epochs: int | None = None) -> None:
    """Train SimCLR on scikit-learn's digits without and with LDReg, and compare the two in a report.

    Args:
        out: folder to write the report, its numbers, the runs and pictures into
        seed: of every random draw
        epochs: of each of the two runs; 80 by default, 60 without ldreg[train]
    """
    import torch

    from ldreg.demo import demo
    from ldreg.reporting.comparison import comparison_text

    if missing("train") is not None:
        print('a small SimCLR in plain PyTorch; pip install "ldreg[train]" trains by the recipes', file=sys.stderr)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # all of it is small: more threads mostly wait for one another, and for whatever else runs
    try:
        found = demo(Path(out), epochs=epochs, seed=seed, progress=steps_as_lines())
    finally:
        torch.set_num_threads(threads)
    show(partial(comparison_text, found.runs))
    for cloud in found.reached:
        print(f"{cloud.caption}: reached LID {cloud.mean_lid:.2f}, global dimension {cloud.global_dimension:.2f}")
    print(f"\nThe report is {found.report}")
    open_page(found.report)


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
    from ldreg.benchmarking.plan import Plan
    from ldreg.benchmarking.suite import BENCHMARKS

    names = () if contenders is None else tuple(name.strip() for name in contenders.split(","))
    chosen = tuple(BENCHMARKS) if what == "all" else (what,)
    plan = Plan(chosen, sizes, names, k, repeats, threads, seed, command, device)
    _measure(plan, _keeper(plan, json, None if out is None else Path(out)))


def _keeper(plan: "Plan", json: str | None, folder: Path | None) -> "Keeper":
    """Who takes the results of the plan; that they can be written is found out now."""
    from ldreg.benchmarking.keeping import Keeper, replaced_by
    from ldreg.benchmarking.results import RESULTS

    def warn(line: str) -> None:
        print(f"ldreg bench: warning: {line}", file=sys.stderr)

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    _check_outputs(inputs=[], outputs=[json, None if folder is None else str(folder / RESULTS)])
    if plan.left_out:
        warn(f"left out, as none of the contenders takes part: {', '.join(plan.left_out)}")
    return Keeper(json, folder, replaced=replaced_by(plan.taken, plan.place), warn=warn)


def _measure(plan: "Plan", keeper: "Keeper") -> None:
    """Carry out the plan; interrupted, what is measured by then is shown and written all the same."""
    from ldreg.benchmarking.processes import stoppable
    from ldreg.benchmarking.report import as_text
    from ldreg.benchmarking.runner import run

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


def export_command(run: str, *, out: str = "encoder.onnx", size: int | None = None, normalize: bool = False) -> None:
    """Write the encoder of a run to an ONNX file, checked with onnxruntime.

    Args:
        run: run folder, or a checkpoint that ldreg evaluate takes
        out: file to write, .onnx at its end
        size: side of the images, where the checkpoint does not say
        normalize: true for a file that takes images from 0 to 1 and normalizes them itself
    """
    from ldreg.integrations.onnx import command

    command(run, out=out, size=size, normalize=normalize)


def completion_command(shell: Shell) -> None:
    """Print what makes a shell complete the commands and options of ldreg.

    Args:
        shell: bash, zsh or fish
    """
    print(script(shell), end="")


COMMANDS = {
    "inspect": Command(
        inspect_command,
        (
            "ldreg inspect embeddings.npy",
            "ldreg inspect features.npz --key train --labels labels.csv --html report.html",
            "ldreg inspect table.csv --label-key species",
            "ldreg inspect huge.safetensors --sample 20000 --compare before.safetensors",
            "torchrun --nproc-per-node 4 -m ldreg inspect huge.npy",
        ),
        {
            **dict.fromkeys(("labels", "compare", "json", "html"), "FILE"),
            **dict.fromkeys(("key", "label_key", "compare_key"), "NAME"),
            "device": "NAME",
            "exclude": "NAME,...",
        },
    ),
    "demo": Command(demo_command, ("ldreg demo", "ldreg demo --out first-look"), {"out": "FOLDER"}),
    "export": Command(
        export_command,
        ("ldreg export runs/first", "ldreg export runs/first --out encoder.onnx --normalize true"),
        {"out": "FILE", "normalize": "BOOL"},
    ),
    "bench": Command(
        bench_command,
        (
            "ldreg bench lid",
            "ldreg bench all --out benchmarks",
            "ldreg bench regularizer --device cuda",
            "ldreg bench views --sizes quick",
            "ldreg bench lid --sizes 5kx256,50kx256 --contenders ldreg,faiss",
        ),
        {"sizes": "SIZES", "contenders": "NAME,...", "json": "FILE", "out": "FOLDER"},
    ),
    "completion": Command(
        completion_command,
        (
            "# in ~/.bashrc",
            'eval "$(ldreg completion bash)"',
            "# in ~/.zshrc, after compinit if that is there",
            'eval "$(ldreg completion zsh)"',
            "# in ~/.config/fish/config.fish",
            "ldreg completion fish | source",
        ),
        {},
    ),
}


def pretrain_command(words: Sequence[str]) -> None:
    """Train an encoder by self-supervision, with or without LDReg."""
    from ldreg.training.command import pretrain_command

    pretrain_command(words)


def evaluate_command(words: Sequence[str]) -> None:
    """Judge an encoder: linear probe, kNN, fine-tuning, dimension, transfer, detection."""
    from ldreg.assessment.evaluate import evaluate_command

    evaluate_command(words)


def report_command(words: Sequence[str]) -> None:
    """Compare runs on one self-contained page."""
    from ldreg.assessment.report import report_command

    report_command(words)


def reproduce_command(words: Sequence[str]) -> None:
    """Run the paper's tables and figures, and print measured values beside the paper's."""
    from ldreg.reproduction.usage import reproduce_command

    reproduce_command(words)


# Commands that read their words themselves, because their options depend on one another.
WORDS: dict[str, Callable[[Sequence[str]], None]] = {
    "pretrain": pretrain_command,
    "evaluate": evaluate_command,
    "reproduce": reproduce_command,
    "report": report_command,
}


_EXAMPLES = """examples:
  ldreg inspect embeddings.npy --labels labels.csv --html report.html
  ldreg demo
  ldreg bench lid --sizes quick
  ldreg pretrain --method byol --regularizer ldreg --out runs/first
  ldreg evaluate linear runs/first
  ldreg reproduce table1 --scale digits
  ldreg report runs/first runs/second
  ldreg export runs/first --out encoder.onnx
  eval "$(ldreg completion bash)"

ldreg COMMAND --help says more. Measuring needs nothing else; what needs further
packages says so: pip install "ldreg[train]".
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ldreg` with these arguments (those of the process by default) and return its exit status.

    0: done; 1: training went wrong; 2: wrong arguments or input; 75: the time that was given is over; 130 or
    143: interrupted. What was wrong is said in one line on stderr; with LDREG_DEBUG=1 in the environment, the traceback
    is printed too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    program = f"ldreg {arguments[0]}" if arguments and arguments[0] in (*COMMANDS, *WORDS) else "ldreg"
    try:
        _check_help(arguments)
        if arguments and arguments[0] in WORDS:
            WORDS[arguments[0]](arguments[1:])
            sys.stdout.flush()
            return 0
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            meant = _meant(arguments[0], (*COMMANDS, *WORDS)) or "; ldreg --help lists all"
            raise ValueError(f"unknown command {arguments[0]!r}{meant}")
        parser = _parser()
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        parsed = parser.parse_args(arguments)
        COMMANDS[parsed.subcommand].run(**vars(parsed[parsed.subcommand]))
        sys.stdout.flush()
    except SystemExit as leave:  # --help and --version
        return leave.code if isinstance(leave.code, int) else 2
    except BrokenPipeError:
        # Whoever read the output has seen enough; the flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        print(f"{program}: {_shown(str(stop)) or 'interrupted'}", file=sys.stderr)
        return int(getattr(stop, "status", 130))
    except (ArgumentError, ValueError, OSError, MemoryError) as error:
        return _fail(program, error)
    except ModuleNotFoundError as error:
        told = advice((error.name or "").partition(".")[0])
        if told is None:
            raise
        return _fail(program, ValueError(told))
    except ArithmeticError as error:  # a run that was well asked for went wrong
        return _fail(program, error, status=1)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        return _fail(program, error)
    return 0


def _check_help(arguments: Iterable[str]) -> None:
    """Propose --help where it is what was misspelled: commands that read their words would propose settings."""
    for word in arguments:
        if word.startswith("-") and word != "--help" and difflib.get_close_matches(word, ["--help"], cutoff=0.8):
            raise ValueError(f"unrecognized arguments: {word}; did you mean '--help'?")


def run() -> NoReturn:
    """Run `ldreg` with the arguments of the process, and end it."""
    for name in ("stdout", "stderr"):  # may have been closed by whoever started us
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process is
    status = main()
    groups = sys.modules.get("torch.distributed")  # not imported for those who did without
    if groups is not None and groups.is_available() and groups.is_initialized():
        from ldreg.distributed import leave

        leave(status)
    sys.exit(status)


def _fail(program: str, error: BaseException, *, status: int = 2) -> int:
    if os.environ.get("LDREG_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"{program}: error: {_one_line(error, program)}", file=sys.stderr)
    return status


def _one_line(error: BaseException, program: str) -> str:
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if _is_out_of_memory(error):
        message = f"out of memory; {_LESS_MEMORY.get(program, 'a smaller problem may fit')}"
    if isinstance(error, ArgumentError):
        message = _argument_message(" ".join(message.split()), program)
        unknown = re.fullmatch(r"unrecognized arguments: (--[^\s=]+)\S*( .*)?", message)
        message += _meant(unknown[1], _known_options(program)) if unknown else ""
    return _shown(message) or type(error).__name__


def _meant(word: str, known: Iterable[str]) -> str:
    """A question that proposes the known word most like a wrong one; nothing where none is like it.

    >>> _meant("inspekt", ["inspect", "demo"]), _meant("wholly", ["inspect", "demo"])
    ("; did you mean 'inspect'?", '')
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _known_options(program: str) -> Iterable[str]:
    return table().get(program.removeprefix("ldreg").strip(), ([], {}))[1]


def _shown(message: str) -> str:
    """A message on one line that a terminal takes, whatever a file or a name in it held; too long a one in its ends."""
    from ldreg.reporting.text import printable

    line = printable(" ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-(_LONGEST // 2) :]}"


_LESS_MEMORY = {
    "ldreg inspect": "--sample measures fewer points, --device cpu needs no GPU memory",
    "ldreg evaluate": "a smaller --batch_size or --precision bf16 needs less, --device cpu needs no GPU memory",
    "ldreg pretrain": "a smaller --batch_size, --trainer.accumulate or --trainer.precision bf16 needs less",
}


def _is_out_of_memory(error: BaseException) -> bool:
    said = str(error)
    return isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said


def _argument_message(message: str, program: str) -> str:
    """What jsonargparse says about a wrong argument, in the words of the command line."""
    message = re.sub(r'^Parser key "([^"]+)": ', lambda match: f"{_shown_name(match[1], program)}: ", message)
    message = re.sub(r"Expected an? (.+)\. Got value: ", r"expected \1, got ", message)
    message = re.sub(r"<class '(\w+)'>", r"\1", message)
    message = re.sub(r"typing\.Literal\[(.+?)\]", lambda match: f"one of {match[1]}", message)
    return re.sub(r"required: (\w+\.)?(\w+)$", lambda match: f"required: {match[2].upper()}", message)


def _shown_name(key: str, program: str) -> str:
    """An option as it is given, and an argument without a dash by its name."""
    name, command = key.rpartition(".")[2], COMMANDS.get(program.removeprefix("ldreg").strip())
    parameter = None if command is None else signatures.signature(command.run).parameters.get(name)
    return name if parameter is not None and parameter.default is parameter.empty else option(name)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="ldreg",
        usage="ldreg COMMAND ...",
        version=__version__,
        description="Measure and prevent local dimensional collapse of representations.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    commands = parser.add_subcommands(
        required=True, title="commands", description=None, metavar="COMMAND [...]", help=None
    )
    for name, command in COMMANDS.items():
        commands.add_subcommand(name, command_parser(name, command), help=summary(command))
    for name, run in WORDS.items():
        commands.add_subcommand(name, ArgumentParser(), help=(run.__doc__ or "").partition("\n")[0])
    return parser


def _check_page(html: str | None) -> None:
    """Refuse to write the page over what is no page of ours."""
    from ldreg.reporting.opening import check_own

    if html is not None:
        check_own(Path(html), option="--html")


def _check_outputs(*, inputs: Sequence[str | None], outputs: Sequence[str | None]) -> None:
    """Find out before the work that a result could not be written, or would replace an input."""
    from ldreg.reporting.files import check_writable, real_path

    taken = {real_path(path) for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        if real_path(path) in taken:
            raise ValueError(f"cannot write {path!r}: it is an input, or another output has the same name")
        check_writable(path)
        taken.add(real_path(path))


def _write(outputs: dict[str | None, Callable[[str], None]]) -> None:
    """Write every output that has a path, and say so."""
    for path, write in outputs.items():
        if path is not None:
            write(path)
            print(f"wrote {path}", file=sys.stderr)
