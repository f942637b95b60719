"""The main job, end to end with few steps."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy
import pytest
import torch
from PIL import Image

from ldreg.cli import main
from ldreg.demo import Demo, _draw_panels, demo, plain_run
from ldreg.record import Record
from ldreg.report.pages import clouds_section, study_page
from ldreg.reproduce.plane import collapse_and_cure


class Made(NamedTuple):
    """What the command was given by `demo`, how far that said it was, and what was printed."""

    demo: Demo
    said: list[float]
    printed: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A demo by the command."""
    found: list[Demo] = []
    said: list[float] = []

    def watched(out: Path, *, progress: Callable[[str, float], None], **options: Any) -> Demo:
        def told(name: str, done: float) -> None:
            said.append(done)
            progress(name, done)

        found.append(demo(out, steps=2, progress=told, **options))
        return found[-1]

    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr("ldreg.demo.demo", watched)
        assert main(["demo", "--out", str(out), "--epochs", "3"]) == 0
    return Made(found[0], said, printed.getvalue())


def test_pictures_do_not_follow_a_matplotlibrc(tmp_path: Path, odd_style: dict[Any, Any]) -> None:
    clouds = collapse_and_cure(seed=0)

    def drawn() -> list[bytes]:
        _draw_panels(clouds, clouds[:3], tmp_path)
        return [(tmp_path / name).read_bytes() for name in ("local_collapse.png", "target_lid.png")]

    def page() -> str:
        return study_page("a", "", [clouds_section("b", "c", clouds[:1])])

    plain, section = drawn(), page()
    with matplotlib.rc_context(odd_style):
        assert drawn() == plain
        assert page() == section


def test_demo_writes_its_report(made: Made) -> None:
    found = made.demo
    assert made.said[-1] == 1
    assert made.said == sorted(made.said)
    page = found.report.read_text()
    assert page.count('<div role="img"') >= 5 + 6 + 4
    for text in ("target 1.8", "Local collapse that global dimension does not see", "Most collapsed images"):
        assert text in page
    assert f"The report is {found.report}" in made.printed
    assert len(found.reached) == 6


def test_pictures_hold_a_row_of_five_panels_and_two_rows_of_three(made: Made) -> None:
    folder = made.demo.report.parent
    collapse, targets = (
        numpy.asarray(Image.open(folder / f"{name}.png").convert("L")) for name in ("local_collapse", "target_lid")
    )
    for pixels, rows, columns in ((collapse, 1, 5), (targets, 2, 3)):
        height, width = pixels.shape
        assert width / columns == pytest.approx(height / rows, rel=0.2)
        for panel in (half for row in numpy.array_split(pixels, rows) for half in numpy.array_split(row, columns, 1)):
            assert (panel < 128).mean() > 0.005


def test_demo_trains_without_and_with_ldreg(made: Made) -> None:
    check_runs(made.demo.runs, images=12)
    assert Record.from_json(made.demo.report.parent / "simclr_ldreg.json").name == "SimCLR + LDReg"


def check_runs(runs: list[Record], *, images: int) -> None:
    """A run without and one with LDReg that learned the digits and are measured."""
    assert [run.settings["regularizer"] for run in runs] == ["none", "ldreg"]
    for run in runs:
        assert run.results["linear"] > 0.8
        assert run.results["knn"] > 0.6
        assert len(run.lid) == len(run.map) == run.images == 1797 - 360
        assert {"lid", "effective_rank", "loss"} <= set(run.curves)
        assert [image.lid for image in run.most_collapsed] == pytest.approx(sorted(run.lid)[:images])


def test_a_second_demo_takes_new_folders(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ldreg.demo.collapse_and_cure", partial(collapse_and_cure, n=100, k=16, steps=1))
    out = made.demo.report.parent
    again = demo(out, epochs=3, steps=2)
    assert (out / "runs" / "simclr-2" / "encoder.safetensors").is_file()
    assert again.runs[0].results["lid"] == made.demo.runs[0].results["lid"]  # the same seed


def test_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("ldreg demo: error: ")


def test_without_the_training_extra_ldreg_raises_local_and_global_dimension() -> None:
    before = torch.random.get_rng_state()
    plain, regularized = (plain_run("SimCLR", beta=beta, epochs=6, thumbnails=6) for beta in (0.0, 0.3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert regularized.results["lid"] > plain.results["lid"]
    assert regularized.results["effective_rank"] > 1.1 * plain.results["effective_rank"]
    assert regularized.settings["ldreg.beta"] == 0.3
    check_runs([plain, regularized], images=6)
    for run in (plain, regularized):
        assert [epoch for epoch, _ in run.curves["lid"]] == [6]
        assert len(run.curves["loss"]) == 6


def test_plain_runs_of_one_seed_are_equal() -> None:
    first, second, other = (plain_run("SimCLR", beta=0.1, epochs=1, seed=seed) for seed in (0, 0, 1))
    assert first.lid == second.lid
    assert first.lid != other.lid


def test_no_epochs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^epochs: "):
        demo(tmp_path / "demo", epochs=0)
    assert not (tmp_path / "demo").exists()
