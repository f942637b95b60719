"""Files of a run from a stranger: what is too large, has no end or is something else is refused by every reader."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hostile.test_bombs import doubling, pickled, sparse

from ldreg.data.datasets import list_folder
from ldreg.data.decoding import UnreadableImageError, read_content
from ldreg.evaluate.classifier import _saved
from ldreg.io.files import read_bytes, read_text
from ldreg.io.guard import load_torch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, devices and /proc")

Refused = Callable[..., str]
Guarded = Callable[..., dict[str, Any]]

# Each reader of tests/hostile/guard.py, by the name of its file.
TEXTS = {
    "metrics": "metrics.csv",
    "facts": "environment.json",
    "results": "knn.json",
    "card": "card.json",
    "finished run": "card.json",
    "bench": "lid-cpu.json",
    "cost": "step-cpu.json",
    "annotations": "instances_val2017.json",
    "detection": "detection.json",
}
CHECKPOINTS = {"checkpoint": "last.ckpt", "detector": "last.ckpt", "anchor": "last.ckpt"}
LOOKED_AT = {"card", "fit", "annotations"}  # is it a file? to others a pipe is one that cannot be read


def endless(path: Path) -> Path:
    """5 GiB of zeros; in memory they are more than the guard allows."""
    sparse(path, b"")
    return path


def endless_pickle(path: Path) -> Path:
    """A torch file of a tuple that takes forever to hash."""
    pickled(path, doubling(60))
    return path


@pytest.mark.parametrize("reader", TEXTS)
def test_endless_text_is_refused(reader: str, refused: Refused, tmp_path: Path) -> None:
    said = refused("read", reader, endless(tmp_path / TEXTS[reader]))
    assert "a file of more than " in said
    # Folders name the file themselves where there are many.
    assert TEXTS[reader] in said or reader in ("card", "results", "bench")


@pytest.mark.parametrize("reader", sorted(TEXTS.keys() - LOOKED_AT))
def test_pipe_in_place_of_a_text_is_refused(reader: str, refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / TEXTS[reader])
    assert "a pipe or device" in refused("read", reader, tmp_path / TEXTS[reader])


def test_endless_cached_result_is_made_again(guarded: Guarded, tmp_path: Path) -> None:
    took = guarded("read", "fit", endless(tmp_path / "kept.json"))
    assert (took["status"], took["grown"] < 400) == (0, True), took
    assert "is made again (a file of more than " in took["stderr"]


@pytest.mark.parametrize("reader", CHECKPOINTS)
def test_endless_checkpoint_is_refused(reader: str, refused: Refused, tmp_path: Path) -> None:
    said = refused("read", reader, endless_pickle(tmp_path / CHECKPOINTS[reader]))
    assert "got one that cannot be read" in said
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").replace(tmp_path / CHECKPOINTS[reader])
    assert "got one that cannot be read" in refused("read", reader, tmp_path / CHECKPOINTS[reader])


def test_classifier_starts_anew_at_an_endless_checkpoint(guarded: Guarded, tmp_path: Path) -> None:
    took = guarded("read", "classifier", endless_pickle(tmp_path / "last.ckpt"))
    assert (took["status"], took["seconds"] < 15) == (0, True), took
    assert "(pickles a tuple of more than 10000000 parts" in took["stderr"]


def test_messages_about_checkpoints_are_printable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save({"\x1b]0;owned\x07": 1}, tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").write_bytes(b"\x80\x02c\x1b[31mos\nsystem\n.")
    for name in ("a.ckpt", "b.ckpt"):
        (tmp_path / name).replace(tmp_path / "last.ckpt")
        assert _saved(tmp_path, {}) is None
    assert len(caplog.messages) == 2
    assert all(message.isprintable() for message in caplog.messages)


@pytest.mark.parametrize("settings", ["[]]", "3", '["a"]', "[" * 100_000, None])
@pytest.mark.parametrize("reader", CHECKPOINTS)
def test_a_checkpoint_with_other_settings_in_it_is_refused(
    reader: str, settings: object, refused: Refused, tmp_path: Path
) -> None:
    from ldreg.train.checkpoints import SETTINGS

    path = tmp_path / CHECKPOINTS[reader]
    named = {} if settings is None else {SETTINGS: settings, "ldreg_detection": settings}
    torch.save({"global_step": 1, "epoch": 1, **named}, path)
    assert "got one that cannot be read" in refused("read", reader, path)


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"metrics": 3}', '{"metrics": {"a": "\x1b"}, "minutes": 1, "stopped": null}', "[" * 100_000, "\xff"],
)
def test_a_finished_run_with_another_card_is_refused(text: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(text, encoding="latin-1")
    said = refused("read", "finished run", tmp_path / "card.json")
    assert f"{tmp_path / 'card.json'}: expected the card of a finished run" in said
    assert said.isprintable()


def test_endless_image_is_unreadable(refused: Refused, tmp_path: Path) -> None:
    assert "5368709120 bytes, expected at most 1073741824" in refused("read", "image", endless(tmp_path / "a.png"))
    os.mkfifo(tmp_path / "b.png")
    assert "a pipe or device" in refused("read", "image", tmp_path / "b.png")
    (tmp_path / "c.png").symlink_to("/dev/zero")
    assert "a pipe or device" in refused("read", "image", tmp_path / "c.png")
    with pytest.raises(UnreadableImageError, match="Is a directory"):
        read_content(str(tmp_path))
    (tmp_path / "d.png").write_bytes(b"content")
    assert read_content(str(tmp_path / "d.png")) == b"content"


def test_links_to_devices_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "absent")
    (tmp_path / "file.png").write_bytes(b"x")
    (tmp_path / "link.png").symlink_to(tmp_path / "file.png")
    os.mkfifo(tmp_path / "pipe.png")
    assert list_folder(tmp_path)[1] == ["file.png", "link.png", "nowhere.png"]


def test_texts_are_read_up_to_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("ä" * 50, encoding="utf-8")
    assert read_text(path, largest=100) == "ä" * 50
    with pytest.raises(ValueError, match="a file of more than 99 bytes"):
        read_text(path, largest=99)
    with pytest.raises(ValueError, match="a file of more than 10 bytes"):  # of which the system says 0 bytes
        read_bytes("/proc/self/status", largest=10)
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "absent")


def test_other_files_in_place_of_torch_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_torch(tmp_path / "absent")
    with pytest.raises(ValueError, match="not a regular file"):
        load_torch(Path("/dev/zero"))
