"""What LDReg pulls at: the strength and direction of its gradient over a run, and what representations vary with.

Run as `python benchmarks/strain.py RUN... [--data.path PATH]`, which writes benchmarks/strain.json; without a run it
takes that file as it is. Then it draws docs/images/too-strong.png and prints the table of docs/too-strong.md. Each run
is a folder of `ldreg pretrain` whose checkpoints lie in its folder "kept" under the number of their epoch (40.ckpt),
since a run keeps only its last two. Images that judge are those the run held out, so a run with `data.validation` never
shows test images. Two things are taken at each checkpoint:

- Forces: gradients by the encoder's weights, each averaged over batches, of the method's loss, of the mean ln LID that
  LDReg raises, and of the log shares of variance that come from the view and from the image within its class. Their
  norms say which of the first two leads a step; their cosines what else rises where LID is raised.
- Shares: the variance of held-out images' representations over several views of each, split into that of classes, of
  images within their class, and of views of one image (a nested analysis of variance); how often an image's other view
  is its nearest neighbor; how many of the 64 nearest share its class; LID and effective rank. At the last checkpoint
  also kNN accuracy where an image is one view, the mean of four, and as it is.
"""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ldreg
from ldreg.data import ResidentImages
from ldreg.evaluate import knn_accuracy
from ldreg.regularizers import LDReg
from ldreg.train.folder import environment, existing
from ldreg.train.module import Pretraining, penalty
from ldreg.train.run import held_out_images, training_images
from ldreg.train.settings import Settings, resolve

BATCHES, BATCH = 16, 512
VIEWS = 4
NEIGHBORS = 64
SEED = 0
KNOWN, VOTERS = 10_000, 20  # images that vote, and how many of them on one
RESULTS = Path(__file__).with_name("strain.json")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "too-strong.png"
SHOWN = (10, 40, 70, 100)  # epochs of the table
COLORS = {False: "#5b6770", True: "#c2410c"}

Images = tuple[Tensor, Tensor]  # and their labels


def forces(module: Pretraining, images: Images, device: str) -> dict[str, float]:
    """Norms and cosines of the averaged gradients."""
    method, generator = module.method.train(), torch.Generator(device).manual_seed(SEED)
    weights = [weight for weight in method.encoder.parameters() if weight.requires_grad]
    names = ("loss", "log_lid", "view_share", "image_share")
    sums = {name: torch.zeros(sum(map(torch.Tensor.numel, weights)), device=device) for name in names}
    order = torch.randperm(len(images[0]), generator=torch.Generator().manual_seed(SEED))
    for rows in order[: BATCHES * BATCH].split(BATCH):
        views = module.views(images[0][rows].to(device), generator)
        outcome = method(views, generator)
        representations = outcome.representations.float()
        classes, within, between = variances(representations.view(2, len(rows), -1), images[1][rows].to(device))
        total = classes + within + between
        log_lid = -penalty(LDReg(beta=1.0, k=NEIGHBORS), outcome)
        terms = (outcome.loss, log_lid, (between / total).log(), (within / total).log())
        for name, term in zip(names, terms, strict=True):
            with method.fork.separate():  # or the gradient of a term without the loss is dropped
                parts = torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True)
            full = [torch.zeros_like(w) if p is None else p for p, w in zip(parts, weights, strict=True)]
            sums[name] += torch.cat([part.flatten() for part in full]).float() / BATCHES
    found = {f"norm/{name}": float(sums[name].norm()) for name in names}
    for name in ("loss", "view_share", "image_share"):
        found[f"cosine/log_lid,{name}"] = float(torch.cosine_similarity(sums["log_lid"], sums[name], dim=0))
    return found


def variances(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Traces of the covariance of classes, of images within a class, and of views of an image; x is (V, N, D).

    What the noise of the level below adds to a mean's variance is taken off, so that the three are unbiased.
    """
    count, images = x.shape[:2]
    means = x.mean(0)
    view = (x - means).square().sum() / (images * (count - 1))
    members = torch.nn.functional.one_hot(labels).to(x.dtype)
    sizes = members.sum(0)
    members, sizes = members[:, sizes > 0], sizes[sizes > 0]
    centers = members.T @ means / sizes[:, None]
    inner = (means - members @ centers).square().sum() / (images - len(sizes))
    outer = (sizes[:, None] * (centers - means.mean(0)).square()).sum() / images
    return outer - inner * (len(sizes) - 1) / images, inner - view / count, view


@dataclass(frozen=True)
class Seen:
    """Representations of images as they are (N, D), and of several views of each (V, N, D), with their classes."""

    plain: Tensor
    views: Tensor
    labels: Tensor


@torch.no_grad()
def seen(module: Pretraining, images: Images, device: str) -> Seen:
    """Images through the encoder as it is used after training."""
    encoder, generator = module.method.encoder.eval(), torch.Generator(device).manual_seed(SEED)
    pixels = images[0].to(device).split(BATCH)
    found: list[Tensor] = []
    while len(found) < VIEWS:
        parts = [module.views(part, generator) for part in pixels]
        found += [torch.cat([encoder(part).float() for part in views]) for views in zip(*parts, strict=True)]
    plain = torch.cat([encoder(module.views.plain(part)).float() for part in pixels])
    return Seen(plain, torch.stack(found[:VIEWS]), images[1].to(device))


def shares(held_out: Seen) -> dict[str, float]:
    """How representations of held-out images vary."""
    x, labels = held_out.views, held_out.labels
    classes, within, between = variances(x, labels)
    total = classes + within + between
    plain = held_out.plain
    near = torch.cdist(plain, plain).fill_diagonal_(math.inf).topk(NEIGHBORS, largest=False).indices
    nearest = torch.cdist(x[0], torch.cat((x[0], x[1])))
    own = torch.arange(len(labels), device=labels.device)
    nearest[own, own] = math.inf
    return {
        "share/class": float(classes / total),
        "share/image": float(within / total),
        "share/view": float(between / total),
        "own_view_nearest": float((nearest.argmin(1) == own + len(labels)).float().mean()),
        "same_class_of_64": float((labels[near] == labels[:, None]).float().mean()),
        "lid": float(ldreg.geometric_mean(ldreg.lid(plain, k=NEIGHBORS))),
        "effective_rank": float(ldreg.effective_rank(plain)),
    }


def votes(known: Seen, asked: Seen) -> dict[str, dict[str, float]]:
    """kNN accuracy and LID where an image is one view, the mean of several, and as it is."""
    ways: dict[str, Callable[[Seen], Tensor]] = {
        "one view": lambda images: images.views[0],
        f"mean of {VIEWS} views": lambda images: images.views.mean(0),
        "the image itself": lambda images: images.plain,
    }
    found = {}
    for name, taken in ways.items():
        accuracy = knn_accuracy(taken(known), known.labels, taken(asked), asked.labels, k=VOTERS)
        found[name] = {"knn": accuracy, "lid": float(ldreg.geometric_mean(ldreg.lid(taken(asked), k=NEIGHBORS)))}
    return found


def strained(run: Path, path: str | None, device: str) -> dict[str, Any]:
    """What is found at every checkpoint that was kept of a run, by epoch."""
    _, tree = existing(run)
    options: list[tuple[str, str | None]] = [("trainer.compile", "false"), ("trainer.device", device)]
    settings = resolve(tree, options + ([("data.path", path)] if path else []))
    train, held_out = _resident(settings)
    found, kept = {}, sorted((run / "kept").glob("*.ckpt"), key=lambda each: int(each.stem))
    for checkpoint in kept:
        module = _module(settings, checkpoint, device)
        found[int(checkpoint.stem)] = {**shares(seen(module, held_out, device)), **forces(module, train, device)}
    last = _module(settings, kept[-1], device)
    told = votes(seen(last, _some(train), device), seen(last, held_out, device))
    return {"run": run.name, "beta": settings.regularizer.get("beta", 0.0), "epochs": found, "votes": told}


def _some(images: Images) -> Images:
    """As many as vote."""
    rows = torch.randperm(len(images[0]), generator=torch.Generator().manual_seed(SEED))[:KNOWN]
    return images[0][rows], images[1][rows]


def _resident(settings: Settings) -> tuple[Images, Images]:
    pairs = []
    for images in (training_images(settings), held_out_images(settings)):
        assert isinstance(images, ResidentImages)
        pairs.append((images.images, images.labels))
    return pairs[0], pairs[1]


def _module(settings: Settings, checkpoint: Path, device: str) -> Pretraining:
    images = training_images(settings)
    module = Pretraining(settings, images)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    module.load_state_dict({name.replace("._orig_mod", ""): value for name, value in state.items()})
    return module.to(device)


def pull(values: Mapping[str, float], beta: float) -> float:
    """How strong LDReg's part of a step is beside the method's."""
    return beta * values["norm/log_lid"] / values["norm/loss"]


def table(found: Mapping[str, Any]) -> str:
    """The page's table, in Markdown."""
    columns = ("share/view", "share/image", "share/class", "same_class_of_64", "lid")
    lines = [
        "| β | epoch | view | image | class | same class among 64 | LID | pull beside the loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in found["runs"]:
        for epoch in SHOWN:
            values = run["epochs"][str(epoch)]
            cells = [f"{100 * values[name]:.0f} %" for name in columns[:-1]] + [f"{values['lid']:.1f}"]
            told = f"{pull(values, run['beta']):.2f}" if run["beta"] else "-"
            lines.append(f"| {run['beta']:g} | {epoch} | {' | '.join(cells)} | {told} |")
    return "\n".join(lines)


def votes_table(found: Mapping[str, Any]) -> str:
    """The page's second table."""
    heads = "".join(f" kNN %, LID at β = {run['beta']:g} |" for run in found["runs"])
    lines = [f"| an image is |{heads}", "|---|" + "---|" * len(found["runs"])]
    for way in found["runs"][0]["votes"]:
        cells = [run["votes"][way] for run in found["runs"]]
        lines.append(f"| {way} |" + "".join(f" {100 * cell['knn']:.1f}, {cell['lid']:.1f} |" for cell in cells))
    return "\n".join(lines)


def draw(found: Mapping[str, Any]) -> Figure:
    """The share of the view, neighbors of the same class, and the pull, over epochs."""
    strong = max(run["beta"] for run in found["runs"])
    panels: dict[str, Callable[[Mapping[str, float], float], float]] = {
        "Variance that comes from the view, %": lambda values, beta: 100 * values["share/view"],
        "Same class among 64 neighbors, %": lambda values, beta: 100 * values["same_class_of_64"],
        f"LDReg's pull at beta {strong:g}, % of the loss's": lambda values, beta: 100 * pull(values, strong),
    }
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for place, (title, value) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for run in found["runs"]:
            points = [(int(epoch), value(values, run["beta"])) for epoch, values in run["epochs"].items()]
            name, style = (f"LDReg, beta {run['beta']:g}", "-") if run["beta"] else ("without LDReg", "--")
            axes.plot(*zip(*points, strict=True), style, color=COLORS[bool(run["beta"])], label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
    figure.axes[0].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--data.path", dest="path")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if given.runs:
        made = environment(shlex.join(sys.argv))
        origin = {"commit": made["commit"], "hardware": made["gpu"] or made["processor"]}
        found = {"origin": origin, "runs": [strained(run, given.path, given.device) for run in given.runs]}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(RESULTS.read_text())  # where epochs are text
    draw(found).savefig(PICTURE, dpi=110)
    print(table(found), votes_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
