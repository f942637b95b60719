"""Run folders and checkpoints as sources, and the images that go with them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from ldreg.data import DataConfig
from ldreg.encoders import EncoderConfig
from ldreg.evaluate.command import result_name
from ldreg.evaluate.measure import KnnConfig
from ldreg.evaluate.source import open_source, reading_settings


@pytest.fixture
def run(runs: Path) -> Path:
    """The folder of a run whose images are limited and cached beside it."""
    return runs / "simclr"


def images(run: Path, name: str = "digits", path: str | None = None, limit: int | None = None) -> DataConfig:
    """Images that are read as those of the run."""
    return DataConfig(name, path, limit=limit, cache=str(run.parent / "cache"))


def test_a_run_folder_brings_its_settings_and_data(run: Path) -> None:
    source = open_source(run)
    assert source.folder is not None
    assert source.settings is not None
    assert (source.name, source.folder.path, source.settings.run.method) == ("simclr", run, "simclr")
    assert source.data == images(run, limit=200)
    assert (source.encoder.layout, source.encoder.channels, source.encoder.size) == ("ldreg", 1, 8)
    other = open_source(run, data=[("data.name", "cifar10"), ("data.path", "x")])
    assert other.data == images(run, "cifar10", "x")  # only how images are read is the run's


def test_validation_images_are_those_that_the_run_set_aside(run: Path, tmp_path: Path) -> None:
    part = Path(shutil.copytree(run, tmp_path / "part"))
    config = (part / "config.yaml").read_text()
    (part / "config.yaml").write_text(config.replace("validation: 0.0", "validation: 0.2"))
    judged = open_source(part).data
    tested = open_source(part, data=[("data.validation", "0")]).data
    assert judged is not None
    assert tested is not None
    assert (judged.validation, tested.validation) == (0.2, 0)
    names = [result_name("knn", KnnConfig(), [data], own=judged) for data in (judged, tested)]
    assert names == ["knn-digits-validation0.2", "knn-digits"]
    for folder, own in ((run, "0"), (part, r"0\.2")):
        with pytest.raises(ValueError, match=rf"data.validation: expected 0 or the run's own {own}, .*, got 0\.5"):
            open_source(folder, data=[("data.validation", "0.5")])


def test_a_runs_encoder_alone_brings_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(run / "encoder.safetensors")
    assert source.folder is not None
    assert source.folder.path == run
    assert (source.name, source.data) == ("simclr", open_source(run).data)
    assert source.results_folder == run / "evaluation"
    assert open_source(run / "encoder.safetensors", data=[("data.limit", "50")]).data == images(run, limit=50)
    monkeypatch.chdir(run)
    assert open_source("encoder.safetensors").name == "simclr"
    assert open_source(".").name == "simclr"


def test_another_file_in_a_runs_folder_has_its_data_but_is_not_the_run(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("config.yaml", "card.json"):
        shutil.copy(run / name, folder)
    file = shutil.copy(run / "encoder.safetensors", folder / "best.safetensors")
    source = open_source(file)
    assert (source.name, source.folder, source.data) == ("best", None, open_source(run).data)
    assert source.results_folder == Path("evaluation") / "best"
    (folder / "card.json").unlink()
    assert open_source(file).data is None
    assert not (folder / "checkpoints").exists()  # a run that is only looked at stays as it is


def test_a_plain_checkpoint_needs_a_name_of_data(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save(timm.create_model("resnet18", num_classes=0).state_dict(), path)
    how: dict[str, Any] = {"encoder": EncoderConfig("resnet18"), "size": 64, "normalization": "half"}
    source = open_source(path, data=[("data.name", "cifar10"), ("data.path", "x")], **how)
    assert (source.name, source.encoder.size, source.encoder.normalization) == ("foreign", 64, "half")
    assert source.data == DataConfig("cifar10", "x")
    assert open_source(path).data is None
    with pytest.raises(ValueError, match=r"data\.name: expected the name of a dataset"):
        open_source(path, data=[("data.path", "x")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("data.nme", "x")], "unknown setting 'data.nme'; nearest: 'data.name'"),
        ([("data.limit", "many")], r"data\.limit: "),
        ([("data.path", "x")], r"data\.path: expected none for digits"),
        ([("data.name", "cifar1")], r"data\.name: expected a known dataset, got 'cifar1'"),
        ([("data.size", "16")], r"data\.size: expected to be left out"),
    ],
)
def test_wrong_options_are_named(options: list[tuple[str, str | None]], message: str, run: Path) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(run, data=options)


def test_how_other_sets_are_read(run: Path, tmp_path: Path) -> None:
    how = reading_settings(open_source(run), [("data.workers", "3")])
    assert (how.cache, how.workers, how.limit) == (str(run.parent / "cache"), 3, None)
    alone = shutil.copy(run / "encoder.safetensors", tmp_path / "alone.safetensors")
    assert reading_settings(open_source(alone), []).cache is None
