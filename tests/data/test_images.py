import os
from pathlib import Path

import pytest
import torch

from ldreg.data import ImageFiles, ResidentImages
from ldreg.data.images import Failure, Tally


def test_the_log_counts_transparent_images_of_a_pass_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(100, max_share=0.01)
    tally.finish_pass(20, transparent=0)
    for read, transparent in ((20, 3), (20, 3), (100, 12), (90, 10)):
        tally.finish_pass(read, transparent=transparent)
    assert [record.getMessage().split(" have ")[0] for record in caplog.records] == [
        "3 of 20 images",
        "12 of 100 images",
    ]
    assert tally.transparent == 10


def test_paths_may_have_any_bytes(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff.png")
    files = ImageFiles([odd, tmp_path / "b.png"], torch.tensor([0, -1]), ["one"], "odd")
    assert files.path(0) == odd
    assert files.path(1) == str(tmp_path / "b.png")
    assert (len(files), files.channels, files.labeled) == (2, 3, False)


def test_taking_images_keeps_everything_else() -> None:
    images = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 1, 2, 2)
    resident = ResidentImages(images, torch.tensor([0, 1, -1]), ["a", "b"], "tiny")
    taken = resident.take(torch.tensor([2, 0]))
    assert taken.images[:, 0, 0, 0].tolist() == [2, 0]
    assert taken.labels.tolist() == [-1, 0]
    assert (taken.classes, taken.name, taken.tally) == (("a", "b"), "tiny", resident.tally)
    assert not resident.labeled
    assert resident.take(torch.tensor([0, 1])).labeled
    files = ImageFiles(["a", "b", "c"], torch.tensor([0, 1, -1]), ["a", "b"], "tiny", size=9, max_unreadable=0.5)
    chosen = files.take(torch.tensor([2, 0]))
    assert [chosen.path(0), chosen.path(1)] == ["c", "a"]
    assert (chosen.size, chosen.labels.tolist()) == (9, [-1, 0])


def test_the_labeled_ones_can_be_taken() -> None:
    labels = torch.tensor([1, -1, 0, -1])
    resident = ResidentImages(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels, ["a", "b"], "tiny")
    for images in (resident, ImageFiles(["a", "b", "c", "d"], labels, ["a", "b"], "tiny")):
        assert images.labeled_indices.tolist() == [0, 2]
        chosen = images.take(images.labeled_indices)
        assert (chosen.labels.tolist(), chosen.labeled) == ([1, 0], True)
    assert ImageFiles(["a"], torch.tensor([-1]), [], "tiny").labeled_indices.shape == (0,)


def test_other_arrays_and_labels_are_refused() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    for images in (torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 5, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=rf"^images: .* got {images.dtype} \(2, 1, "):
            ResidentImages(images, labels, ["a"], "tiny")
    for paths, wrong in ((["a"], labels), (["a", "b"], torch.tensor([0, 1])), (["a", "b"], torch.zeros(2))):
        with pytest.raises(ValueError, match=r"^labels: "):
            ImageFiles(paths, wrong, ["a"], "tiny")


def test_tally_counts_an_image_once(caplog: pytest.LogCaptureFixture) -> None:
    files = ImageFiles([f"{number}.png" for number in range(50)], torch.full((50,), -1), [], "set", max_unreadable=0.04)
    some = files.take(torch.tensor([4, 9, 10]))  # which shares the tally
    for tally in (some.tally, files.tally):
        tally.add([Failure(4, "d.png", "cut"), Failure(9, os.fsdecode(b"\xff\n.png"), "empty")])
    listed = ["d.png: cut", r"'\udcff\n.png': empty"]
    assert files.tally.listed == listed
    assert caplog.messages == [f"unreadable image: {line}" for line in listed]
    with pytest.raises(ValueError, match=r"^max_unreadable: .* 4.00% .* got 3 of 50 \(6.00%\)"):
        some.tally.add([Failure(10, "k.png", "cut")])
