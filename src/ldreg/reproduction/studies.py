"""The paper's tables and figures as lists of what to train and what to show of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ldreg.reproduction import paper
from ldreg.reproduction.jobs import DETECTION, TRANSFER, TSNE, Arm, Job
from ldreg.reproduction.scales import Scale

DIMENSIONS = ("linear", "effective_rank", "lid")
METHODS = {
    "simclr": "SimCLR",
    "simclr_tuned": "SimCLR-Tuned",
    "byol": "BYOL",
    "simclr_vit": "SimCLR (ViT)",
    "mae": "MAE (ViT)",
    "moco": "MoCo",
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
        group: what rows of one line of a figure have in common
        x: where on the axis of a figure it stands
    """

    names: tuple[str, ...]
    arm: Arm
    values: Mapping[str, float] = field(default_factory=dict)
    baseline: int | None = None
    group: str = ""
    x: float = 0.0


@dataclass(frozen=True)
class Study:
    """A table or figure of the paper.

    Args:
        name: on the command line
        aliases: its numbers in the paper
        title: as a heading
        text: what it shows, and what the paper saw
        keys: what the cells that name a row are called
        metrics: results that the table has as columns; for transfer and detection what its scale has
        rows: of the scale
        measures: beyond those of every run
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    text: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: Callable[[Scale], Sequence[Row]]
    measures: frozenset[str] = frozenset()


def _pairs(scale: Scale, methods: Sequence[str]) -> list[Row]:
    rows = []
    for method in methods:
        without, with_ldreg = paper.LINEAR[method]
        rows.append(Row((METHODS[method], "-"), scale.arm(method), without, group=method))
        rows.append(
            Row((METHODS[method], "LDReg"), scale.arm(f"{method}_ldreg"), with_ldreg, len(rows) - 1, group=method)
        )
    return rows


def _table1(scale: Scale) -> list[Row]:
    return _pairs(scale, ["simclr", "simclr_tuned", "byol", "simclr_vit", "mae"])


def _additional(scale: Scale) -> list[Row]:
    return _pairs(scale, ["moco", "vicreg", "barlow_twins"])


def _all_methods(scale: Scale) -> list[Row]:
    return _pairs(scale, list(METHODS))


def _transfer(scale: Scale) -> list[Row]:
    rows = []
    for length, make in (("short", scale.arm), ("long", scale.long)):
        without, with_ldreg = paper.TRANSFER[length]
        plain, regularized = make("simclr"), make("simclr_ldreg")
        rows.append(Row(("SimCLR", "-", length), plain, without))
        rows.append(Row(("SimCLR", "LDReg", length), regularized, with_ldreg, len(rows) - 1))
    return rows


def _detection(scale: Scale) -> list[Row]:
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


def _wallclock(scale: Scale) -> list[Row]:
    hours = [{"minutes": 60 * value} for value in paper.HOURS]
    return [
        Row(("SimCLR", "-"), scale.arm("simclr"), hours[0]),
        Row(("SimCLR", "LDReg"), scale.arm("simclr_ldreg"), hours[1]),
    ]


def _norms(scale: Scale) -> list[Row]:
    rows = [Row(("-", "-"), scale.arm("simclr"), {"linear": paper.LINEAR["simclr"][0]["linear"]})]
    for norm in ("l1", "l2"):
        for k, of_paper in ((scale.k, 64), (2 * scale.k, 128)):
            arm = scale.arm("simclr_ldreg")
            arm = arm if norm == "l1" else arm.but(ldreg__norm=norm)
            arm = arm if k == scale.k else arm.but(ldreg__k=k)
            rows.append(Row((norm.upper(), str(k)), arm, {"linear": paper.NORMS[norm, of_paper]}, 0))
    return rows


def _minlid(scale: Scale) -> list[Row]:
    without, with_ldreg = paper.LINEAR["simclr"]
    rows = [
        Row(("-", "-"), scale.arm("simclr"), without),
        Row(("LDReg", _beta(scale.arm("simclr_ldreg"))), scale.arm("simclr_ldreg"), with_ldreg, 0),
    ]
    for beta in (0.01, 0.1, 1.0, 10.0):
        arm = scale.arm("simclr").but(regularizer="minlid", minlid__beta=beta, minlid__k=scale.k)
        rows.append(Row(("Min LID", f"{beta:g}"), arm, paper.MINLID[beta], 0, group="minlid", x=beta))
    return rows


def _beta(arm: Arm) -> str:
    """The strength of the regularizer that a recipe has."""
    return f"{Job(arm, 0).settings.regularizer['beta']:g}"


def _batches(scale: Scale) -> list[Row]:
    rows = []
    for (size, k), values in zip(scale.batches, paper.BATCHES.values(), strict=True):
        plain, regularized = (scale.batch(size, k, ldreg=ldreg) for ldreg in (False, True))
        rows.append(Row((str(size), "-", "-"), plain, {"linear": values[0]}))
        rows.append(Row((str(size), "LDReg", str(k)), regularized, {"linear": values[1]}, len(rows) - 1))
    return rows


def _regularizers(scale: Scale) -> list[Row]:
    without, with_ldreg = paper.LINEAR["byol"]
    rows = [
        Row(("None", "-"), scale.arm("byol"), without),
        Row(("LDReg", _beta(scale.arm("byol_ldreg"))), scale.arm("byol_ldreg"), with_ldreg, 0),
    ]
    names = {"covariance": "Cov", "variance_covariance": "Cov+Var", "koleo": "KoLeo", "sigreg": "SIGReg"}
    for name, title in names.items():
        for beta in (0.01, 0.1):
            arm = scale.arm("byol").but(**{"regularizer": name, f"{name}__beta": beta})
            rows.append(Row((title, f"{beta:g}"), arm, paper.REGULARIZERS.get((name, beta), {}), 0))
    return rows


def _jitter(scale: Scale) -> list[Row]:
    own = scale.arm("simclr")
    usual = {"imagenet": 1.0}.get(scale.name, 0.5)  # of the recipe, so that its run is shared
    return [
        Row((f"{strength:g}",), own if strength == usual else own.but(views__jitter=strength), x=strength)
        for strength in scale.jitters
    ]


def _ablation(scale: Scale) -> list[Row]:
    own = scale.arm("simclr_ldreg")
    usual = {"digits": 0.1}.get(scale.name, 0.01)
    rows = [Row(("-", "-", "-"), scale.arm("simclr"))]
    for beta in scale.betas:
        arm = own if beta == usual else own.but(ldreg__beta=beta)
        rows.append(Row(("LDReg", f"{beta:g}", str(scale.k)), arm, baseline=0, group="beta", x=beta))
    for k in scale.neighbors:
        arm = own if k == scale.k else own.but(ldreg__k=k)
        rows.append(Row(("LDReg", f"{usual:g}", str(k)), arm, baseline=0, group="k", x=k))
    return rows


def _tsne(scale: Scale) -> list[Row]:
    return [row for row in _minlid(scale) if row.group != "minlid" or row.x in (0.1, 1.0)]


def _none(scale: Scale) -> list[Row]:
    return []


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "table1", (), "Table 1: linear evaluation and dimensions",
            "Linear accuracy, effective rank and geometric-mean LID of held-out images, without and with LDReg. In the "
            "paper all three rise with LDReg for every method.",
            ("Method", "Regularization"), (*DIMENSIONS, "knn"), _table1,
        ),
        Study(
            "table2", ("transfer",), "Table 2: transfer",
            "Linear accuracy on other datasets of an encoder pretrained with and without LDReg, for a short and a long "
            "pretraining. In the paper LDReg helps on most datasets, and more after the long pretraining.",
            ("Method", "Regularization", "Pretraining"), (), _transfer, frozenset({TRANSFER}),
        ),
        Study(
            "table3", ("detection", "coco"), "Table 3: detection and segmentation",
            "AP of boxes and masks after fine-tuning as a Mask R-CNN (C4). In the paper LDReg helps in most columns.",
            ("Method", "Regularization", "Pretraining"), paper.AP, _detection, frozenset({DETECTION}),
        ),
        Study(
            "wallclock", ("table4",), "Table 4: wall-clock time",
            "Minutes of pretraining. The paper saw no significant additional cost of LDReg.",
            ("Method", "Regularization"), ("minutes", "images_per_second"), _wallclock,
        ),
        Study(
            "norms", ("table12",), "Table 12: L1 and L2",
            "LDReg with the mean of ln LID (L1) and with the root of its mean square (L2). The paper saw no "
            "significant difference.",
            ("Norm", "k"), DIMENSIONS, _norms,
        ),
        Study(
            "minlid", ("table13",), "Table 13: local collapse triggers complete collapse",
            "Min LID, the opposite of LDReg, with growing strength. In the paper accuracy, effective rank and LID fall "
            "with it, down to a complete collapse at 10.",
            ("Regularization", "beta"), DIMENSIONS, _minlid,
        ),
        Study(
            "batches", ("table14",), "Table 14: batch sizes",
            "SimCLR at several batch sizes, LDReg's k growing with them. In the paper LDReg helps at each.",
            ("Batch size", "Regularization", "k"), DIMENSIONS, _batches,
        ),
        Study(
            "methods", ("table15",), "Table 15: MoCo, VICReg and Barlow Twins",
            "The same as Table 1 for three further methods. In the paper all three values rise with LDReg.",
            ("Method", "Regularization"), (*DIMENSIONS, "knn"), _additional,
        ),
        Study(
            "regularizers", ("table16",), "Table 16: other regularizers on BYOL",
            "Covariance, and variance with covariance, in the place of LDReg; KoLeo and SIGReg, which the paper does "
            "not have. In the paper they may raise effective rank, but not LID, and change accuracy little.",
            ("Regularizer", "beta"), DIMENSIONS, _regularizers,
        ),
        Study(
            "figure1", (), "Figure 1: local collapse",
            "Each cloud spans the square and its global dimension (GID, by DANCo) hardly falls, while its "
            "neighborhoods are flattened: mean LID falls, and its Fisher-Rao distance (FR) to the plane's 2 grows. "
            "LDReg opens them again.",
            ("Cloud",), (), _none,
        ),
        Study(
            "figure2a", (), "Figure 2(a): LID over training",
            "Geometric-mean LID of training images over epochs. In the paper it rises, falls slightly late in training "
            "for SimCLR and BYOL, and is higher with LDReg for every method.",
            ("Method", "Regularization"), ("train_lid",), _all_methods,
        ),
        Study(
            "figure2b", (), "Figure 2(b): strength of color jitter",
            "LID of training images of SimCLR with stronger and weaker color jitter. In the paper it grows with the "
            "strength.",
            ("Strength",), ("linear", "train_lid"), _jitter,
        ),
        Study(
            "figure2cd", ("figure2c", "figure2d"), "Figure 2(c, d): effective rank and LID by method",
            "Bars without and with LDReg. In the paper BYOL has the highest effective rank of the four but the lowest "
            "LID among those with a ResNet, MAE the lowest rank; LDReg raises both everywhere.",
            ("Method", "Regularization"), ("effective_rank", "lid"), _table1,
        ),
        Study(
            "targets", ("figure3",), "Figure 3: any local dimension on request",
            "One linear layer on points of the plane, trained by LDReg alone to reach a given LID.",
            ("Target",), (), _none,
        ),
        Study(
            "tsne", ("figure4",), "Figure 4: t-SNE of the Min LID sweep",
            "Representations of held-out images of ten classes. In the paper clusters shrink to strings and points as "
            "Min LID grows.",
            ("Regularization", "beta"), ("lid",), _tsne, frozenset({TSNE}),
        ),
        Study(
            "ablation", ("figure5",), "Figure 5: beta and k",
            "SimCLR with LDReg of several strengths and neighborhood sizes. In the paper accuracy is stable, a large "
            "beta lowers effective rank, and a small k raises it.",
            ("Regularization", "beta", "k"), DIMENSIONS, _ablation,
        ),
    )
}  # fmt: skip


_KINDS = {"all": "", "tables": "Table", "figures": "Figure"}


def chosen(what: str) -> list[Study]:
    """The studies that a word of the command line names: "all", "tables", "figures", a name, or several with commas.

    Names are those of the studies, and their numbers in the paper.

    Raises:
        ValueError: a name that no study has.

    >>> [study.name for study in chosen("table13,figure2b")]
    ['minlid', 'figure2b']
    """
    found: list[Study] = []
    for word in what.split(","):
        named = [study for study in STUDIES.values() if word.strip().lower() in (study.name, *study.aliases)]
        if word.strip() in _KINDS:
            named = [study for study in STUDIES.values() if study.title.startswith(_KINDS[word.strip()])]
        if not named:
            raise ValueError(f"expected all or names among {', '.join(STUDIES)}, got {word.strip()!r}")
        found += [study for study in named if study not in found]
    return found
