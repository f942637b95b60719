"""Datasets by a list: read rightly, all looked at first, none evaluated twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ldreg.data import DataConfig
from ldreg.encoders.checkpoints import LoadedEncoder
from ldreg.evaluate.extract import Compute
from ldreg.evaluate.protocols import LinearConfig, linear_evaluation
from ldreg.evaluate.transfer import TransferConfig, dataset_paths, transfer
from ldreg.train.checkpoints import LAST

Write = Callable[..., Path]
CPU = Compute("cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "datasets: expected names as cifar10=PATH,digits, got ''"),
        ("digits,", "datasets: expected names"),
        ("cifar10=", "datasets: expected names"),
        ("=/data", "datasets: expected names"),
        ("digits,digits", "datasets: expected each name once, got 'digits' twice"),
    ],
)
def test_wrong_lists_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset_paths(text)


def test_options_go_to_each_evaluation() -> None:
    config = TransferConfig("digits", epochs=3, lr=0.5, flip=0.0, seed=4)
    assert config.linear == LinearConfig("transfer", epochs=3, lr=0.5, flip=0.0, seed=4)
    with pytest.raises(ValueError, match="protocol: expected transfer or fast, got 'imagenet'"):
        TransferConfig("digits", "imagenet")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epochs: expected to be left out, as protocol fast has none"):
        TransferConfig("digits", "fast", epochs=1)


def test_one_that_fails_stops_all_before_any_is_evaluated(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    root = write_images(train={"cat": 3, "dog": 3}, test={"cat": 2})
    sets = {"digits": DataConfig(), "folder": DataConfig("folder", str(root), resident="no")}
    with pytest.raises(ValueError, match=r"^folder: expected test images of every class, got none of 'dog'$"):
        transfer(untrained, sets, LinearConfig("fast"), work=tmp_path / "work", cache=tmp_path / "cache", compute=CPU)
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "cache").exists()


def test_a_name_like_a_datasets_gets_a_hint_if_there_are_no_classes(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    def said(name: str, root: Path) -> str:
        sets = {name: DataConfig("folder", str(root), resident="no")}
        with pytest.raises(ValueError, match=f"^{name}: ") as caught:
            transfer(untrained, sets, LinearConfig("fast"), work=tmp_path / "work", compute=CPU)
        return str(caught.value)

    known = tmp_path / "known"
    (known / "cifar-10-batches-py").mkdir(parents=True)
    (known / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"pixels")
    meant = "; 'cifar1O' is no known dataset and was read as a folder of your own, nearest: cifar10, cifar100"
    assert said("cifar1O", known).endswith(meant)
    assert "nearest" not in said("photos", known)
    assert "nearest" not in said("folder", known)
    own = write_images(train={"cat": 3, "dog": 3}, test={"cat": 2})
    assert said("cats", own).endswith("expected test images of every class, got none of 'dog'")


def test_a_folder_of_ones_own_may_be_called_nearly_as_a_dataset(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write
) -> None:
    root = write_images(train={"cat": 8, "dog": 8}, test={"cat": 4, "dog": 4})
    sets = {"cars2": DataConfig("folder", str(root), resident="no", workers=0)}
    cache = tmp_path / "cache"
    assert transfer(untrained, sets, LinearConfig("fast"), work=tmp_path / "work", cache=cache, compute=CPU)["cars2"]


def test_what_is_finished_is_not_done_again(
    untrained: LoadedEncoder, tmp_path: Path, write_images: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_images(train={"cat": 8, "dog": 8}, test={"cat": 4, "dog": 4})
    sets = {
        "digits": DataConfig(),
        "folder": DataConfig("folder", str(root), resident="no", workers=0),
    }
    config = LinearConfig("transfer", epochs=2, lr=0.1, min_scale=0.5)

    def broken(encoder: LoadedEncoder, data: DataConfig, *others: object, **more: object) -> object:
        if data.name == "folder":
            raise KeyboardInterrupt
        return linear_evaluation(encoder, data, *others, **more)  # type: ignore[arg-type]

    steps: list[tuple[str, float]] = []

    def run() -> object:
        return transfer(
            untrained,
            sets,
            config,
            work=tmp_path / "work",
            cache=tmp_path / "cache",
            compute=CPU,
            progress=lambda step, fraction: steps.append((step, fraction)),
        )

    monkeypatch.setattr("ldreg.evaluate.transfer.linear_evaluation", broken)
    with pytest.raises(KeyboardInterrupt):
        run()
    (first,) = (tmp_path / "work").rglob(LAST)
    stamp = first.stat().st_mtime_ns
    monkeypatch.undo()
    steps.clear()
    found = run()
    assert isinstance(found, dict)
    assert list(found) == ["digits", "folder"]
    assert first.stat().st_mtime_ns == stamp
    assert not [step for step, _ in steps if step.startswith("digits: epoch")]
    assert steps[-1][0].startswith("folder: epoch 2/2")
    assert steps[-1][1] == 1.0
    # A file set in color and of another size goes through an encoder for 8x8 gray images; 16 images are one batch.
    assert (found["folder"].train_images, found["folder"].batch_size, found["folder"].test_images) == (16, 16, 8)
    assert found["folder"].accuracy > 0.5  # the classes differ in brightness
