import os
from pathlib import Path

import pytest

from ldreg.io.files import check_writable, write_atomically


def test_writes_text_as_utf8(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "naïve 猫\n")
    assert (tmp_path / "a.txt").read_bytes() == "naïve 猫\n".encode()
    assert os.listdir(tmp_path) == ["a.txt"]  # noqa: PTH208


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "a.txt", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_permissions_are_kept_or_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").chmod(0o640)
    write_atomically(tmp_path / "plain", "new")
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    check_writable("/dev/null")
    write_atomically("/dev/null", "text")
    assert Path("/dev/null").is_char_device()


def test_check_finds_what_cannot_be_written_and_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        check_writable(tmp_path)
    for check in (check_writable, lambda path: write_atomically(path, "")):
        with pytest.raises(FileNotFoundError, match=r"absent"):
            check(tmp_path / "absent" / "a")
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="cannot write"):
            check_writable(tmp_path / "a")
