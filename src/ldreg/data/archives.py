"""Archives of images, unpacked safely and once into a cache."""

import functools
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
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ldreg.text import one_line

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip")

KEY_BYTES = 1 << 20  # at either end of an archive, by which it is recognized

BLOCK = 4096  # bytes of disk that a file or folder takes at least
MAX_PARTS, MAX_PART_BYTES = 64, 255  # of a name
MAX_HEADER = 1 << 13  # bytes of an extended header of a tar, usually one long name

# A damaged archive makes the libraries raise nearly any class but these; gzip's error is an OSError.
NOT_DAMAGE = (OSError, MemoryError)


def is_archive(path: Path) -> bool:
    """Whether `unpack` reads files with this suffix.

    >>> is_archive(Path("images.tar.xz")), is_archive(Path("images.rar"))
    (True, False)
    """
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, cache: Path, *, limit: int | None = None) -> Path:
    """Unpack an archive into the cache unless it is there already, and return its folder.

    An archive is recognized by its path, size, modification time, and its first and last MiB. It is unpacked into a
    temporary folder that is renamed when complete: processes that unpack at once all get the same folder, and a
    damaged archive leaves nothing. Rejected are absolute names, names with "..", files without a name, names too long
    or too deep, links that lead outside, members below or in place of another that is no folder, devices, sparse
    files, and content that takes more than `limit` bytes of disk, counting at least 4 KiB for each file and folder.
    The default limit is 50 times the archive's size plus 100 MB; compressed images unpack to about the archive's size,
    uncompressed ones to some ten times.

    Raises:
        ValueError: the archive is of another kind, damaged, or has rejected content.
        OSError: the archive cannot be read or the cache cannot be written.
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
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _key(archive: Path, state: os.stat_result) -> str:
    """Hex digits that identify an archive; hashing only its ends saves minutes of reading."""
    digest = hashlib.blake2b(os.fsencode(archive.resolve()), digest_size=8)
    digest.update(f"\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    with archive.open("rb") as stream:
        digest.update(stream.read(KEY_BYTES))
        stream.seek(max(0, state.st_size - KEY_BYTES))
        digest.update(stream.read(KEY_BYTES))
    return digest.hexdigest()


def _extract(archive: Path, folder: Path, limit: int) -> None:
    extract = _extract_zip if archive.name.lower().endswith(".zip") else _extract_tar
    try:
        extract(archive, folder, limit)
    except _RejectedError as error:
        raise ValueError(f"{archive}: refused to unpack, {error}") from error
    except Exception as error:
        if isinstance(error, NOT_DAMAGE) and not isinstance(error, gzip.BadGzipFile):
            raise
        detail = one_line(str(error), 200) or type(error).__name__
        raise ValueError(f"{archive}: the archive is truncated or damaged ({detail})") from error


class _RejectedError(Exception):
    """An archive has content that is never unpacked."""


class _Budget:
    """Bytes that may still be taken; another one is an error."""

    def __init__(self, limit: int) -> None:
        self._left = self.limit = limit

    def charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _RejectedError(f"its content is larger than {self.limit} bytes")


class _Members:
    """Checks and extracts the members of an archive in turn, each against those before it."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._links: set[PurePosixPath] = set()
        self._folders = {PurePosixPath()}  # created so far

    def extract(self, name: str, write: Callable[[], object], *, size: int, folder: bool, link: str | None) -> None:
        path, shown = PurePosixPath(name), repr(one_line(name, 200))
        if path.is_absolute() or ".." in path.parts:
            raise _RejectedError(f"{shown} leads outside of the folder")
        # fsencode, as undecodable bytes of a name are kept as surrogates.
        if len(path.parts) > MAX_PARTS or any(len(os.fsencode(part)) > MAX_PART_BYTES for part in path.parts):
            raise _RejectedError(f"{shown} is too long a name or too deep")
        if not self._links.isdisjoint((path, *path.parents)):
            raise _RejectedError(f"{shown} lies below or in place of a link")
        if link is not None:
            self._check_link(path, link)
        above = set(path.parents) - self._folders
        self._folders |= above
        self._budget.charge(max(size, BLOCK) + BLOCK * len(above) if size >= 0 else self._budget.limit + 1)
        if not path.parts and not folder:
            raise _RejectedError(f"{shown} is no name for a file")
        if path.parts:  # the root folder exists already
            self._write(shown, write)

    def _check_link(self, path: PurePosixPath, link: str) -> None:
        """Reject a link out of the folder.

        Leading ".." climb real folders, as no member lies below a link; later ones could climb from elsewhere.
        """
        target = PurePosixPath(link)
        climbs = next((i for i, part in enumerate(target.parts) if part != ".."), len(target.parts))
        if target.is_absolute() or climbs > len(path.parents) - 1 or ".." in target.parts[climbs:]:
            raise _RejectedError(f"{str(path)!r} is a link to {one_line(link, 200)!r}")
        self._links.add(path)

    @staticmethod
    def _write(shown: str, write: Callable[[], object]) -> None:
        try:
            write()
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise _RejectedError(f"{shown} lies below a file or in place of another member") from error
        except KeyError as error:  # of tarfile, for a hard link to nothing
            raise _RejectedError(f"{shown} is a link to a member that is not there") from error


def _extract_zip(archive: Path, folder: Path, limit: int) -> None:
    members = _Members(_Budget(limit))
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            name, kind = member.filename, stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _RejectedError(f"{name!r} is a link or a device")
            write = functools.partial(packed.extract, member, folder)
            try:
                members.extract(name, write, size=member.file_size, folder=name.endswith("/"), link=None)
            except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unknown compression
                raise _RejectedError(f"{name!r}: {error}") from error


def _extract_tar(archive: Path, folder: Path, limit: int) -> None:
    members = _Members(budget := _Budget(limit))
    with OPENERS[archive.suffix.lower()](archive) as stream:
        # Headers and padding take at most 1,536 bytes a member: of many tiny files they may double the content.
        bounded = _Bounded(stream, _Budget(2 * limit + 1_000_000))
        with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_strict_headers(budget)) as tar:
            for member in tar:
                name, is_link = one_line(member.name, 200), member.issym() or member.islnk()
                if not (member.isreg() or member.isdir() or is_link):
                    raise _RejectedError(f"{name!r} is a device or of an unknown kind")
                if member.islnk() and ".." in PurePosixPath(member.linkname).parts:
                    raise _RejectedError(f"{name!r} is a link to {one_line(member.linkname, 200)!r}")
                write = functools.partial(tar.extract, member, folder, filter="data")
                link = member.linkname if is_link else None
                members.extract(member.name, write, size=member.size, folder=member.isdir(), link=link)
        # Read to the end, where the checksum of the compressed stream is.
        while bounded.read(1 << 20):
            pass


OPENERS: dict[str, Callable[[Path], io.BufferedIOBase]] = {
    ".tar": lambda path: path.open("rb"),
    ".gz": gzip.GzipFile,
    ".tgz": gzip.GzipFile,
    ".xz": lzma.LZMAFile,
}


class _Bounded(io.RawIOBase):
    """A decompressed stream within a budget, whatever its headers say."""

    def __init__(self, stream: io.BufferedIOBase, budget: _Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._budget.charge(len(data))
        return data


def _strict_headers(budget: _Budget) -> type[tarfile.TarInfo]:
    """A class of headers for one archive, for which damaged and sparse headers are errors."""

    class StrictTarInfo(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "StrictTarInfo":
            try:
                header = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:  # tarfile would take it for the archive's end
                if len(buf) == tarfile.BLOCKSIZE and not any(buf):  # a block of zeros is the real end
                    raise
                raise tarfile.ReadError(str(error)) from error
            if header.type == tarfile.GNUTYPE_SPARSE:
                cls._reject_sparse()
            if header.type in EXTENDED:
                if not 0 <= header.size <= MAX_HEADER:
                    raise _RejectedError(f"a header of it has {header.size} bytes, expected at most {MAX_HEADER}")
                # Python before 3.11.10 and 3.12.6 takes time quadratic in the size.
                budget.charge(max(BLOCK, header.size**2 // 64))
            return header

        @staticmethod
        def _reject_sparse(*_: object) -> None:
            raise _RejectedError("it holds a sparse file")

        # Replaces tarfile's readers of the three other kinds of sparse files, which hostile files keep busy too long.
        _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _reject_sparse

    return StrictTarInfo


EXTENDED = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
}
