"""The main job on embedded data: SimCLR on scikit-learn's digits without and with LDReg, compared in one report.

With ldreg[train] both are runs of `ldreg pretrain`; without it `demo_plain` trains a smaller SimCLR.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ldreg.extras import missing
from ldreg.io.files import write_atomically
from ldreg.record import PointCloud, Record
from ldreg.report.lid_plots import cloud_panels
from ldreg.report.pages import clouds_section, comparison_page
from ldreg.report.style import plain_style
from ldreg.reproduce.plane import TARGETS, collapse_and_cure, reach_targets

_THUMBNAILS = 12

RECIPES = {"SimCLR": "digits/simclr", "SimCLR + LDReg": "digits/simclr_ldreg"}
_BETAS = {"SimCLR": 0.0, "SimCLR + LDReg": 0.1}  # as the recipes have them

_COLLAPSE_TEXT = (
    "Each cloud spans the square, and its global dimension (GID, by DANCo) falls by a tenth at most, but neighborhoods "
    "are flattened ever more: the mean LID falls by 40 % and its Fisher-Rao distance (FR) to the plane's 2 grows. "
    "LDReg, applied to the most collapsed cloud, opens its neighborhoods again (paper, Figure 1(c))."
)
_TARGET_TEXT = (
    "One linear layer on uniform points of the plane, trained by LDReg alone to reach a given LID (paper, Appendix A). "
    "Each picture looks closely at one point, the star, with its 12 nearest neighbors in the circle: the layer "
    "flattens the cloud just as far as the target asks."
)


@dataclass(frozen=True)
class Demo:
    """What was measured, and where the report is."""

    runs: list[Record]
    reached: list[PointCloud]
    report: Path


def demo(
    out: Path,
    *,
    epochs: int | None = None,
    steps: int = 200,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Demo:
    """Train and evaluate both runs, redraw two figures of the paper, and write all of it and a report into `out`.

    Without ldreg[train] a run leaves no folder.

    Args:
        out: folder to write into; made if it is missing. Runs go to new folders in it.
        epochs: of each run; None: as the recipe says, or `demo_plain`.
        steps: of the training toward each target in the plane.
        seed: of every random draw.
        progress: called with the name of the step and the fraction of the whole that is done.

    Raises:
        ValueError: no epochs, or a seed out of range.
    """
    if epochs is not None and epochs < 1:
        raise ValueError(f"epochs: expected at least 1, got {epochs}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0 to 2**63 - 1, got {seed}")
    told = progress or (lambda name, done: None)
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    for place, (name, recipe) in enumerate(RECIPES.items()):
        told(f"training {name}", 0.4 * place)
        runs.append(_run(name, recipe, out / "runs", epochs=epochs, seed=seed))
        runs[-1].to_json(out / f"{Path(recipe).name}.json")
    collapsed = collapse_and_cure(seed=seed, progress=lambda done: told("local collapse", 0.8 + 0.05 * done))
    reached = reach_targets(TARGETS, steps=steps, seed=seed, progress=lambda done: told("targets", 0.85 + 0.1 * done))
    told("drawing", 0.95)
    _draw_panels(collapsed, reached, out)
    sections = [
        clouds_section("Local collapse that global dimension does not see", _COLLAPSE_TEXT, collapsed),
        clouds_section("Any local dimension on request", _TARGET_TEXT, reached, close=True),
    ]
    report = out / "report.html"
    write_atomically(report, comparison_page(runs, title="SimCLR on digits, without and with LDReg", further=sections))
    told("done", 1.0)
    return Demo(runs, reached, report)


@plain_style()
def _draw_panels(collapsed: Sequence[PointCloud], reached: Sequence[PointCloud], out: Path) -> None:
    """Draw both experiments in the plane, as in the paper."""
    cloud_panels(collapsed, columns=5).savefig(out / "local_collapse.png", dpi=150)
    cloud_panels(reached, columns=3, close=True).savefig(out / "target_lid.png", dpi=150)


def _run(name: str, recipe: str, folder: Path, *, epochs: int | None, seed: int) -> Record:
    """One run by its recipe, in a new folder; in plain PyTorch where that cannot be."""
    if missing("train") is not None:
        from ldreg.demo_plain import EPOCHS, plain_run

        beta, passes = _BETAS[name], EPOCHS if epochs is None else epochs
        return plain_run(name, beta=beta, epochs=passes, seed=seed, thumbnails=_THUMBNAILS)
    from ldreg.evaluate.records import record
    from ldreg.evaluate.source import open_source
    from ldreg.train.folder import unused
    from ldreg.train.recipes import load_recipe
    from ldreg.train.run import pretrain
    from ldreg.train.settings import resolve

    options: list[tuple[str, str | None]] = [("seed", str(seed))]
    if epochs is not None:
        options.append(("schedule.epochs", str(epochs)))
    settings = resolve(load_recipe(recipe), options)
    path = unused(folder / Path(recipe).name)
    words = " ".join(f"--{key} {value}" for key, value in options)
    pretrain(settings, path, command=f"ldreg pretrain --recipe {recipe} {words}")
    return record(open_source(path), name=name, thumbnails=_THUMBNAILS, cache=folder.parent / "cache")
