"""`ldreg reproduce`: its help, which waits for no import, or what its words ask for."""

from collections.abc import Sequence

# Headings of the studies, by their names.
TITLES = {
    "table1": "Table 1: linear evaluation and dimensions",
    "table2": "Table 2: transfer",
    "table3": "Table 3: detection and segmentation",
    "wallclock": "Table 4: wall-clock time",
    "norms": "Table 12: L1 and L2",
    "minlid": "Table 13: local collapse triggers complete collapse",
    "batches": "Table 14: batch sizes",
    "methods": "Table 15: MoCo, VICReg and Barlow Twins",
    "regularizers": "Table 16: other regularizers on BYOL",
    "figure1": "Figure 1: local collapse",
    "figure2a": "Figure 2(a): LID over training",
    "figure2b": "Figure 2(b): strength of color jitter",
    "figure2cd": "Figure 2(c, d): effective rank and LID by method",
    "targets": "Figure 3: any local dimension on request",
    "tsne": "Figure 4: t-SNE of the Min LID sweep",
    "ablation": "Figure 5: beta and k",
    "conventions": "Beyond the paper: mean over k or k - 1 neighbors",
    "neighborhoods": "Beyond the paper: the usual k beside others",
    "references": "Beyond the paper: neighbors from a queue",
    "starts": "Beyond the paper: from which epoch on",
    "search": "How beta and k were chosen",
    "anchor": "Beyond the paper: beside lightly",
}

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
    """The help, with the names of all studies."""
    return USAGE.format(names="\n".join(f"    {name:<14} {title}" for name, title in TITLES.items()))


def reproduce_command(words: Sequence[str]) -> None:
    """Run `ldreg reproduce` with these words."""
    if not words or any(word in ("-h", "--help") for word in words):
        print(usage(), end="")
        if not words:
            raise ValueError("expected the name of a table or figure, or all, got nothing")
        return
    from ldreg.reproduce.command import reproduce  # which imports all that trains

    reproduce(words)
