"""The main job on embedded data: inspect scikit-learn's digits and redraw the paper's experiments in the plane."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from ldreg.inspection import inspect
from ldreg.reporting.files import write_atomically
from ldreg.reporting.page import clouds_section, page
from ldreg.reporting.panels import panels
from ldreg.reporting.record import DimensionReport, PointCloud
from ldreg.reproduction.plane import TARGETS, collapse_and_cure, reach_targets

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


def demo(
    out: Path, *, steps: int = 200, seed: int = 0, progress: Callable[[str, float], None] | None = None
) -> tuple[DimensionReport, list[PointCloud], Path]:
    """Run everything, write `report.html`, `digits.json` and two pictures into `out`, and return what was measured.

    Args:
        out: folder to write into; made if it is missing.
        steps: of the training toward each target.
        seed: of every random draw.
        progress: called with the name of the step and the fraction of the whole that is done.
    """
    told = progress or (lambda name, done: None)
    out.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    told("inspecting digits", 0.0)
    report = inspect(torch.as_tensor(digits.data, dtype=torch.float32), digits.target, seed=seed)
    report = replace(report, title="ldreg demo: scikit-learn's digits", command="ldreg demo")
    collapsed = collapse_and_cure(seed=seed, progress=lambda done: told("local collapse", 0.1 + 0.2 * done))
    reached = reach_targets(TARGETS, steps=steps, seed=seed, progress=lambda done: told("targets", 0.3 + 0.6 * done))
    told("drawing", 0.9)
    report.to_json(out / "digits.json")
    panels(collapsed, columns=5).savefig(out / "local_collapse.png", dpi=150)
    panels(reached, columns=3, close=True).savefig(out / "target_lid.png", dpi=150)
    sections = [
        clouds_section("collapse", "Local collapse that global dimension does not see", _COLLAPSE_TEXT, collapsed),
        clouds_section("target", "Any local dimension on request", _TARGET_TEXT, reached, close=True),
    ]
    write_atomically(out / "report.html", page(report, further=sections))
    told("done", 1.0)
    return report, reached, out / "report.html"
