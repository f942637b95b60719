"""The help of `ldreg reproduce`, and its entry."""

from collections.abc import Sequence
from importlib.resources import files

import yaml

USAGE = """usage: ldreg reproduce WHAT [--scale SCALE] [options]

Train and measure what a table or figure of the paper needs, and show it beside
the paper's values. Runs that are there already are used, those that were
interrupted go on where they stood.

  WHAT              all, or names with commas between them:
{names}
                    (all leaves table3 out unless --coco is given, and search
                    and anchor unless --write is; tables and figures choose
                    those)
  --scale SCALE     digits (a CPU, minutes), cifar10 (one GPU) or imagenet (the
                    paper's own); default digits
  --plan            list the runs with an estimate of time and memory, and stop
  --show            make tables and figures of what is there, train nothing
  --epochs N        of every run (default: the scale's); long pretrainings keep
                    their ratio to it
  --methods NAMES   only the runs of these methods, with commas between them:
                    simclr,byol
  --seeds N         seeds of every run, from 0 on (default: 1; with --show all
                    that there are)
  --out FOLDER      for runs, records, figures and the report (default:
                    reproduction/SCALE)
  --results FOLDER  for the records alone, one JSON file for each run (default:
                    OUT/results)
  --write FILE      Markdown of every record that --results has of these
                    studies, all seeds, with pictures in images/NAME beside it,
                    the same from the same records to the byte; trains nothing;
                    step-*.json by ldreg bench step among them tell the cost of
                    LDReg
  --jobs N          runs at a time (default: one on a GPU, else one for each
                    core)
  --minutes N       stop after so long, with exit status 75 where runs are left;
                    what is under way is saved, and the same command goes on;
                    saving and the report may take a minute more
  --datasets NAME=PATH,...
                    where the sets of the transfer table are
  --coco FOLDER     train2017, val2017 and annotations for table3 (default: a
                    small generated set); 2x schedule at the scale of imagenet
  --detection.OPTION VALUE
                    of table3, as of ldreg evaluate detection:
                    --detection.schedule 1x, --detection.devices 8
  --SETTING VALUE   of every run, as of ldreg pretrain: --data.path,
                    --batch_size, --trainer.device, ...

examples:
  ldreg reproduce all --scale digits
  ldreg reproduce table1 --scale cifar10 --data.path cifar10.tar.xz --plan
  ldreg reproduce table1,minlid --scale cifar10 --data.path cifar10 --seeds 3
  ldreg reproduce search --scale cifar10 --data.path cifar10 --methods byol
  ldreg reproduce anchor --scale cifar10 --data.path cifar10 --seeds 3
  ldreg reproduce all --scale cifar10 --results results/cifar10 \\
    --write docs/results.md
"""


def usage() -> str:
    """The help, with the names of all studies, without importing what trains."""
    studies = yaml.safe_load((files("ldreg.reproduce") / "studies.yaml").read_text(encoding="utf-8"))["studies"]
    return USAGE.format(names="\n".join(f"    {name:<14} {study['title']}" for name, study in studies.items()))


def reproduce_command(words: Sequence[str]) -> None:
    """Run `ldreg reproduce` with these words."""
    if not words or any(word in ("-h", "--help") for word in words):
        print(usage(), end="")
        if not words:
            raise ValueError("expected the name of a table or figure, or all, got nothing")
        return
    from ldreg.reproduce.reproduction import reproduce  # which imports all that trains
    from ldreg.reproduce.request import parse

    studies, options, settings, command = parse(words)
    reproduce(studies, options, settings, command=command)
