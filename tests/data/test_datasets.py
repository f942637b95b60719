import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from tests.data.pictures import pixels, save, save_transparent
from torchvision.datasets import CIFAR10, CIFAR100, STL10, ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS as TORCHVISIONS

from ldreg.data import DATASETS, DataConfig, ImageFiles, ResidentImages, load_images, output_size, worker_count
from ldreg.data.config import WITHOUT_PATH, available_cores, cache_folder
from ldreg.data.datasets import MissingSplitError, validation_part
from ldreg.data.images import Tally
from ldreg.io.images import IMG_EXTENSIONS

Tree = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LDREG_CACHE", str(cache))
    return cache


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a folder of PNGs, `count` in each of the named folders; image i of the whole has the pixels of seed i."""

    def make(*folders: str, count: int = 3, height: int = 8, width: int = 8) -> Path:
        root = tmp_path / "images"
        places = [(folder, number) for folder in folders for number in range(count)]
        for seed, (folder, number) in enumerate(places):
            save(root / folder / f"{number:03d}.png", seed, height, width)
        return root

    return make


def folder(path: Path, **options: object) -> DataConfig:
    return DataConfig(name="folder", path=str(path), **options)  # type: ignore[arg-type]


def expected(count: int) -> torch.Tensor:
    """The images that `tree` makes, (count, 3, 8, 8)."""
    return torch.from_numpy(np.stack([pixels(seed) for seed in range(count)])).permute(0, 3, 1, 2)


def resident(config: DataConfig, split: str = "train") -> ResidentImages:
    images = load_images(config, split)  # type: ignore[arg-type]
    assert isinstance(images, ResidentImages)
    return images


def files(config: DataConfig, split: str = "train") -> ImageFiles:
    images = load_images(config, split)  # type: ignore[arg-type]
    assert isinstance(images, ImageFiles)
    return images


# digits


def test_digits_are_scikit_learns_in_a_fixed_split() -> None:
    train, test = resident(DataConfig()), resident(DataConfig(), "test")
    assert (len(train), len(test)) == (1437, 360)
    data = load_digits()
    ours = {
        (image.numpy().tobytes(), int(label))
        for part in (train, test)
        for image, label in zip(part.images, part.labels, strict=True)
    }
    theirs = {
        (np.floor(image * 255 / 16 + 0.5).astype(np.uint8).tobytes(), int(label))
        for image, label in zip(data.images, data.target, strict=True)
    }
    assert ours == theirs
    assert len(ours) == 1797
    share = test.labels.bincount() / (train.labels.bincount() + test.labels.bincount())
    assert (share - 360 / 1797).abs().max() < 1 / 170
    # known values: another split would make figures of different versions incomparable
    assert test.labels[:12].tolist() == [7, 0, 1, 4, 1, 2, 9, 5, 5, 8, 4, 1]
    assert int((test.images.long().sum((1, 2, 3)) * torch.arange(360)).sum()) == 319131396


def test_a_limit_takes_the_same_few_images_of_all_classes_each_time() -> None:
    few = resident(DataConfig(limit=100))
    assert len(few) == 100
    assert len(few.labels.unique()) == 10
    assert torch.equal(few.images, resident(DataConfig(limit=100)).images)
    assert torch.equal(few.images[:50], resident(DataConfig(limit=50)).images)
    assert len(resident(DataConfig(limit=10_000))) == 1437


# folders


def test_split_folders_are_numbered_like_torchvisions(tree: Tree) -> None:
    assert IMG_EXTENSIONS == TORCHVISIONS
    root = tree("one/two/train/cat", "one/two/train/dog", "one/two/test/cat", "one/two/test/dog")
    train, test = resident(folder(root)), resident(folder(root), "test")
    reference = ImageFolder(root / "one/two/train")  # folders of one folder are skipped
    assert list(train.classes) == reference.classes == ["cat", "dog"]
    assert train.labels.tolist() == reference.targets
    assert torch.equal(train.images, expected(12)[:6])
    assert torch.equal(test.images, expected(12)[6:])
    assert train.labeled


def test_val_replaces_a_missing_test_folder(tree: Tree) -> None:
    root = tree("train/a", "val/a", count=2)
    assert torch.equal(resident(folder(root), "test").images, expected(4)[2:])
    save(root / "test" / "a" / "0.png", 77)
    assert len(resident(folder(root), "test")) == 1
    imagenet = DataConfig(name="imagenet", path=str(root))
    assert len(resident(imagenet, "test")) == 2


def test_class_numbers_are_those_of_training(tree: Tree) -> None:
    root = tree("train/a", "train/b", "train/c", "test/c")
    test = resident(folder(root), "test")
    assert (test.classes, test.labels.tolist()) == (("a", "b", "c"), [2, 2, 2])
    save(root / "test" / "d\ne" / "0.png", 1)
    with pytest.raises(ValueError, match=r"expected the classes of .*train, got 'd\\ne' as well"):
        load_images(folder(root), "test")


def test_folders_without_splits_are_for_training_only(tree: Tree, tmp_path: Path) -> None:
    classes = resident(folder(tree("a", "b/deeper")))
    assert (classes.classes, classes.labels.tolist()) == (("a", "b"), [0, 0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match="images: expected a folder test or val for the test split, found none"):
        load_images(folder(tmp_path / "images"), "test")
    for number in range(2):
        save(tmp_path / "loose" / f"{number}.png", number)
    loose = resident(folder(tmp_path / "loose"))
    assert (loose.classes, loose.labels.tolist(), loose.labeled) == ((), [-1, -1], False)


def test_training_split_may_be_missing(tree: Tree) -> None:
    root = tree("test/a")
    assert len(load_images(folder(root), "test")) == 3
    with pytest.raises(MissingSplitError, match="train"):
        load_images(folder(root), "train")


@pytest.mark.parametrize("name", ["test", "val"])
def test_empty_test_folder_is_a_missing_split(tree: Tree, name: str, caplog: pytest.LogCaptureFixture) -> None:
    root = tree("train/a", "train/b")
    for empty in (root / name, root / name / "a"):
        empty.mkdir()
        with pytest.raises(MissingSplitError, match=name):
            load_images(folder(root), "test")
    assert f"{root / name}: " in caplog.text
    assert len(load_images(folder(root), "train")) == 6


def test_unreadable_share_counts_the_limited_images(tree: Tree) -> None:
    root = tree("a", count=100)
    for path in (root / "a").iterdir():
        path.write_bytes(b"")
    config = folder(root, limit=10, max_unreadable=0.5, resident="no")
    assert not files(config).tally.exceeds(5)
    assert files(config).tally.exceeds(6)


def test_what_is_no_image_is_left_out(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    root = tree("a", "b")
    save(root / "a" / ".hidden.png", 9)
    save(root / "__MACOSX" / "a" / "0.png", 9)
    (root / "a" / "notes.txt").write_text("text")
    (root / "a" / "upper.PNG").write_bytes((root / "a" / "000.png").read_bytes())
    save(root / "stray.png", 9)
    images = resident(folder(root))
    assert (images.classes, images.labels.tolist()) == (("a", "b"), [0, 0, 0, 0, 1, 1, 1])
    assert "1 images outside of the class folders" in caplog.text


def test_missing_or_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.tar")
    for name, message in {
        "gone": "path: expected folders train/.*gone, found nothing there",
        "empty": "empty: expected images",
        "train": "train/a: expected images",
        "notes.txt": "path: expected a folder or an archive",
        "pipe.tar": "expected an archive that is a file",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_images(folder(tmp_path / name), "train")


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {*WITHOUT_PATH, "folder"}))
def test_every_dataset_reads_class_folders_and_names_its_layout(name: str, tree: Tree, tmp_path: Path) -> None:
    root = tree("train/a", "val/a" if name == "imagenet" else "test/a")
    assert len(load_images(DataConfig(name=name, path=str(root)), "test")) == 3
    for missing in (tmp_path / "gone", tmp_path / "images" / "train" / "a"):
        with pytest.raises(ValueError, match=r"path: expected .*train/<class>/") as caught:
            load_images(DataConfig(name=name, path=str(missing)), "train")
        assert str(missing) in str(caught.value)
        assert "\n" not in str(caught.value)


# in memory or from files


def test_transparent_images_are_counted_also_from_the_cache(
    tree: Tree, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("a", "b")
    for index, path in enumerate(sorted(root.rglob("*.png"))[:2]):
        save_transparent(path, index)
    shown = expected(6)
    shown[:2, :, :4] = 255
    assert torch.equal(resident(folder(root)).images, shown)
    monkeypatch.setattr("ldreg.data.images.decode_into_memory", None)  # nothing is decoded a second time
    again = resident(folder(root)).take(torch.arange(3))
    assert again.tally.transparent == 2
    assert [line.split(" have ")[0] for line in caplog.messages] == ["2 of 6 images"] * 2


def test_auto_keeps_squares_of_one_size_in_memory(tree: Tree, tmp_path: Path) -> None:
    root = tree("a", "b", count=70)
    bytes_needed = 140 * 3 * 8 * 8
    resident(folder(root, resident_limit=bytes_needed / 1e9))
    assert files(folder(root, resident_limit=(bytes_needed - 1) / 1e9)).size == 8
    assert len(resident(folder(root, resident="yes", resident_limit=0))) == 140
    save(root / "a" / "001.png", 1, 9, 9)  # is found when decoding, as the sample leaves it out
    assert files(folder(root)).size is None
    with pytest.raises(ValueError, match=r"resident: .* side 8, got 9x9 in .*001.png"):
        load_images(folder(root, resident="yes"), "train")
    save(root / "a" / "000.png", 1, 16, 16)
    assert files(folder(root, resident="no")).size is None
    with pytest.raises(ValueError, match=r"^resident: "):
        load_images(folder(root, resident="yes"), "train")
    save(tmp_path / "oblong" / "0.png", 1, 8, 9)
    assert files(folder(tmp_path / "oblong")).size is None


def test_the_second_start_reads_the_cache(tree: Tree, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree("a", "b")
    first = resident(folder(root))
    with monkeypatch.context() as patch:
        patch.setattr(ImageFiles, "read", lambda *_: pytest.fail("decoded again"))
        second = resident(folder(root))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    save(root / "a" / "000.png", 99)  # a changed file is decoded anew
    third = resident(folder(root))
    assert torch.equal(third.images[0], torch.from_numpy(pixels(99)).permute(2, 0, 1))
    assert len(list((own_cache / "decoded").iterdir())) == 2


def test_a_damaged_cache_is_made_again(tree: Tree, own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tree("a", "b")
    load_images(folder(root), "train")
    (stored,) = (own_cache / "decoded").iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    assert torch.equal(resident(folder(root)).images, expected(6))
    assert "is made again" in caplog.text
    caplog.clear()
    resident(folder(root))
    assert not caplog.records
    (root / "file").touch()
    assert torch.equal(resident(folder(root, cache=str(root / "file"))).images, expected(6))
    assert "cannot be kept" in caplog.text


def test_unreadable_images_are_left_out_and_listed_also_from_the_cache(tree: Tree) -> None:
    root = tree("a", "b", count=10)
    (root / "a" / "003.png").write_bytes(b"")
    (root / "b" / "002.png").unlink()
    (root / "b" / "002.png").symlink_to("nowhere")
    kept = [index for index in range(20) if index not in (3, 12)]
    for _ in range(2):
        images = resident(folder(root, max_unreadable=0.1))
        assert torch.equal(images.images, expected(20)[kept])
        assert images.labels.tolist() == [0] * 9 + [1] * 9
        assert images.tally.listed == [
            f"{root}/a/003.png: the file is empty",
            f"{root}/b/002.png: No such file or directory",
        ]
    with pytest.raises(ValueError, match=r"at most 5.00% unreadable images, got 2 of 20 \(10.00%\).*a/003.png: the"):
        load_images(folder(root, max_unreadable=0.05), "train")


def test_output_sizes(tree: Tree, tmp_path: Path) -> None:
    root = tree("a", "b")
    small = load_images(folder(root), "train")
    assert (output_size(folder(root), small), output_size(folder(root, size=5), small)) == (8, 5)
    save(root / "a" / "large.png", 1, 16, 16)
    save(tmp_path / "large" / "0.png", 0, 300, 300)
    for config in (folder(root), folder(tmp_path / "large")):
        assert output_size(config, load_images(config, "train")) == 224


# torchvision's own formats, made small; its checksums are of the true files


def cifar_batches(root: Path, kind: type[CIFAR10]) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    rng = np.random.default_rng(0)
    base = root / kind.base_folder
    base.mkdir(parents=True)
    key = "fine_labels" if kind is CIFAR100 else "labels"
    made = {}
    for name, _ in kind.train_list + kind.test_list:
        data, labels = rng.integers(0, 256, (4, 3072), dtype=np.uint8), rng.integers(0, 10, 4).tolist()
        (base / name).write_bytes(pickle.dumps({"data": data, key: labels}))
        made[name] = data, labels
    names = [f"class {number}" for number in range(10)]
    (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))
    return made


@pytest.mark.parametrize(("name", "kind"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_in_torchvision_s_format(
    name: str, kind: type[CIFAR10], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cifar_batches(tmp_path, kind)
    config = DataConfig(name=name, path=str(tmp_path))
    with pytest.raises(ValueError, match=f"path: expected {kind.base_folder}/ .*, found files missing or damaged"):
        load_images(config, "train")  # the checksums are wrong: nothing is unpickled
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    train = resident(config)
    data = np.concatenate([made[batch][0] for batch, _ in kind.train_list])
    assert np.array_equal(train.images.numpy(), data.reshape(-1, 3, 32, 32))
    assert train.labels.tolist() == [label for batch, _ in kind.train_list for label in made[batch][1]]
    assert train.classes[3] == "class 3"
    test = resident(config, "test")
    assert np.array_equal(test.images.numpy(), made[kind.test_list[0][0]][0].reshape(-1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"^resident: "):
        load_images(DataConfig(name=name, path=str(tmp_path), resident="no"), "train")


def test_stl10_trains_on_labeled_and_unlabeled_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / STL10.base_folder
    base.mkdir()
    rng = np.random.default_rng(0)
    images = {part: rng.integers(0, 256, (2, 3, 96, 96), dtype=np.uint8) for part in ("train", "unlabeled", "test")}
    for part, array in images.items():
        array.transpose(0, 1, 3, 2).tofile(base / f"{part}_X.bin")  # stored column by column
    for part in ("train", "test"):
        np.array([10, 1], dtype=np.uint8).tofile(base / f"{part}_y.bin")
    monkeypatch.setattr("torchvision.datasets.stl10.check_integrity", lambda *_: True)
    train = resident(DataConfig(name="stl10", path=str(tmp_path)))
    assert np.array_equal(train.images.numpy(), np.concatenate([images["train"], images["unlabeled"]]))
    assert train.labels.tolist() == [9, 0, -1, -1]
    assert (train.labeled, train.size) == (False, 96)
    test = resident(DataConfig(name="stl10", path=str(tmp_path)), "test")
    assert test.labels.tolist() == [9, 0]
    assert test.labeled


def test_food101_in_torchvision_s_format(tmp_path: Path) -> None:
    base = tmp_path / "food-101"
    (base / "meta").mkdir(parents=True)
    for seed, name in enumerate(["pie/1", "pie/2", "soup/1", "soup/2"]):
        save(base / "images" / f"{name}.jpg", seed, 20 + seed, 30)
    (base / "meta" / "train.json").write_text(json.dumps({"pie": ["pie/1"], "soup": ["soup/2"]}))
    (base / "meta" / "test.json").write_text(json.dumps({"pie": ["pie/2"], "soup": ["soup/1"]}))
    train = files(DataConfig(name="food101", path=str(tmp_path)))
    assert (train.classes, train.labels.tolist(), train.size) == (("pie", "soup"), [0, 1], None)
    assert [train.read(index).pixels.shape for index in range(2)] == [(3, 20, 30), (3, 23, 30)]
    assert files(DataConfig(name="food101", path=str(tmp_path)), "test").path(1) == str(base / "images/soup/1.jpg")


def test_dtd_trains_on_its_train_and_val(tmp_path: Path) -> None:
    base = tmp_path / "dtd" / "dtd"
    (base / "labels").mkdir(parents=True)
    for part, names in {"train": "ab", "val": "ab", "test": "ab"}.items():
        (base / "labels" / f"{part}1.txt").write_text("".join(f"{name}/{part}.jpg\n" for name in names))
        for name in names:
            save(base / "images" / name / f"{part}.jpg", ord(name), 20, 30)
    train = files(DataConfig(name="dtd", path=str(tmp_path)))
    assert [Path(train.path(index)).name for index in range(4)] == ["train.jpg", "train.jpg", "val.jpg", "val.jpg"]
    assert train.labels.tolist() == [0, 1, 0, 1]
    assert len(load_images(DataConfig(name="dtd", path=str(tmp_path)), "test")) == 2


def test_cars_in_torchvision_s_format(tmp_path: Path) -> None:
    base = tmp_path / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    rows = np.array([(2, "1.jpg"), (1, "2.jpg")], dtype=[("class", int), ("fname", object)])
    for part, target in {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}.items():
        scipy.io.savemat(base / target, {"annotations": rows})
        for number in (1, 2):
            save(base / f"cars_{part}" / f"{number}.jpg", number, 20, 20 + number)
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(["audi", "bmw"], dtype=object)})
    train = files(DataConfig(name="cars", path=str(tmp_path)))
    assert (train.classes, train.labels.tolist()) == (("audi", "bmw"), [1, 0])
    assert train.path(1) == str(base / "cars_train/2.jpg")
    assert len(load_images(DataConfig(name="cars", path=str(tmp_path)), "test")) == 2


def test_folders_linked_to_each_other_are_visited_once(tmp_path: Path) -> None:
    for i in range(20):
        save(tmp_path / "class" / f"d{i}" / "x.png", i)
        for name in ("a", "b"):
            (tmp_path / "class" / f"d{i}" / name).symlink_to(f"../d{(i + 1) % 20}", target_is_directory=True)
    save(tmp_path / "other" / "x.png", 1)
    (tmp_path / "third").symlink_to("other", target_is_directory=True)
    images = load_images(folder(tmp_path, resident="no"), "train")
    assert images.labels.tolist() == [0] * 20 + [1, 2]


@pytest.mark.parametrize("unreadable", range(101))
def test_unreadable_share_is_exact(unreadable: int) -> None:
    tally = Tally(100, max_share=float(f"0.{unreadable:02}") if unreadable < 100 else 1.0)
    assert not tally.exceeds(unreadable)
    assert tally.exceeds(unreadable + 1)


def numbered(labels: list[int]) -> ResidentImages:
    """Images whose pixels are their number."""
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    return ResidentImages(pixels, torch.tensor(labels), ("a", "b", "c"), "numbered")


def numbers(images: object) -> list[int]:
    assert isinstance(images, ResidentImages)
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("share", [0.1, 0.25, 1 / 3, 0.9])
def test_validation_parts_are_disjoint_and_complete(share: float) -> None:
    images = numbered([0] * 60 + [1] * 90 + [2] * 30)
    kept, aside, again = (validation_part(images, split, share=share) for split in ("train", "test", "test"))
    assert sorted(numbers(kept) + numbers(aside)) == list(range(180))
    assert numbers(aside) == numbers(again)
    assert len(set(np.diff(numbers(aside)))) > 1  # no regular ones
    assert len(aside) == round(180 * share)
    for label, count in enumerate((60, 90, 30)):
        assert abs(int((aside.labels == label).sum()) - count * share) <= 1


def test_validation_part_has_labeled_images_only() -> None:
    images = numbered([0] * 20 + [-1] * 100 + [1] * 20)
    assert validation_part(images, "test", share=0.5).labels.bincount().tolist() == [10, 10]
    assert int((validation_part(images, "train", share=0.5).labels < 0).sum()) == 100
    assert len(validation_part(numbered([-1] * 40), "test", share=0.25)) == 10
    with pytest.raises(ValueError, match=r"^validation: "):
        validation_part(numbered([0] * 5), "test", share=0.1)


def test_validation_part_of_files_without_a_test_folder(tree: Tree) -> None:
    config = folder(tree("train/cat", "train/dog", count=10), validation=0.3, resident="no")
    train, aside = files(config), files(config, "test")
    assert aside.labels.bincount().tolist() == [3, 3]
    assert len({images.path(row) for images in (train, aside) for row in range(len(images))}) == 20


def test_known_names_are_listed_where_none_is_near() -> None:
    with pytest.raises(ValueError, match=r"known are digits, cifar10, .*, folder"):
        DataConfig(name="zzz", path="x")


def test_a_split_that_is_not_one_is_named() -> None:
    with pytest.raises(ValueError, match=r"^split: "):
        load_images(DataConfig(), "val")  # type: ignore[arg-type]


def test_cache_folder_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LDREG_CACHE", "/from/variable")
    assert cache_folder(DataConfig(cache=str(tmp_path))) == tmp_path
    assert cache_folder(DataConfig()) == Path("/from/variable")
    monkeypatch.delenv("LDREG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(DataConfig()) == tmp_path / ".cache" / "ldreg"


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count(DataConfig(workers=0), processes=8) == 0
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
    for cores, processes, workers in ((12, 1, 12), (12, 4, 3), (12, 100, 1), (128, 1, 16)):
        monkeypatch.setattr("ldreg.data.config.available_cores", lambda cores=cores: cores)
        assert worker_count(DataConfig(), processes=processes) == workers
