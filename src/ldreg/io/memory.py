"""How much a packed file may become in memory: what is free, and no more than so many times the file."""

from pathlib import Path

RATIO = 100
FLOOR = 1 << 30

_MEMORY = Path("/proc/meminfo")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def check_unpacked(needed: int, *, packed: int) -> None:
    """Refuse what takes `needed` bytes of memory from a file of `packed` bytes, before any of it is read.

    Few bytes can stand for any number of equal values, in a .npz as in a Parquet file. Embeddings pack to some half of
    their size; those of few ones among zeros, which may pack to less than a hundredth, can be saved as they are.

    Raises:
        ValueError: it is more than is free, or more than 1 GiB and 100 times the file.

    >>> check_unpacked(1 << 30, packed=100)
    >>> check_unpacked(1 << 50, packed=100)
    Traceback (most recent call last):
    ...
    ValueError: would unpack to 1048576.0 GiB of memory from a file of 100 bytes, ...
    """
    if needed > max(FLOOR, RATIO * packed):
        raise ValueError(
            f"would unpack to {needed / (1 << 30):.1f} GiB of memory from a file of {packed} bytes, expected at most "
            f"{RATIO} times as much; a file that is not compressed is read whatever its size"
        )
    check_fits(needed)


def check_fits(needed: int) -> None:
    """Refuse what takes more bytes than are free.

    Raises:
        ValueError: it does.
    """
    if needed > (free := free_bytes()):
        size, left = (f"{count / (1 << 30):.1f} GiB" for count in (needed, free))
        raise ValueError(f"does not fit into memory: it takes {size}, and {left} are free")


def free_bytes() -> int:
    """How much memory this process may still take: of the machine, and of the group that a scheduler put it in.

    >>> free_bytes() > 0
    True
    """
    return min([_free_of_machine(), *_free_of_groups()])


def _free_of_machine() -> int:
    if not _MEMORY.exists():  # other systems than Linux end a process that takes too much
        return 1 << 62
    entries = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(entries["MemAvailable"].split()[0]) << 10


def _free_of_groups() -> list[int]:
    """What is left to each control group (version 2) that this process is in; those without a limit are left out."""
    lines = _GROUP.read_text().splitlines() if _GROUP.exists() else []
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    inner = _GROUPS / own.strip("/")
    limits = [(group, group / "memory.max") for group in (inner, *inner.parents) if group.is_relative_to(_GROUPS)]
    told = [(group, limit.read_text().strip()) for group, limit in limits if limit.exists()]
    return [int(most) - _used(group) for group, most in told if most != "max"]


def _used(group: Path) -> int:
    """The memory that a group holds, without the cache of files, which the system takes back."""
    entries = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / "memory.current").read_text()) - int(entries["inactive_file"])
