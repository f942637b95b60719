"""Archives of images, unpacked once, safely, into a cache."""

import gzip
import hashlib
import io
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip")

ENDS = 1 << 20

BLOCK = 4096  # bytes on the disk that a file or folder takes at least
MOST_PARTS, MOST_BYTES = 64, 255  # of a name: folders, and bytes of each of them
MOST_HEADER = 1 << 13  # bytes of an extended header of a tar, which mostly is one long name

# What is not the archive's fault; a damaged one makes the libraries raise nearly any other class.
OTHERS = (OSError, MemoryError)
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile)


def is_archive(path: Path) -> bool:
    """Whether the file's name ends like an archive that `unpack` reads.

    >>> is_archive(Path("images.tar.xz")), is_archive(Path("images.rar"))
    (True, False)
    """
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, cache: Path, *, limit: int | None = None) -> Path:
    """The folder in the cache with the archive's content, unpacked there unless it already is.

    An archive is known by its place, size, time of change, and its first and last MiB. It is unpacked into a folder
    beside and renamed when whole, so that processes that do it at once all end with the same folder, and a damaged
    archive leaves nothing. Refused are absolute names, names with "..", files without a name, names too long or deep,
    links that lead outside, members below or in place of another that is no folder, devices, sparse files, and content
    that takes more than `limit` bytes of the disk, at least 4 KiB for each file and folder (default: 50 times the
    archive's size plus 100 MB; already compressed images unpack to little more than the archive, uncompressed ones to
    some ten times).

    Raises:
        ValueError: where the archive is of another kind, damaged, or has something refused in it.
        OSError: where the archive cannot be read or the cache cannot be written.
    """
    if not is_archive(archive):
        raise ValueError(f"{archive}: expected an archive ({', '.join(SUFFIXES)})")
    state = archive.stat()
    target = cache / "archives" / f"{archive.name.split('.')[0]}-{_key(archive, state)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        _extract(archive, temporary, 50 * state.st_size + 100_000_000 if limit is None else limit)
        temporary.chmod(0o755)
        _publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _key(archive: Path, state: os.stat_result) -> str:
    """Hex digits that differ between archives; the ends stand for the content, which may take minutes to read."""
    digest = hashlib.blake2b(os.fsencode(archive.resolve()), digest_size=8)
    digest.update(f"\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    with archive.open("rb") as stream:
        digest.update(stream.read(ENDS))
        stream.seek(max(0, state.st_size - ENDS))
        digest.update(stream.read(ENDS))
    return digest.hexdigest()


def _publish(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        # Another process was first; its folder is as good as ours.
        if not target.is_dir():
            raise


def _extract(archive: Path, folder: Path, limit: int) -> None:
    try:
        if archive.name.lower().endswith(".zip"):
            _extract_zip(archive, folder, limit)
        else:
            _extract_tar(archive, folder, limit)
    except _RefusedError as error:
        raise ValueError(f"{archive}: refused to unpack, {error}") from error
    except Exception as error:  # unpackers raise nearly any class on damaged files
        if isinstance(error, OTHERS) and not isinstance(error, DAMAGED):
            raise
        detail = _short(" ".join(str(error).split())) or type(error).__name__
        raise ValueError(f"{archive}: the archive is truncated or damaged ({detail})") from error


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


class _RefusedError(Exception):
    """Something in an archive that is not unpacked."""


class _Members:
    """Checks one member of an archive after the other, knowing those before."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._limit = limit
        self._links: set[PurePosixPath] = set()
        self._folders = {PurePosixPath()}  # that are there already

    def check(self, name: str, *, size: int, link: str | None = None) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise _RefusedError(f"{_short(name)!r} leads outside of the folder")
        # Unprintable bytes of a name are held as surrogates.
        if len(path.parts) > MOST_PARTS or any(len(os.fsencode(part)) > MOST_BYTES for part in path.parts):
            raise _RefusedError(f"{_short(name)!r} is too long a name or too deep")
        if not self._links.isdisjoint((path, *path.parents)):
            raise _RefusedError(f"{_short(name)!r} lies below or in place of a link")
        if link is not None:
            self._check_link(path, link)
        above = set(path.parents) - self._folders
        self._folders |= above
        self.charge(max(size, BLOCK) + BLOCK * len(above) if size >= 0 else self._limit + 1)

    def charge(self, size: int) -> None:
        """Count what a member takes of the disk."""
        self._left -= size
        if self._left < 0:
            raise _RefusedError(f"its content is larger than {self._limit} bytes")

    def _check_link(self, path: PurePosixPath, link: str) -> None:
        """Leading ".." climb true folders, as no member lies below a link; later ones could climb from elsewhere."""
        target = PurePosixPath(link)
        climbs = 0
        while climbs < len(target.parts) and target.parts[climbs] == "..":
            climbs += 1
        if target.is_absolute() or climbs > len(path.parents) - 1 or ".." in target.parts[climbs:]:
            raise _RefusedError(f"{str(path)!r} is a link to {_short(link)!r}")
        self._links.add(path)


class _Bounded(io.RawIOBase):
    """A decompressed stream that refuses to grow past a limit, whatever the headers in it say."""

    def __init__(self, stream: io.BufferedIOBase, limit: int) -> None:
        self._stream = stream
        self._left = limit
        self._limit = limit

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _RefusedError(f"its content is larger than {self._limit} bytes")
        return data


def _strict_headers(members: _Members) -> type[tarfile.TarInfo]:
    """The class of headers for one archive."""

    class StrictTarInfo(tarfile.TarInfo):
        """A header that, where it is damaged or missing, is an error; tarfile takes it for the archive's end."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "StrictTarInfo":
            try:
                header = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # a block of zeros is the true end
                    raise
                raise tarfile.ReadError(str(error)) from error
            if header.type == tarfile.GNUTYPE_SPARSE:
                cls._refuse_sparse()
            if header.type in EXTENDED:
                if not 0 <= header.size <= MOST_HEADER:
                    raise _RefusedError(f"a header of it has {header.size} bytes, expected at most {MOST_HEADER}")
                # Python before 3.11.10 and 3.12.6 takes time by the square of this.
                members.charge(max(BLOCK, header.size**2 // 64))
            return header

        @staticmethod
        def _refuse_sparse(*_: object) -> None:
            raise _RefusedError("it holds a sparse file")

        # tarfile's readers of the three other kinds of sparse files; on hostile ones they do not end in time.
        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse

    return StrictTarInfo


EXTENDED = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
}

OPENERS: dict[str, Callable[[Path], io.BufferedIOBase]] = {
    ".tar": lambda path: path.open("rb"),
    ".gz": gzip.GzipFile,
    ".tgz": gzip.GzipFile,
    ".xz": lzma.LZMAFile,
}


def _extract_tar(archive: Path, folder: Path, limit: int) -> None:
    members = _Members(limit)
    with OPENERS[archive.suffix.lower()](archive) as stream:
        # Headers and padding take at most 1,536 bytes a member; a stream of many tiny files may be twice its content.
        bounded = _Bounded(stream, 2 * limit + 1_000_000)
        with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_strict_headers(members)) as tar:
            for member in tar:
                _check_tar_member(member, members)
                if not _is_root(member.name, is_folder=member.isdir()):
                    with _in_place(member.name):
                        tar.extract(member, folder, filter="data")
        # The checksum of the compressed stream stands at its end.
        while bounded.read(1 << 20):
            pass


def _check_tar_member(member: tarfile.TarInfo, members: _Members) -> None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise _RefusedError(f"{_short(member.name)!r} is a device or of an unknown kind")
    if member.islnk() and ".." in PurePosixPath(member.linkname).parts:
        raise _RefusedError(f"{_short(member.name)!r} is a link to {_short(member.linkname)!r}")
    members.check(member.name, size=member.size, link=member.linkname if member.issym() or member.islnk() else None)


def _is_root(name: str, *, is_folder: bool) -> bool:
    """Whether a member is the folder that all is unpacked into, which is there already."""
    if PurePosixPath(name).parts:
        return False
    if not is_folder:
        raise _RefusedError(f"{name!r} is no name for a file")
    return True


@contextmanager
def _in_place(name: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise _RefusedError(f"{name!r} lies below a file or in place of another member") from error
    except KeyError as error:  # tarfile's word for a hard link to nothing
        raise _RefusedError(f"{name!r} is a link to a member that is not there") from error


def _extract_zip(archive: Path, folder: Path, limit: int) -> None:
    members = _Members(limit)
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _RefusedError(f"{member.filename!r} is a link or a device")
            members.check(member.filename, size=member.file_size)
            if _is_root(member.filename, is_folder=member.filename.endswith("/")):
                continue
            try:
                with _in_place(member.filename):
                    packed.extract(member, folder)
            except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown compression
                raise _RefusedError(f"{member.filename!r}: {error}") from error
