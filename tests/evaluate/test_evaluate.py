"""`ldreg evaluate` from words to results, every kind, and one line where something is wrong."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ldreg.cli import main
from ldreg.data import DataConfig, ResidentImages, load_images
from ldreg.evaluate.classification import linear_on
from ldreg.evaluate.command import KINDS, kind_options, result_name
from ldreg.evaluate.features import features
from ldreg.evaluate.measure import KnnConfig
from ldreg.evaluate.protocols import FinetuneConfig, LinearConfig, dataset_configs, with_run_augmentation
from ldreg.evaluate.source import open_source
from ldreg.inspection.measure import inspect
from ldreg.io.embeddings import load_embeddings
from ldreg.options import built, typed
from ldreg.options import split as split_words
from ldreg.thumbnails import sheets, tiles
from ldreg.train.recipes import load_recipe
from ldreg.train.run import pretrain
from ldreg.train.settings import resolve

OPTIONS = {"schedule.epochs": "1", "schedule.warmup_epochs": "0", "trainer.device": "cpu"}


def evaluate_command(words: Sequence[str]) -> None:
    assert main(["evaluate", *words]) == 0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    path = tmp_path_factory.mktemp("runs") / "short"
    pretrain(resolve(load_recipe("digits/simclr_ldreg"), list(OPTIONS.items())), path, command="test")
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder of this test alone, with a cache of its own and nothing else in the working folder."""
    monkeypatch.setenv("LDREG_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "short"
    path.mkdir()
    for name in ("config.yaml", "encoder.safetensors", "card.json", "environment.json"):
        (path / name).write_bytes((original / name).read_bytes())
    return path


def results(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_trained_protocol_reports_the_last_epoch_and_names_the_best(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "evaluation" / "linear-transfer-epochs3-batch_size64-lr0.2-digits.json"
    words = ["--protocol", "transfer", "--epochs", "3", "--batch_size", "64", "--lr", "0.2", "--json", "mine.json"]
    documents = []
    for _ in range(2):
        evaluate_command(["linear", str(run), *words])
        documents.append(results(path))
    assert documents[0]["history"] == documents[1]["history"]
    found, accuracies = documents[0]["results"], [epoch["accuracy"] for epoch in documents[0]["history"]]
    assert (found["linear"], found["linear_best"]) == (accuracies[-1], max(accuracies))
    assert [found[name] for name in ("epochs", "batch_size", "lr", "steps")] == [3, 64, 0.2, 3 * 22]
    assert documents[1] == results(Path("mine.json"))
    assert (documents[0]["kind"], documents[0]["seed"], documents[0]["source"]["layout"]) == ("linear", 0, "ldreg")
    environment = documents[0]["environment"]
    assert environment["command"] == f"ldreg evaluate linear {run} {' '.join(words)}"
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0]
    said = capsys.readouterr()
    lines = [line[:20].strip() for line in said.out.splitlines()]
    assert lines[:4] == ["linear, transfer", "best epoch", "epochs", "images"]
    assert "mine.json" in said.err


def test_more_voters_than_a_class_has_images_give_a_warning(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smallest = int(load_images(DataConfig(), "train").labels.bincount().min())
    evaluate_command(["knn", str(run)])
    warning = f"k: 200 vote, more than the smallest class has ({smallest} images of class "
    assert warning in capsys.readouterr().out
    evaluate_command(["knn", str(run), "--k", str(smallest)])
    assert "smallest class" not in capsys.readouterr().out


def test_dimension_is_inspect(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_command(["dimension", str(run), "--k", "30", "--html", "page.html", "--device", "cpu"])
    found = results(run / "evaluation" / "dimension-test-k30-digits.json")
    report = inspect(features(open_source(run).encoder, DataConfig(), "test").representations, k=30)
    assert found["results"]["lid"] == pytest.approx(report.mean.value)
    assert found["results"]["effective_rank"] == pytest.approx(report.effective_rank)
    assert found["results"]["images"] == len(found["report"]["lid"]) == 360
    assert [entry["label"] for entry in found["report"]["classes"]] == [str(digit) for digit in range(10)]
    assert "LID, geometric mean" in capsys.readouterr().out
    page = Path("page.html").read_text()
    assert "<svg" in page
    data = json.loads(re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[0])
    images, order = data["images"], np.frombuffer(base64.b64decode(data["columns"]["row"][1]), "<u2")
    places = np.frombuffer(base64.b64decode(images["places"][1]), "<u2")
    assert sorted(places) == list(range(360))
    digits = load_images(DataConfig(), "test")
    assert isinstance(digits, ResidentImages)
    shown = tiles(digits.images[row] for row in order.tolist())
    assert images["sheets"] == sheets([one for one in shown if one is not None])
    saved = ["--representations", "train.npy"]
    evaluate_command(["dimension", str(run), "--split", "train", "--sample", "100", "--estimator", "mle", *saved])
    rows = features(open_source(run).encoder, DataConfig(), "train").representations
    assert torch.equal(load_embeddings("train.npy"), rows)
    other = results(run / "evaluation" / "dimension-train-mle-sample100-digits.json")
    assert (other["results"]["images"], len(other["report"]["lid"])) == (1437, 100)


def test_transfer_is_one_table_of_datasets_and_folders(
    run: Path, write_images: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shades in (("a/photos", ("dark", "light")), ("b/photos", ("dark", "gray", "light"))):
        write_images(name=name, train=dict.fromkeys(shades, 12), test=dict.fromkeys(shades, 6))
    sets = "digits,first=a/photos,folder=a/photos,second=b/photos"
    evaluate_command(["transfer", str(run), "--datasets", sets, "--protocol", "fast", "--data.workers", "0"])
    (path,) = (run / "evaluation").glob("transfer-fast-digits+folder-photos-*+folder-photos-*.json")
    found = results(path)["results"]
    assert {name: (one["classes"], one["train_images"]) for name, one in found.items()} == {
        "digits": (10, 1437), "first": (2, 24), "folder": (2, 24), "second": (3, 36)
    }  # fmt: skip
    assert found["first"]["linear"] == found["folder"]["linear"] == 1.0
    assert found["digits"]["linear"] == pytest.approx(linear_on(open_source(run), DataConfig()))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["dataset", "linear", "best", "epoch", "epochs", "classes", "images", "tested"]
    assert [line.split()[0] for line in lines[2:6]] == ["digits", "first", "folder", "second"]
    assert lines[3].split()[1:] == ["1.00", "–", "–", "2", "24", "12"]


def test_a_plain_checkpoint_goes_beside_the_caller(run: Path) -> None:
    file = Path("other") / "mine.safetensors"
    file.parent.mkdir()
    file.write_bytes((run / "encoder.safetensors").read_bytes())
    assert main(["evaluate", "knn", str(file)]) == 2  # nothing says which images
    assert main(["evaluate", "knn", str(file), "--data.name", "digits", "--cache", "own"]) == 0
    assert (Path("evaluation") / "mine" / "knn-digits.json").is_file()
    assert len(list(Path("own").rglob("*.safetensors"))) == 2
    assert main(["evaluate", "knn", str(file), "--data.name", "digits", "--out", "there"]) == 0
    assert (Path("there") / "knn-digits.json").is_file()


def test_augmentation_defaults_to_that_of_the_run(run: Path) -> None:
    source = open_source(run)
    config = with_run_augmentation(LinearConfig("transfer"), source)
    assert (config.flip, config.min_scale) == (0.0, 0.3)
    assert with_run_augmentation(LinearConfig("transfer", flip=0.4), source).flip == 0.4
    assert with_run_augmentation(FinetuneConfig(min_scale=0.9), source).min_scale == 0.9
    assert with_run_augmentation(LinearConfig("fast"), source) == LinearConfig("fast")
    masked = replace(source, settings=resolve(load_recipe("imagenet/mae")))  # whose policy has 0.2 for its own training
    assert with_run_augmentation(LinearConfig("imagenet"), masked).min_scale is None
    (run / "card.json").unlink()  # nothing says that the encoder is the run's
    plain = open_source(run / "encoder.safetensors")
    assert with_run_augmentation(LinearConfig("transfer"), plain) == LinearConfig("transfer")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["knn", "RUN", "--devices", "2"], "unknown option --devices; did you mean '--device'?"),
        (["knn", "RUN", "--k", "1438"], "k: expected at most the 1437 training images, got 1438"),
        (["knn", "RUN", "--normalization", "x"], "normalization: expected one of imagenet, cifar, half, none, got 'x'"),
        (["knn", "RUN", "--data.limit", "12"], "digits: expected training images of every class, got none of "),
        (["knn", "RUN", "--data.name", "cifar10"], "path: expected the folder or archive of cifar10, got None"),
        (["knn", "RUN", "--encoder.name", "resnet50"], "encoder.name: expected small_cnn"),
        (["dimension", "RUN", "--seed", "-3"], "seed: expected 0 to 2**63 - 1, got -3"),
        (["dimension", "RUN", "--html", "d.html", "--json", "./d.html"], "another output has the same name"),
        (["linear", "RUN", "--devices", "2"], "devices: expected 1 with protocol fast"),
        (["dimension", "RUN", "--k", "360"], "k: expected fewer than the 360 test images, got 360"),
        (["dimension", "RUN", "--representations", "no/x.npy"], "cannot write 'no/x.npy'"),
        (["dimension", "RUN", "--representations", "x.pt"], "representations: expected the name of a .npy file, got"),
        (["RUN"], "the kind comes first: ldreg evaluate KIND "),
        (["transfer", "RUN", "--datasets", "digit"], "datasets: name: expected a known dataset, got 'digit'"),
        (["transfer", "RUN", "--datasets", "cifar1O=x"], "cifar1O: path: expected folders train/<class>/"),
        (["transfer", "RUN", "--datasets", "cifar10"], "cifar10: path: expected the folder or archive of cifar10"),
        (["transfer", "RUN", "--datasets", "digits", "--data.path", "x"], "unknown option --data.path"),
        (["dimension", "RUN", "--data.name", "folder", "--data.path", "."], "--split train measures the images"),
        (["detection", "RUN", "--path", "x"], "encoder: expected a ResNet"),
        (["detection", "RUN", "--path", "x", "--data.name", "x"], "unknown option --data.name"),
    ],
)
def test_wrong_words_are_one_line_and_leave_nothing(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("L", (8, 8)).save("loose.png")
    asked = [str(run) if word == "RUN" else word for word in words]
    assert main(["evaluate", *asked]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("ldreg evaluate: error: ")
    assert message in line
    assert not list(run.rglob("evaluation/*.json"))


@pytest.mark.parametrize(
    ("name", "option"),
    [("card.json", "--json"), ("checkpoints/last.ckpt", "--html"), ("../link.json", "--json")],
)
def test_an_output_never_takes_the_place_of_an_input(
    name: str, option: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints").mkdir()
    (run.parent / "link.json").symlink_to(run / "encoder.safetensors")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for source in (run, run / "encoder.safetensors"):
        assert main(["evaluate", "dimension", str(source), option, str(run / name)]) == 2
        assert capsys.readouterr().err.endswith(f"cannot write {str(run / name)!r}: it is an input\n")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_checkpoints_archives_and_pages_of_others_are_not_replaced(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(open_source(run).encoder.module.state_dict(), "victim.pt")
    for name in ("cifar10.tar.xz", "notes.md"):
        Path(name).write_text("mine")
    knn = ["knn", "victim.pt", "--data.name", "cifar10", "--data.path", "cifar10.tar.xz", "--json"]
    sets = ["transfer", str(run), "--datasets", "digits,cifar10=cifar10.tar.xz", "--json", "cifar10.tar.xz"]
    for words in ([*knn, "victim.pt"], [*knn, "./cifar10.tar.xz"], sets, ["dimension", str(run), "--html", "notes.md"]):
        assert main(["evaluate", *words]) == 2
        assert f"cannot write {words[-1]!r}: it is " in capsys.readouterr().err
    assert Path("notes.md").read_text() == "mine"


def name_of(kind: str, *words: str) -> str:
    """What the result of these words on a run of digits is called."""
    pairs, _ = split_words(words)
    values, made = typed(kind_options(kind), pairs), KINDS[kind].config
    config = built(made, {entry.name: values[entry.name] for entry in fields(made)})
    data = resolve({}, [(key, value) for key, value in pairs if key.startswith("data.")]).data
    if kind == "transfer":
        datasets = dataset_configs(config.datasets, own=DataConfig(), reading=DataConfig())
        return result_name("transfer", config, [*datasets.values()])
    return result_name(kind, config, [data], own=DataConfig())


def test_other_settings_and_images_have_results_of_their_own() -> None:
    asked = [
        *("knn", "knn --k 20", "knn --k 2", "knn --temperature 0.1000001", "knn --data.limit 500"),
        *("knn --data.name shapes", "knn --data.name folder --data.path a/images"),
        *("knn --data.name folder --data.path b/images", "dimension", "dimension --k 20", "dimension --estimator mle"),
        *("linear", "linear --strength 3", "linear --iterations 3", "transfer --datasets digits"),
        *("transfer --datasets digits,shapes", "transfer --datasets digits,folder=a"),
        *("transfer --datasets digits,folder=b", "detection --path a", "detection --path b"),
        "detection --path b --schedule 2x",
    ]
    names = [name_of(*words.split()) for words in asked]
    assert len(set(names)) == len(names)
    assert names[:2] == ["knn-digits", "knn-k20-digits"]
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._+-") for name in names)
    long = "digits,shapes,textures," + ",".join(f"{name}=x" for name in ("cifar10", "cifar100", "stl10", "food101"))
    several = [name_of("transfer", "--datasets", f"{long},dtd=x,cars=x,birdsnap=x,folder={path}") for path in "ab"]
    assert several[0] != several[1]
    assert max(map(len, several)) <= 100


def test_what_has_no_say_in_a_result_does_not_rename_it() -> None:
    own = DataConfig("folder", "/data/images", limit=400)
    assert result_name("knn", KnnConfig(), [own], own=own, precision=None, size=None) == "knn-folder"
    assert result_name("knn", KnnConfig(), [replace(own, workers=3, cache="x")], own=own) == "knn-folder"
    assert result_name("knn", KnnConfig(), [replace(own, limit=None)], own=own) == "knn-folder-all"
    assert name_of("dimension", "--html", "x.html") == "dimension-digits"
    assert result_name("knn", KnnConfig(), [DataConfig("cifar10", "/a")]) == "knn-cifar10"
    assert result_name("knn", KnnConfig(), [DataConfig()], precision="bf16", size=16) == "knn-bf16-size16-digits"


def test_k_defaults_to_that_of_the_run_and_small_classes_give_a_warning(
    run: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    smallest = int(load_images(DataConfig(), "test").labels.bincount().min())
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"(\nmonitor:\n  k:) \d+", r"\1 18", config))
    evaluate_command(["dimension", str(run)])
    assert results(run / "evaluation" / "dimension-test-digits.json")["results"]["k"] == 18 > smallest / 2
    warning = f"k: 18 is over half of the smallest class ({smallest} images of "
    assert caplog.text.count(warning) == capsys.readouterr().out.count(warning) == 1
    evaluate_command(["dimension", str(run), "--k", str(smallest // 2), "--sample", "50"])
    assert "over half" not in capsys.readouterr().out
    Path("alone.safetensors").write_bytes((run / "encoder.safetensors").read_bytes())
    for words, k in (([str(run / "encoder.safetensors")], 18), (["alone.safetensors", "--data.name", "digits"], 64)):
        evaluate_command(["dimension", *words, "--out", "there"])
        assert results(Path("there") / "dimension-test-digits.json")["results"]["k"] == k


def test_a_run_that_breaks_leaves_no_result(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*others: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ldreg.evaluate.command.knn_accuracy", broken)
    assert main(["evaluate", "knn", str(run)]) == 2
    assert not list(run.rglob("evaluation/*.json"))


def start(words: Sequence[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LDREG_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "ldreg", "evaluate", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def weights(folder: Path, kind: str) -> dict[str, torch.Tensor]:
    (path,) = (folder / "work").glob(f"{kind}*/last.ckpt")
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return state


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "finetune"])
def test_two_processes_end_with_the_weights_of_one(kind: str, run: Path, tmp_path: Path) -> None:
    options = ["--epochs", "2", "--batch_size", "120", "--lr", "0.1", "--flip", "0.5", "--device", "cpu"]
    options += ["--protocol", "transfer"] if kind == "linear" else []
    outputs = {}
    for devices in ("1", "2"):
        outputs[devices] = start([kind, str(run), *options, "--devices", devices, "--out", devices], tmp_path)
    one, two = (weights(tmp_path / devices, kind) for devices in ("1", "2"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)
    documents = [next((tmp_path / devices).glob("*.json")) for devices in ("1", "2")]
    first, second = (results(path) for path in documents)
    assert first["results"] == second["results"]
    assert second["results"]["test_images"] == 360
    for a, b in zip(first["history"], second["history"], strict=True):
        assert a["accuracy"] == b["accuracy"]
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    assert outputs["2"].count("done in") == 1  # one of the processes speaks


@pytest.mark.slow
def test_several_trainings_in_one_command_share_the_processes(run: Path, tmp_path: Path) -> None:
    words = ["transfer", str(run), "--datasets", "digits,shapes", "--epochs", "1", "--devices", "2", "--device", "cpu"]
    out = start(words, tmp_path)
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["digits", "shapes"]
