"""Code in files of every kind: it is refused, and none of it runs. Each payload is first seen to work."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from tests.intruder import Intruder

from ldreg.encoders import EncoderConfig, build_encoder
from ldreg.train.recipes import load_recipe
from ldreg.train.settings import resolve

Refused = Callable[..., str]


def npy(path: Path, value: object) -> None:
    array = np.empty((1, 1), dtype=object)
    array[0, 0] = value
    np.save(path, array, allow_pickle=True)


def hidden(path: Path, value: object) -> None:
    """A pickle in a torch file beside the one that is read first, under the other name that torch knows."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/constants.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/code/model.py", "import os; os.abort()")
        archive.writestr("archive/version", "3\n")


WRITERS: dict[str, Callable[[Path, object], object]] = {
    "object.npy": npy,
    "object.npz": lambda path, value: np.savez(path, x=np.array([[value]], dtype=object)),
    "new.pt": lambda path, value: torch.save({"x": torch.ones(2, 2), "y": value}, path),
    "old.pth": lambda path, value: torch.save({"y": value}, path, _use_new_zipfile_serialization=False),
    "pickle.pt": lambda path, value: path.write_bytes(pickle.dumps(value)),
    "script.pt": hidden,
}


@pytest.mark.parametrize(
    ("command", "name"),
    [*(("inspect", name) for name in WRITERS), *(("evaluate", name) for name in WRITERS if ".pt" in name)],
)
def test_code_in_a_file_is_not_run(name: str, command: str, refused: Refused, tmp_path: Path) -> None:
    target, path = tmp_path / "made", tmp_path / name
    WRITERS[name](path, Intruder(target))
    words = ["inspect", path] if command == "inspect" else ["evaluate", "knn", path, "--data.name", "digits"]
    said = refused(*words)
    assert "code" in said or "object" in said
    assert not target.exists()


def test_the_payload_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Intruder(tmp_path / "made")))
    assert (tmp_path / "made").is_dir()


def encoder(path: Path, name: str) -> None:
    """Weights with a card that names this encoder."""
    card = {"encoder": {"name": name}, "input": {"channels": 1, "size": 8, "mean": [0.5], "std": [0.5]}}
    module = build_encoder(EncoderConfig("small_cnn"), channels=1, size=8)
    save_file(dict(module.state_dict()), path, metadata={"ldreg": json.dumps(card)})


@pytest.mark.parametrize(
    "text",
    [
        "seed: !!python/object/apply:os.mkdir [{}]",
        "!!python/object/new:os.mkdir [{}]",
        "seed: !!python/name:os.mkdir",
        "? !!python/object/apply:os.mkdir [{}]\n: 1",
        "base: !!python/object/apply:os.mkdir [{}]",
        "encoder: {{class_path: os.mkdir, init_args: {{path: {}}}}}",
        "method: {{class_path: os.mkdir, init_args: {{path: {}}}}}",
        "optimizer.name: os.mkdir",
        "data: {{path: {{class_path: os.mkdir, init_args: {{path: {}}}}}}}",
        "encoder: {{name: 'hf-hub:someone/model'}}",
        "encoder: {{name: 'local-dir:{}'}}",
    ],
)
@pytest.mark.parametrize("way", ["recipe", "resume", "evaluate"])
def test_code_in_settings_is_not_run(text: str, way: str, refused: Refused, tmp_path: Path) -> None:
    target, run = tmp_path / "made", tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    tree = {} if way == "recipe" or text[0] in "!?" else dict(resolve(load_recipe("digits/simclr")).tree)
    tree.pop(text.partition(":")[0], None)
    file = tmp_path / "r.yaml" if way == "recipe" else run / "config.yaml"
    file.write_text((yaml.safe_dump(tree) if tree else "") + text.format(target) + "\n")
    encoder(run / "encoder.safetensors", "small_cnn")
    if way == "recipe":
        said = refused("pretrain", "--recipe", file, "--out", tmp_path / "out")
    elif way == "resume":
        said = refused("pretrain", "--resume", run)
    else:
        said = refused("evaluate", "knn", run)
    assert any(words in said for words in ("YAML of plain data", "unknown setting", "expected one of", "model of timm"))
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["hf-hub:someone/model", "hf_hub:someone/model", "local-dir:/tmp", "timm/resnet18.a1_in1k"]
)
def test_a_card_cannot_name_weights_from_elsewhere(name: str, refused: Refused, tmp_path: Path) -> None:
    encoder(tmp_path / "e.safetensors", name)
    said = refused("evaluate", "knn", tmp_path / "e.safetensors", "--data.name", "digits")
    assert "a model of timm" in said


def test_payload_would_be_detected(guarded: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """A new run asks git for its commit: a program is started, which the guard sees."""
    took = guarded("pretrain", "--recipe", "digits/simclr", "--out", tmp_path / "out", "--schedule.epochs", "1")
    assert took["status"] == 99
    assert "RAN subprocess.Popen" in took["stderr"]
