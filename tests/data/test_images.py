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


# Torchvision 0.29 announces that its decoders will go; as an independent reference they serve as long as they stay.


def test_paths_may_have_any_bytes(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xc3\xa9 \xff.png")
    files = ImageFiles([odd, tmp_path / "b.png"], torch.tensor([0, -1]), ["one"], "odd")
    assert files.path(0) == odd
    assert files.path(1) == str(tmp_path / "b.png")
    assert (len(files), files.channels, files.labeled) == (2, 3, False)


def test_taking_images_keeps_everything_else() -> None:
    images = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 1, 2, 2)
    resident = ResidentImages(images, torch.tensor([0, 1, -1]), ["a", "b"], "tiny", unreadable=["x: y"])
    taken = resident.take(torch.tensor([2, 0]))
    assert taken.images[:, 0, 0, 0].tolist() == [2, 0]
    assert taken.labels.tolist() == [-1, 0]
    assert (taken.classes, taken.name, taken.unreadable) == (("a", "b"), "tiny", ("x: y",))
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
        assert images.labeled_indices.dtype == torch.int64
        chosen = images.take(images.labeled_indices)
        assert (chosen.labels.tolist(), chosen.labeled) == ([1, 0], True)
    nothing = ImageFiles(["a"], torch.tensor([-1]), [], "tiny")
    assert nothing.labeled_indices.shape == (0,)


def test_taken_files_share_the_tally(caplog: pytest.LogCaptureFixture) -> None:
    files = ImageFiles([f"{number}.png" for number in range(10)], torch.full((10,), -1), [], "tiny", max_unreadable=0.1)
    some = files.take(torch.tensor([7, 3]))
    some.tally.add([Failure(0, some.path(0), "cut")])
    files.tally.add([Failure(7, files.path(7), "cut")])
    assert [record.getMessage() for record in caplog.records] == ["unreadable image: 7.png: cut"]
    with pytest.raises(ValueError, match="got 2 of 10"):
        some.tally.add([Failure(1, some.path(1), "cut")])


def test_odd_names_are_listed_escaped(caplog: pytest.LogCaptureFixture) -> None:
    names = [b"new\nline\r.png", b"\xff.png", b"\x1b[2J.png", "caf\u00e9 'x'.png".encode()]
    tally = Tally(1000, max_share=0.01)
    tally.add(Failure(index, os.fsdecode(name), "cut") for index, name in enumerate(names))
    expected = [r"'new\nline\r.png': cut", r"'\udcff.png': cut", r"'\x1b[2J.png': cut", "caf\u00e9 'x'.png: cut"]
    assert tally.listed == expected
    assert [record.getMessage() for record in caplog.records] == [f"unreadable image: {line}" for line in expected]
    assert all(line.encode() for line in tally.listed)


def test_other_arrays_and_labels_are_refused() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"images: expected uint8 \(N, C, S, S\), got torch.float32 \(2, 1, 4, 4\)"):
        ResidentImages(torch.zeros(2, 1, 4, 4), labels, ["a"], "tiny")
    with pytest.raises(ValueError, match=r"images: .* got torch.uint8 \(2, 1, 4, 5\)"):
        ResidentImages(torch.zeros(2, 1, 4, 5, dtype=torch.uint8), labels, ["a"], "tiny")
    with pytest.raises(ValueError, match=r"labels: expected int64 \(1,\), got torch.int64 \(2,\)"):
        ImageFiles(["a"], labels, ["a"], "tiny")
    with pytest.raises(ValueError, match="labels: expected -1 to 0, got 0 to 1"):
        ImageFiles(["a", "b"], torch.tensor([0, 1]), ["a"], "tiny")


def test_tally_counts_an_image_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally(100, max_share=0.02)
    for _ in range(3):
        tally.add([Failure(4, "d.png", "cut"), Failure(9, "i.png", "empty")])
    assert tally.listed == ["d.png: cut", "i.png: empty"]
    assert [record.getMessage() for record in caplog.records] == [
        "unreadable image: d.png: cut",
        "unreadable image: i.png: empty",
    ]
    expected = "at most 2.00% unreadable images, got 3 of 100 (3.00%) so far, among them d.png: cut; i.png: empty; k"
    with pytest.raises(ValueError, match="max_unreadable: expected") as caught:
        tally.add([Failure(10, "k.png", "cut")])
    assert expected in str(caught.value)
