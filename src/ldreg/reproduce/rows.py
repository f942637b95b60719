"""The rows of the studies' tables: what is trained for each, and what the paper has."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ldreg.reproduce import paper
from ldreg.reproduce.jobs import Arm, Job
from ldreg.reproduce.scales import Scale
from ldreg.train.settings import Settings

METHODS = {
    "simclr": "SimCLR",
    "simclr_tuned": "SimCLR-Tuned",
    "byol": "BYOL",
    "simclr_vit": "SimCLR (ViT)",
    "mae": "MAE (ViT)",
    "moco": "MoCo",
    "moco_v3": "MoCo v3",
    "vicreg": "VICReg",
    "barlow_twins": "Barlow Twins",
}


@dataclass(frozen=True)
class Row:
    """One row of a table: how it is called, what is trained for it, what the paper has.

    Args:
        names: the cells that name it
        arm: what is trained
        values: the paper's, by the names of results
        baseline: which row it is compared with, by its place; None: it is a baseline itself
        judged: whether the direction of its difference from that row is the paper's claim; where it claims none, not
        group: what rows of one line of a figure have in common
        x: where on the axis of a figure it stands
    """

    names: tuple[str, ...]
    arm: Arm
    values: Mapping[str, float] = field(default_factory=dict)
    baseline: int | None = None
    judged: bool = True
    group: str = ""
    x: float = 0.0


def method_of(arm: Arm) -> str:
    """The method that an arm trains, by the name that tables and recipes have for it.

    >>> method_of(Arm("imagenet/simclr_bs4096_e1000_ldreg")), method_of(Arm("digits/simclr_tuned_ldreg"))
    ('simclr', 'simclr_tuned')
    """
    recipe = arm.recipe.rpartition("/")[2]
    return max((name for name in METHODS if recipe == name or recipe.startswith(f"{name}_")), key=len)


def methods(scale: Scale) -> list[str]:
    """The methods that a scale has recipes for: both versions of MoCo on CIFAR-10, elsewhere one.

    >>> from ldreg.reproduce.scales import SCALES
    >>> [len(methods(scale)) for scale in SCALES.values()]
    [8, 9, 8]
    """
    return [name for name in METHODS if name != "moco_v3" or scale.name == "cifar10"]


def _pairs(scale: Scale, methods: Sequence[str]) -> list[Row]:
    rows = []
    for method in methods:
        without, with_ldreg = paper.LINEAR[method]
        regularized = scale.arm(f"{method}_ldreg")
        rows.append(Row((METHODS[method], "-"), scale.arm(method), without, group=method))
        rows.append(
            Row(
                (METHODS[method], f"LDReg, β {beta_of(regularized)}{_other_k(scale, regularized)}"),
                regularized,
                with_ldreg,
                len(rows) - 1,
                group=method,
            )
        )
    return rows


def _other_k(scale: Scale, arm: Arm) -> str:
    """The k of a recipe with LDReg, where it is not the usual one."""
    return "" if k_of(arm) == scale.k else f", k {k_of(arm)}"


def _at_usual_k(scale: Scale, recipe: str) -> Arm:
    """A recipe with LDReg and the usual k, which is what studies of other things have, whatever k was chosen."""
    arm = scale.arm(recipe)
    return arm if k_of(arm) == scale.k else arm.but(ldreg__k=scale.k)


def table1(scale: Scale) -> list[Row]:
    """The methods of Table 1, without and with LDReg."""
    return _pairs(scale, ["simclr", "simclr_tuned", "byol", "simclr_vit", "mae"])


def additional_methods(scale: Scale) -> list[Row]:
    """Those of the appendix."""
    first = list(METHODS).index("moco")
    return _pairs(scale, [name for name in methods(scale) if list(METHODS).index(name) >= first])


def all_methods(scale: Scale) -> list[Row]:
    """Every method, without and with LDReg."""
    return _pairs(scale, methods(scale))


def transfer(scale: Scale) -> list[Row]:
    """SimCLR after a short and a long pretraining."""
    rows = []
    for length, make in (("short", scale.arm), ("long", scale.long)):
        without, with_ldreg = paper.TRANSFER[length]
        plain, regularized = make("simclr"), make("simclr_ldreg")
        rows.append(Row(("SimCLR", "-", length), plain, without))
        rows.append(Row(("SimCLR", "LDReg", length), regularized, with_ldreg, len(rows) - 1))
    return rows


def detection(scale: Scale) -> list[Row]:
    """SimCLR and BYOL, and SimCLR after a long pretraining."""
    rows = []
    for name, method, make in (
        ("simclr", "simclr", scale.arm),
        ("byol", "byol", scale.arm),
        ("long", "simclr", scale.long),
    ):
        without, with_ldreg = paper.DETECTION[name]
        length = "long" if name == "long" else "short"
        plain, regularized = (_detectable(scale, make(recipe)) for recipe in (method, f"{method}_ldreg"))
        rows.append(Row((METHODS[method], "-", length), plain, without))
        rows.append(Row((METHODS[method], "LDReg", length), regularized, with_ldreg, len(rows) - 1))
    return rows


def _detectable(scale: Scale, arm: Arm) -> Arm:
    """Detection needs a ResNet of color images; at the smallest scale it trains on the images to be detected in."""
    if scale.name != "digits":
        return arm
    images = {"data__name": "folder", "data__size": 32, "views__flip": 0.5, "monitor__points": 200, "batch_size": 64}
    return arm.but(**images, encoder__name="resnet18", encoder__stem="imagenet")


def wallclock(scale: Scale) -> list[Row]:
    """SimCLR without and with LDReg."""
    hours = [{"minutes": 60 * value} for value in paper.HOURS]
    return [
        Row(("SimCLR", "-"), scale.arm("simclr"), hours[0]),
        Row(("SimCLR", "LDReg"), scale.arm("simclr_ldreg"), hours[1]),
    ]


def norms(scale: Scale) -> list[Row]:
    """LDReg as a mean and as a root mean square, with two neighborhood sizes each, and with targets."""
    rows = [Row(("-", "-"), scale.arm("simclr"), {"linear": paper.LINEAR["simclr"][0]["linear"]})]
    for norm in ("l1", "l2"):
        for k, of_paper in ((scale.k, 64), (2 * scale.k, 128)):
            arm = _at_usual_k(scale, "simclr_ldreg")
            arm = arm if norm == "l1" else arm.but(ldreg__norm=norm)
            arm = arm if k == scale.k else arm.but(ldreg__k=k)
            base = 0 if norm == "l1" else len(rows) - 2  # the same with L1
            values = {"linear": paper.NORMS[norm, of_paper]}
            rows.append(Row((norm.upper(), str(k)), arm, values, base, judged=norm == "l1"))
    for target in scale.targets:
        arm = _at_usual_k(scale, "simclr_ldreg").but(ldreg__target=target)
        rows.append(Row((f"L1 to LID {target:g}", str(scale.k)), arm, baseline=0))
    return rows


def minlid(scale: Scale) -> list[Row]:
    """Min LID with growing strength beside nothing and LDReg."""
    without, with_ldreg = paper.LINEAR["simclr"]
    own = _at_usual_k(scale, "simclr_ldreg")
    rows = [Row(("-", "-"), scale.arm("simclr"), without), Row(("LDReg", beta_of(own)), own, with_ldreg, 0)]
    for beta in (0.01, 0.1, 1.0, 10.0):
        arm = scale.arm("simclr").but(regularizer="minlid", minlid__beta=beta, minlid__k=scale.k)
        rows.append(Row(("Min LID", f"{beta:g}"), arm, paper.MINLID[beta], 0, group="minlid", x=beta))
    return rows


@cache
def beta_of(arm: Arm) -> str:
    """The strength of the regularizer that a recipe has."""
    return f"{own_settings(arm).regularizer['beta']:g}"


@cache
def k_of(arm: Arm) -> int:
    """The number of neighbors that LDReg has in a recipe."""
    return int(own_settings(arm).regularizer["k"])


def own_settings(arm: Arm) -> Settings:
    """Settings of an arm but for its schedule, which is the recipe's.

    Few epochs fit the recipe's warm-up only with settings that every run is given, of which rows know nothing.
    """
    return Job(
        replace(arm, options=tuple(pair for pair in arm.options if not pair[0].startswith("schedule."))), 0
    ).settings


def batches(scale: Scale) -> list[Row]:
    """SimCLR at several batch sizes."""
    rows = []
    for (size, k), values in zip(scale.batches, paper.BATCHES.values(), strict=True):
        plain, regularized = (scale.batch(size, k, ldreg=ldreg) for ldreg in (False, True))
        regularized = regularized if k_of(regularized) == k else regularized.but(ldreg__k=k)
        rows.append(Row((str(size), "-", "-"), plain, {"linear": values[0]}))
        rows.append(Row((str(size), "LDReg", str(k)), regularized, {"linear": values[1]}, len(rows) - 1))
    return rows


def regularizers(scale: Scale) -> list[Row]:
    """BYOL with each of the regularizers."""
    without, with_ldreg = paper.LINEAR["byol"]
    own = _at_usual_k(scale, "byol_ldreg")
    rows = [Row(("None", "-"), scale.arm("byol"), without), Row(("LDReg", beta_of(own)), own, with_ldreg, 0)]
    others = {
        "Cov": ("covariance", {}),
        "Cov+Var": ("variance_covariance", {}),
        "KoLeo": ("koleo", {}),
        "SIGReg": ("sigreg", {}),
        "SIGReg, centered": ("sigreg", {"sigreg__center": True}),
    }
    for title, (name, options) in others.items():
        for beta in (0.01, 0.1):
            arm = scale.arm("byol").but(regularizer=name, **{f"{name}__beta": beta}, **options)
            rows.append(Row((title, f"{beta:g}"), arm, paper.REGULARIZERS.get((name, beta), {}), 0))
    return rows


def jitter(scale: Scale) -> list[Row]:
    """SimCLR with several strengths of color jitter, compared with the weakest."""
    own = scale.arm("simclr")
    usual = {"imagenet": 1.0}.get(scale.name, 0.5)  # of the recipe, so that its run is shared
    arms = [own if strength == usual else own.but(views__jitter=strength) for strength in scale.jitters]
    return [
        Row((f"{strength:g}",), arm, baseline=0 if place else None, x=strength)
        for place, (strength, arm) in enumerate(zip(scale.jitters, arms, strict=True))
    ]


def ablation(scale: Scale) -> list[Row]:
    """LDReg of several strengths, then with several neighborhood sizes."""
    own = _at_usual_k(scale, "simclr_ldreg")
    usual = float(beta_of(own))
    rows = [Row(("-", "-", "-"), scale.arm("simclr"))]
    for beta in scale.betas:
        arm = own if math.isclose(beta, usual) else own.but(ldreg__beta=beta)
        rows.append(Row(("LDReg", f"{beta:g}", str(scale.k)), arm, baseline=0, group="beta", x=beta))
    for k in scale.neighbors:
        arm = own if k == scale.k else own.but(ldreg__k=k)
        rows.append(Row(("LDReg", f"{usual:g}", str(k)), arm, baseline=0, group="k", x=k))
    return rows


def conventions(scale: Scale) -> list[Row]:
    """LDReg with the mean over k neighbors, as the paper's text has it, and over k - 1, as its pseudocode has it."""
    rows = []
    for method in ("simclr", "byol"):
        without, with_ldreg = paper.LINEAR[method]
        own = _at_usual_k(scale, f"{method}_ldreg")
        rows.append(Row((METHODS[method], "-", "-"), scale.arm(method), without))
        rows.append(Row((METHODS[method], "LDReg", "paper"), own, with_ldreg))
        pseudocode = own.but(ldreg__convention="pseudocode")
        rows.append(Row((METHODS[method], "LDReg", "pseudocode"), pseudocode, baseline=len(rows) - 1))
    return rows


def neighborhoods(scale: Scale) -> list[Row]:
    """Methods without LDReg and with several k: the usual and the chosen where that is another; MoCo with more.

    MoCo's second version encodes one view of each image, so that the same k reaches further in its batch; the paper has
    twice the usual one for it. At the paper's own scale none was chosen: its k are those of the paper.
    """
    rows: list[Row] = []
    for method in methods(scale) if scale.name != "imagenet" else ():
        own, title = scale.arm(f"{method}_ldreg"), METHODS[method]
        others = (scale.k // 4, 2 * scale.k) if method == "moco" else ()
        tried = sorted({scale.k, k_of(own), *others})
        if len(tried) == 1:
            continue
        rows.append(Row((title, "-", "-"), scale.arm(method)))
        base = len(rows) - 1
        for k in tried:
            arm = own if k == k_of(own) else own.but(ldreg__k=k)
            rows.append(Row((title, f"LDReg, β {beta_of(own)}", str(k)), arm, baseline=base))
    return rows


def references(scale: Scale) -> list[Row]:
    """LDReg with neighbors from the batch alone, and from queues of past representations too.

    MoCo's second version encodes one view of each image, so its batch is half of the others': one queue shows whether
    that is what it lacks.
    """
    rows: list[Row] = []
    for method, sizes in (("simclr", scale.queues), ("moco", scale.queues[1:2])):
        without, with_ldreg = paper.LINEAR[method]
        own, title = scale.arm(f"{method}_ldreg"), METHODS[method]
        rows.append(Row((title, "-", "-"), scale.arm(method), without))
        rows.append(Row((title, "LDReg", "batch"), own, with_ldreg))
        batch = len(rows) - 1
        for size in sizes:
            names = (title, "LDReg", f"batch and queue of {size}")
            rows.append(Row(names, own.but(ldreg__queue_size=size), baseline=batch, x=size))
    return rows


def starts(scale: Scale) -> list[Row]:
    """LDReg from the first epoch on, from the second tenth, and from the second half.

    With MoCo, whose loss it may slow, and with SimCLR for comparison.
    """
    rows: list[Row] = []
    for method in ("simclr", "moco"):
        without, with_ldreg = paper.LINEAR[method]
        own, title = scale.arm(f"{method}_ldreg"), METHODS[method]
        epochs = scale.epochs or own_settings(own).schedule.epochs
        rows.append(Row((title, "-", "-"), scale.arm(method), without))
        rows.append(Row((title, "LDReg", "1"), own, with_ldreg))
        first = len(rows) - 1
        for start in dict.fromkeys((epochs // 10, epochs // 2)):
            if start:  # one epoch has no later one
                late = own.but(regularizer_start=start)
                rows.append(Row((title, "LDReg", str(start + 1)), late, baseline=first, x=start))
    return rows


def tsne(scale: Scale) -> list[Row]:
    """Those of the Min LID sweep that the paper draws."""
    return [row for row in minlid(scale) if row.group != "minlid" or row.x in (0.1, 1.0)]


def none(scale: Scale) -> list[Row]:
    """No rows, for what needs no training."""
    return []
