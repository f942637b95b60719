import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from ldreg.data import unpack

FILES = {"set/train/a/0.png": b"first", "set/train/b/1.png": b"second" * 400, "set/readme.txt": b""}


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **fields: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(content))


def make_tar(path: Path, members: list[tuple[str, dict[str, object]]] | None = None) -> Path:
    kind = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, kind) as tar:  # type: ignore[call-overload]
        for name, content in FILES.items():
            add(tar, name, content)
        for name, fields in members or []:
            add(tar, name, **fields)  # type: ignore[arg-type]
    return path


def make_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in FILES.items():
            packed.writestr(name, content)
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive: Path, cache: Path, message: str, *, limit: int | None = None) -> None:
    """Refused with one line that names the archive; nothing is left in the cache nor made beside it."""
    around = set(archive.parent.rglob("*")) | {cache, cache / "archives"}
    with pytest.raises(ValueError, match=message) as caught:
        unpack(archive, cache, limit=limit)
    assert str(caught.value).startswith(f"{archive}: ")
    assert "\n" not in str(caught.value)
    assert not list((cache / "archives").iterdir())
    assert set(archive.parent.rglob("*")) <= around


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "A.TAR", "a.zip"])
def test_every_kind_is_unpacked(tmp_path: Path, name: str) -> None:
    archive = (make_zip if name.endswith("zip") else make_tar)(tmp_path / name)
    assert files_in(unpack(archive, tmp_path / "cache")) == FILES


def test_an_archive_is_unpacked_once_and_again_when_it_changes(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar")
    first = unpack(archive, tmp_path / "cache")
    (first / "mark").touch()
    assert unpack(archive, tmp_path / "cache") == first
    assert (first / "mark").exists()
    for content in (b"one", b"two"):  # told from one another by their content alone
        make_tar(archive, [("set/new.png", {"content": content})])
        os.utime(archive, ns=(1, 1))
        again = unpack(archive, tmp_path / "cache")
        assert again != first
        assert files_in(again) == {**FILES, "set/new.png": content}
    other = (tmp_path / "other").with_suffix(".tar")
    other.write_bytes(archive.read_bytes())
    os.utime(other, ns=(1, 1))
    assert unpack(other, tmp_path / "cache") != again


LINK, HARD = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../evil", {})], "leads outside"),
        ([("set/../../evil", {})], "leads outside"),
        ([("/tmp/evil", {})], "leads outside"),
        ([("set/out", {**LINK, "linkname": "/etc/passwd"})], "is a link to '/etc/passwd'"),
        ([("set/out", {**LINK, "linkname": "../../up"})], r"is a link to '\.\./\.\./up'"),
        ([("out", {**LINK, "linkname": ".."})], "is a link to"),
        ([("out", {**HARD, "linkname": "../up"})], "is a link to"),
        ([("out", {**HARD, "linkname": "/etc/passwd"})], "is a link to"),
        # each link stays inside by its letters, but the second climbs from where the first leads
        (
            [("deep/er/way", {**LINK, "linkname": "../.."}), ("out", {**LINK, "linkname": "deep/er/way/../x"})],
            "is a link to",
        ),
        ([("way", {**LINK, "linkname": "set"}), ("way/evil", {"content": b"x"})], "below or in place of a link"),
        ([("way", {**LINK, "linkname": "set"}), ("./way", {"content": b"x"})], "below or in place of a link"),
        ([("", {"content": b"x"})], "'' is no name for a file"),
        ([(".", {"content": b"x"})], r"'\.' is no name for a file"),
        ([("./.", {**LINK, "linkname": "set"})], "is a link to"),
        ([("set/readme.txt/deeper", {"content": b"x"})], "lies below a file"),
        ([("set/train", {"content": b"x"})], "in place of another member"),
        ([("out", {**HARD, "linkname": "set/gone"})], "is a link to a member that is not there"),
        ([("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})], "is a device"),
        ([("disk", {"type": tarfile.BLKTYPE, "devmajor": 8})], "is a device"),
        ([("pipe", {"type": tarfile.FIFOTYPE})], "is a device"),
    ],
)
def test_hostile_members_are_refused(
    tmp_path: Path, members: list[tuple[str, dict[str, object]]], message: str
) -> None:
    refused(make_tar(tmp_path / "a.tar", members), tmp_path / "cache", f"refused to unpack, .*{message}")


def test_the_folder_itself_may_be_a_member(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", [(".", {"type": tarfile.DIRTYPE, "mode": 0}), ("./last", {"content": b"x"})])
    folder = unpack(archive, tmp_path / "cache")
    assert files_in(folder) == {**FILES, "last": b"x"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    unpacked = unpack(zip_with(tmp_path / "a.zip", "./", stat.S_IFDIR | 0o755, b""), tmp_path / "cache")
    assert files_in(unpacked) == FILES


def test_links_that_stay_inside_are_kept_and_set_uid_bits_are_not(tmp_path: Path) -> None:
    links: list[tuple[str, dict[str, object]]] = [
        ("set/soft", {**LINK, "linkname": "train/a/0.png"}),
        ("set/train/up", {**LINK, "linkname": "../train/a/0.png"}),
        ("set/hard", {**HARD, "linkname": "set/train/a/0.png"}),
    ]
    folder = unpack(make_tar(tmp_path / "a.tar", [*links, ("run", {"mode": 0o6777})]), tmp_path / "cache")
    assert {(folder / name).read_bytes() for name, _ in links} == {b"first"}
    assert stat.S_IMODE((folder / "run").stat().st_mode) & 0o7022 == 0


def test_the_limit_can_be_set(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar")
    folders = {folder for name in FILES for folder in PurePosixPath(name).parents} - {PurePosixPath()}
    total = sum(max(4096, len(content)) for content in FILES.values()) + 4096 * len(folders)
    with pytest.raises(ValueError, match=f"larger than {total - 1} bytes"):
        unpack(archive, tmp_path / "cache", limit=total - 1)
    assert files_in(unpack(archive, tmp_path / "cache", limit=total)) == FILES


def zip_with(path: Path, name: str, mode: int, content: bytes = b"/etc/passwd") -> Path:
    make_zip(path)
    with zipfile.ZipFile(path, "a") as packed:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        packed.writestr(info, content)
    return path


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("../evil", stat.S_IFREG, "leads outside"),
        ("/evil", stat.S_IFREG, "leads outside"),
        ("link", stat.S_IFLNK, "is a link or a device"),
        (".", stat.S_IFREG, "is no name for a file"),
        ("", stat.S_IFREG, "is no name for a file"),
    ],
)
def test_hostile_zips_are_refused(tmp_path: Path, name: str, kind: int, message: str) -> None:
    refused(zip_with(tmp_path / "a.zip", name, kind | 0o644), tmp_path / "cache", message)


def test_a_zip_with_too_much_in_it_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("zeros", bytes(1_000_000))
    refused(tmp_path / "a.zip", tmp_path / "cache", "larger than 999999 bytes", limit=999_999)


def cut(share: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(len(content) * share)]


def scribble(content: bytes) -> bytes:
    """The second member's header overwritten, which tarfile by itself takes for the end."""
    at = 1024
    return content[:at] + b"\xff" * 100 + content[at + 100 :]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("a.tar", cut(0.0)),
        ("a.tar", cut(0.1)),
        ("a.tar", lambda content: content[:1024]),  # between two members
        ("a.tar", lambda content: content[:1300]),  # in a header
        ("a.tar", lambda content: content[:2000]),  # in a file
        ("a.tar", scribble),
        ("a.tar", lambda content: b"no tar at all" * 100),
        ("a.tar.gz", cut(0.7)),
        ("a.tar.gz", lambda content: b"junk" + content),
        ("a.tar.xz", cut(0.7)),
        ("a.tar.xz", lambda content: content[:-20] + b"\0" * 20),
        ("a.zip", cut(0.7)),
        ("a.zip", lambda content: content.replace(b"first", b"frist")),
    ],
)
def test_damaged_archive_gives_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    archive = (make_zip if name.endswith("zip") else make_tar)(tmp_path / name)
    if name == "a.zip":  # stored, so that the content can be found
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("a.txt", b"first")
    archive.write_bytes(damage(archive.read_bytes()))
    refused(archive, tmp_path / "cache", "the archive is truncated or damaged")


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a.rar: expected an archive \(.tar, .tar.gz, .tgz, .tar.xz, .zip\)"):
        unpack(tmp_path / "a.rar", tmp_path)


def test_second_of_two_processes_uses_the_first_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make_tar(tmp_path / "a.tar")
    winner = unpack(archive, tmp_path / "cache")
    (winner / "winner").touch()
    # as if the folder had not been there when we looked
    answers = iter([False])
    really = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(answers, None) is None and really(path))
    assert unpack(archive, tmp_path / "cache") == winner
    assert list(winner.parent.iterdir()) == [winner]
    assert (winner / "winner").exists()
