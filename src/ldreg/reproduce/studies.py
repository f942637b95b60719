"""The paper's tables and figures as lists of what to train and what to show of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ldreg.options import nearest
from ldreg.reproduce import anchor_study, paper, rows, search
from ldreg.reproduce.jobs import DETECTION, TRANSFER, TSNE
from ldreg.reproduce.rows import Row
from ldreg.reproduce.scales import Scale
from ldreg.reproduce.usage import TITLES

DIMENSIONS = ("linear", "effective_rank", "lid")


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
        apart: whether it is run only where it is named; what there is of it is shown among all
        every_length: whether it is shown at each number of epochs that there are runs of, and not only at one
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    text: str
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: Callable[[Scale], Sequence[Row]]
    measures: frozenset[str] = frozenset()
    apart: bool = False
    every_length: bool = False


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "table1", (), TITLES["table1"],
            "Linear accuracy, effective rank and geometric-mean LID of held-out images, without and with LDReg. In the "
            "paper all three rise with LDReg for every method.",
            ("Method", "Regularization"), (*DIMENSIONS, "knn"), rows.table1,
        ),
        Study(
            "table2", ("transfer",), TITLES["table2"],
            "Linear accuracy on other datasets of an encoder pretrained with and without LDReg, for a short and a long "
            "pretraining. In the paper LDReg helps on most datasets, and more after the long pretraining.",
            ("Method", "Regularization", "Pretraining"), (), rows.transfer, frozenset({TRANSFER}),
        ),
        Study(
            "table3", ("detection", "coco"), TITLES["table3"],
            "AP of boxes and masks after fine-tuning as a Mask R-CNN (C4). In the paper LDReg helps in most columns.",
            ("Method", "Regularization", "Pretraining"), paper.AP, rows.detection, frozenset({DETECTION}),
        ),
        Study(
            "wallclock", ("table4",), TITLES["wallclock"],
            "Minutes of pretraining, of runs that had the machine to themselves where there are any. The paper saw no "
            "significant additional cost of LDReg.",
            ("Method", "Regularization"), ("minutes", "images_per_second"), rows.wallclock,
        ),
        Study(
            "norms", ("table12",), TITLES["norms"],
            "LDReg with the mean of ln LID (L1) and with the root of its mean square (L2), which is compared with L1 "
            "at the same k. The paper saw no significant difference. Beyond the paper: a target that LID in "
            "the batch is to approach, by L1.",
            ("Norm", "k"), DIMENSIONS, rows.norms,
        ),
        Study(
            "minlid", ("table13",), TITLES["minlid"],
            "Min LID, the opposite of LDReg, with growing strength. In the paper accuracy, effective rank and LID fall "
            "with it, down to a complete collapse at 10.",
            ("Regularization", "beta"), DIMENSIONS, rows.minlid,
        ),
        Study(
            "batches", ("table14",), TITLES["batches"],
            "SimCLR at several batch sizes, LDReg's k growing with them. In the paper LDReg helps at each.",
            ("Batch size", "Regularization", "k"), DIMENSIONS, rows.batches,
        ),
        Study(
            "methods", ("table15",), TITLES["methods"],
            "The same as Table 1 for three further methods. In the paper, which names no version of MoCo, all three "
            "values rise with LDReg.",
            ("Method", "Regularization"), (*DIMENSIONS, "knn"), rows.additional_methods,
        ),
        Study(
            "regularizers", ("table16",), TITLES["regularizers"],
            "Covariance, and variance with covariance, in the place of LDReg; KoLeo and SIGReg, which the paper does "
            "not have. In the paper they may raise effective rank, and change LID and accuracy little. All act on "
            "the encoder's output; behind a ReLU that cannot have mean 0, which SIGReg wants unless it is centered.",
            ("Regularizer", "beta"), DIMENSIONS, rows.regularizers,
        ),
        Study(
            "figure1", (), TITLES["figure1"],
            "Each cloud spans the square and its global dimension (GID, by DANCo) hardly falls, while its "
            "neighborhoods are flattened: mean LID falls, and its Fisher-Rao distance (FR) to the plane's 2 grows. "
            "LDReg opens them again.",
            ("Cloud",), (), rows.none,
        ),
        Study(
            "figure2a", (), TITLES["figure2a"],
            "Geometric-mean LID of training images over epochs. In the paper it rises, falls slightly late in training "
            "for SimCLR and BYOL, and is higher with LDReg for every method.",
            ("Method", "Regularization"), ("train_lid",), rows.all_methods,
        ),
        Study(
            "figure2b", (), TITLES["figure2b"],
            "LID of training images of SimCLR with stronger and weaker color jitter. In the paper it grows with the "
            "strength.",
            ("Strength",), ("linear", "train_lid"), rows.jitter,
        ),
        Study(
            "figure2cd", ("figure2c", "figure2d"), TITLES["figure2cd"],
            "Bars without and with LDReg. In the paper BYOL has the highest effective rank of the four but the lowest "
            "LID among those with a ResNet, MAE the lowest rank; LDReg raises both everywhere.",
            ("Method", "Regularization"), ("effective_rank", "lid"), rows.table1,
        ),
        Study(
            "targets", ("figure3",), TITLES["targets"],
            "One linear layer on points of the plane, trained by LDReg alone to reach a given LID.",
            ("Target",), (), rows.none,
        ),
        Study(
            "tsne", ("figure4",), TITLES["tsne"],
            "Representations of held-out images of ten classes. In the paper clusters shrink to strings and points as "
            "Min LID grows.",
            ("Regularization", "beta"), ("lid",), rows.tsne, frozenset({TSNE}),
        ),
        Study(
            "ablation", ("figure5",), TITLES["ablation"],
            "SimCLR with LDReg of several strengths and neighborhood sizes. In the paper accuracy is stable, a large "
            "beta lowers effective rank, and a small k raises it.",
            ("Regularization", "beta", "k"), DIMENSIONS, rows.ablation,
        ),
        Study(
            "conventions", (), TITLES["conventions"],
            "The paper's text takes the mean of distances over all k neighbors, its pseudocode over the first k - 1, "
            "which reads a lower LID. Those with the pseudocode's are compared with those with the text's; LID in the "
            "table is by the text's for all.",
            ("Method", "Regularization", "Convention"), (*DIMENSIONS, "knn"), rows.conventions,
        ),
        Study(
            "neighborhoods", (), TITLES["neighborhoods"],
            "Methods for which the search chose another k than the usual one, which has a row of its own here; and "
            "MoCo, which encodes one view of an image, so that the same k reaches further in its batch: in the paper "
            "it has twice the usual k. All are compared with the method without LDReg.",
            ("Method", "Regularization", "k"), (*DIMENSIONS, "knn"), rows.neighborhoods,
        ),
        Study(
            "references", (), TITLES["references"],
            "LDReg seeks neighbors in the batch, or in a queue of past representations too. The paper names the small "
            "set of a batch as a limitation; those with a queue are compared with the batch alone, at the same k.",
            ("Method", "Regularization", "Reference"), (*DIMENSIONS, "knn"), rows.references, every_length=True,
        ),
        Study(
            "starts", (), TITLES["starts"],
            "LDReg from the first epoch on, as the paper has it; from the second tenth on, as in the authors' code, "
            "which begins after 10 of 100 epochs; and in the second half alone. Those that begin later are compared "
            "with the first.",
            ("Method", "Regularization", "From epoch"), (*DIMENSIONS, "knn"), rows.starts, every_length=True,
        ),
        Study(
            "search", (), TITLES["search"],
            "Runs on nine tenths of the training images, judged by the other tenth, which stand for the "
            "held-out images here. The rules were set before the runs. Where several learning rates were tried, they "
            "were chosen first, without LDReg, by linear accuracy. Then beta, at the usual k: that of highest LID "
            "among those whose linear accuracy is within one standard error of the best. Then k, at the recipe's beta: "
            "the usual one where its linear accuracy is within one standard error of the best, else the best. What "
            "collapsed with any seed is out. Where there are longer runs of a method, the beta that is chosen by those "
            "counts. A k that had no other beside it was not chosen.",
            ("Method", "beta", "k"), (*DIMENSIONS, "knn"), search.rows, apart=True,
            every_length=True,
        ),
        Study(
            "anchor", (), TITLES["anchor"],
            "SimCLR by the recipe of lightly's CIFAR-10 benchmark, trained with lightly's own model, views and loss "
            "on the same images; the same recipe in ldreg's trainer; two steps from there to ldreg's own recipes: "
            "norms and biases that do not decay, then an encoder that begins as timm's does, with larger weights and "
            "residual branches that are 0; and ldreg's own recipe, as it is and with both as lightly has them. All are "
            "measured alike. Runs of two trainers do not begin alike with the same seed: noise is by the deviation "
            "within both. Speeds are of training alone; minutes of ldreg's runs have its probes during training in "
            "them, of which lightly's has none.",
            ("Recipe", "Trainer"), ("linear", "knn", "effective_rank", "lid", "images_per_second", "minutes"),
            anchor_study.rows, apart=True,
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
    for word in map(str.strip, what.split(",")):
        name = word.lower()
        named = [study for study in STUDIES.values() if name in (study.name, *study.aliases)]
        if name in _KINDS:
            named = [study for study in STUDIES.values() if study.title.startswith(_KINDS[name])]
        if not named:
            known = {*_KINDS, *STUDIES, *(alias for study in STUDIES.values() for alias in study.aliases)}
            like = f"; nearest: {nearest(name, known)}" if name else ""
            raise ValueError(f"expected all or names among {', '.join(STUDIES)}, got {word!r}{like}")
        found += [study for study in named if study not in found]
    return found
