"""The `ldreg` command: parse, call one function, turn errors into one line."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from jsonargparse import ArgumentError, ArgumentParser

from ldreg.commands.bench import bench_command
from ldreg.commands.inspect import inspect_command
from ldreg.commands.messages import fail, is_out_of_memory, meant, shown
from ldreg.completion import Shell, script
from ldreg.extras import advice, missing
from ldreg.subcommands import Command, command_parser, summary
from ldreg.terminal import open_page, show, steps_as_lines
from ldreg.version import __version__


def demo_command(*, out: str = "ldreg-demo", seed: int = 0, epochs: int | None = None) -> None:
    """Train SimCLR on scikit-learn's digits without and with LDReg, and compare the two in a report.

    Args:
        out: folder to write the report, its numbers, the runs and pictures into
        seed: of every random draw
        epochs: of each of the two runs; 80 by default, 60 without ldreg[train]
    """
    import torch

    from ldreg.demo import demo
    from ldreg.report.comparison import comparison_text

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


def export_command(run: str, *, out: str = "encoder.onnx", size: int | None = None, normalize: bool = False) -> None:
    """Write the encoder of a run to an ONNX file, checked with onnxruntime.

    Args:
        run: run folder, or a checkpoint that ldreg evaluate takes
        out: file to write, .onnx at its end
        size: side of the images, where the checkpoint does not say
        normalize: for a file that takes images from 0 to 1 and normalizes them itself
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
            "ldreg inspect new.npy --labels y.csv --compare old.npy --compare-labels y.csv",
            "torchrun --nproc-per-node 4 -m ldreg inspect huge.npy",
        ),
        {
            **dict.fromkeys(("labels", "compare", "compare_labels", "json", "html"), "FILE"),
            **dict.fromkeys(("key", "label_key", "compare_key", "compare_label_key"), "NAME"),
            "device": "NAME",
            **dict.fromkeys(("exclude", "include"), "NAME,..."),
        },
    ),
    "demo": Command(demo_command, ("ldreg demo", "ldreg demo --out first-look"), {"out": "FOLDER"}),
    "export": Command(
        export_command,
        ("ldreg export runs/first", "ldreg export runs/first --out encoder.onnx --normalize"),
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
    from ldreg.train.command import pretrain_command

    pretrain_command(words)


def evaluate_command(words: Sequence[str]) -> None:
    """Judge an encoder: linear probe, kNN, fine-tuning, dimension, transfer, detection."""
    from ldreg.evaluate.command import evaluate_command

    evaluate_command(words)


def report_command(words: Sequence[str]) -> None:
    """Compare runs on one self-contained page."""
    from ldreg.evaluate.report import report_command

    report_command(words)


def reproduce_command(words: Sequence[str]) -> None:
    """Run the paper's tables and figures, and print measured values beside the paper's."""
    from ldreg.reproduce.usage import reproduce_command

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
            proposed = meant(arguments[0], (*COMMANDS, *WORDS)) or "; ldreg --help lists all"
            raise ValueError(f"unknown command {arguments[0]!r}{proposed}")
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
        print(f"{program}: {shown(str(stop)) or 'interrupted'}", file=sys.stderr)
        return int(getattr(stop, "status", 130))
    except (ArgumentError, ValueError, OSError, MemoryError) as error:
        return fail(program, error)
    except ModuleNotFoundError as error:
        told = advice((error.name or "").partition(".")[0])
        if told is None:
            raise
        return fail(program, ValueError(told))
    except ArithmeticError as error:  # a run that was well asked for went wrong
        return fail(program, error, status=1)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return fail(program, error)
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
