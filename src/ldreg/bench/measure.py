"""What a benchmark is, and the measurement of time and memory that all share."""

import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

Device = Literal["cpu", "cuda"]
T = TypeVar("T")

OWN = "ldreg"  # the contender that all others are compared with
VIEWS = 2  # of every image
SMALL = 64  # pixels up to which images have the size of their views, as CIFAR's do

_PHOTO = (350 / 224, 400 / 224)  # height and width of larger ones, in units of the views' side
_LONG = 10.0  # seconds after which one measurement is enough
_MOST = 100  # repeats of very short calls
_LEAST = 0.3  # seconds that all calls on a GPU take together
_BURST = 0.02  # seconds of calls on a GPU that are timed together, so that waiting for it weighs little
_MOST_CALLS = 50  # in one burst; more would fill the device's queue
_SETTLING = 3  # calls after the first until CUDA graphs are recorded and replayed
_SLOW = 1.0  # seconds of a call that settles no further


class Points(NamedTuple):
    """Points and dimensions of a set.

    >>> str(Points(10_000, 2048)), str(Points(300, 16))
    ('10k×2048', '300×16')
    """

    points: int
    dimensions: int

    def __str__(self) -> str:
        thousands, rest = divmod(self.points, 1000)
        return f"{self.points if rest or not thousands else f'{thousands}k'}×{self.dimensions}"

    @property
    def work(self) -> float:
        """Multiplications in all pairs of points."""
        return float(self.points**2 * self.dimensions)


class Pictures(NamedTuple):
    """A batch of pictures in memory or in JPEG files, and the side of their views.

    >>> str(Pictures(512, 32)), Pictures(128, 224).shape
    ('512 × 32 px', (350, 400))
    """

    images: int
    pixels: int
    files: bool = False

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px{' from files' if self.files else ''}"

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        height, width = (1.0, 1.0) if self.pixels <= SMALL else _PHOTO
        return round(self.pixels * height), round(self.pixels * width)

    @property
    def work(self) -> float:
        """Pixels of a view of each picture."""
        return float(self.images * self.pixels**2)


class Batches(NamedTuple):
    """Images of a training step, their side, and the encoder.

    >>> str(Batches(512, 32, "resnet18"))
    '512 × 32 px, resnet18'
    """

    images: int
    pixels: int
    encoder: str

    def __str__(self) -> str:
        return f"{self.images} × {self.pixels} px, {self.encoder}"

    @property
    def work(self) -> float:
        """Pixels of the images."""
        return float(self.images * self.pixels**2)


Size = Points | Pictures | Batches  # each a list in JSON


def candidates(size: Size) -> int | None:
    """The number of points or views that neighbors are searched among; None: no neighbors are searched."""
    return size.points if isinstance(size, Points) else VIEWS * size.images if isinstance(size, Batches) else None


def input_bytes(size: Size) -> int:
    """Of points in float32, or of images in uint8."""
    if isinstance(size, Points):
        return 4 * size.points * size.dimensions
    return 3 * size.images * math.prod(size.shape if isinstance(size, Pictures) else (size.pixels, size.pixels))


def _batches(found: re.Match[str]) -> Batches:
    size = Batches(int(found[1]), int(found[2]), found[3] or "resnet18")
    if find_spec("timm") is not None:  # else nobody takes part, and the table says so
        from ldreg.encoders import EncoderConfig

        try:
            EncoderConfig(size.encoder)
        except ValueError as error:
            raise ValueError(f"sizes: encoder {error}") from None
    return size


# How each is written, and made from what the pattern finds.
_FORMS: dict[type[Size], tuple[str, str, Callable[[re.Match[str]], Size]]] = {
    Points: (
        "POINTSxDIMENSIONS such as 10kx128",
        r"(\d+)(k?)[x×](\d+)",
        lambda found: Points(int(found[1]) * (1000 if found[2] else 1), int(found[3])),
    ),
    Pictures: (
        "[files:]IMAGESxPIXELS such as 512x32",
        r"(files:)?(\d+)[x×](\d+)",
        lambda found: Pictures(int(found[2]), int(found[3]), found[1] is not None),
    ),
    Batches: (
        "IMAGESxPIXELS[:ENCODER] such as 512x32:resnet18",
        r"(\d+)[x×](\d+)(?::(\w+))?",
        _batches,
    ),
}


def parse_sizes(text: str, kind: type[Size]) -> tuple[Size, ...]:
    """Sizes of a kind, separated by commas.

    Raises:
        ValueError: one has another form, a number is 0, or an encoder is unknown.

    >>> parse_sizes("2000x512, 10k×128", Points)
    (Points(points=2000, dimensions=512), Points(points=10000, dimensions=128))
    """
    form, pattern, make = _FORMS[kind]
    sizes = []
    for part in map(str.strip, text.split(",")):
        found = re.fullmatch(pattern, part, flags=re.IGNORECASE | re.ASCII)
        if found is None or any(group.isdecimal() and int(group) == 0 for group in found.groups("")):
            raise ValueError(f"sizes: expected full, quick or {form}, with numbers above 0, got {part!r}")
        sizes.append(make(found))
    return tuple(sizes)


@dataclass(frozen=True)
class Setting:
    """One measurement to make; `size` is of the benchmark's type, `threads` what a contender may use of the CPU."""

    size: Any
    k: int = 64
    seed: int = 0
    repeats: int = 3
    device: Device = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class Measurement:
    """The time and memory of a contender; None where the system does not report it or it does not apply."""

    seconds: tuple[float, ...]  # of every repeat
    extra_mb: float | None  # peak memory on the device in MB above that before the call
    host: float | None = None  # seconds until a call returns that does not wait for the GPU
    without: float | None = None  # seconds of the same training step without LDReg, measured in turns with it
    parts: dict[str, float] = field(default_factory=dict)  # seconds of the parts of a training step

    @property
    def median(self) -> float:
        """The median time of the repeats."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Contender:
    """One way to do the work."""

    measure: Callable[[Setting], tuple[Measurement, float | None]]  # in this process; with the result's error, if known
    package: str | None = None  # the module that it needs
    install: str = "ldreg[bench]"  # what pip installs for it
    devices: tuple[Device, ...] = ("cpu", "cuda")
    bytes_needed: Callable[[Any, Device], int] | None = None  # besides the input, if that may not fit
    counts: bool = True  # whether goals and "best other" compare with it; the others are for reference


Quantity = Literal[
    "speed", "extra memory", "memory share", "time", "host time", "deviation", "img/s", "views/s", "LDReg", "views"
]


@dataclass(frozen=True)
class Goal:
    """What the contender `of` has to reach at one size on one device, with k = 64.

    "speed" is the rival's time divided by ours (at least `limit`), "memory share" our extra memory divided by the
    rival's (at most `limit`); the other quantities are columns of the tables. Without a rival it is the fastest one.
    """

    size: Any
    quantity: Quantity
    limit: float
    rival: str | None = None
    device: Device = "cpu"
    of: str = OWN


@dataclass(frozen=True)
class Benchmark:
    """Contenders that do the same work."""

    title: str
    contenders: dict[str, Contender]  # ours first
    size: type[Size]
    sizes: Mapping[Device, tuple[Any, ...]]
    quick_sizes: tuple[Any, ...]
    columns: tuple[str, ...]  # quantities in its tables
    picture: Literal["scaling", "rates", "parts"]
    conditions: str  # what the input is
    deviation_of: str = ""  # what "deviation" means, if results are compared
    study: Mapping[Device, tuple[Any, ...]] = field(default_factory=dict)  # sizes that show how the cost grows
    goals: tuple[Goal, ...] = ()

    def full_sizes(self, device: Device) -> list[Any]:
        """All sizes of a full run, the least work first, so that times can be estimated from smaller sizes."""
        every = dict.fromkeys((*self.sizes[device], *self.study.get(device, ())))
        return sorted(every, key=lambda size: size.work)


def watch_memory(device: Device) -> Callable[[], float | None]:
    """Start to watch memory: resident in this process, or allocated by PyTorch on CUDA.

    The function returned gives the peak in MB above what is in use now; None if the system does not report it.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        allocated = torch.cuda.memory_allocated()
        return lambda: max(0.0, (torch.cuda.max_memory_allocated() - allocated) / 1e6)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory starts anew
    except OSError:
        return lambda: None
    resident = _bytes("/proc/self/status", "VmRSS")
    return lambda: max(0.0, (_bytes("/proc/self/status", "VmHWM") - resident) / 1e6)


def _bytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def available_bytes(device: Device = "cpu") -> int:
    """Free memory of the device."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        return _bytes("/proc/meminfo", "MemAvailable")
    except FileNotFoundError:  # not Linux: all memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def now(device: Device) -> float:
    """The clock after all work of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(work: Callable[[], T], *, repeats: int, device: Device = "cpu") -> tuple[Measurement, T]:
    """Measure `work` and return its last result; one repeat is enough if it takes over ten seconds.

    On CUDA, calls that compile come first, and short calls are timed in bursts by events on the device's clock.

    >>> measured, result = measure(lambda: [0] * 3, repeats=2)
    >>> len(measured.seconds), len(result)
    (2, 3)
    """
    cuda = device == "cuda"
    extra_mb = watch_memory(device)
    calls = _settled_calls(work) if cuda else 1
    seconds: list[float] = []
    host: list[float] = []
    while True:
        result: Any = None  # or this repeat would be charged for the result of the last
        if cuda:
            once, until_return, result = _on_device(work, calls)
            host.append(until_return)
        else:
            start = time.perf_counter()
            result = work()
            once = time.perf_counter() - start
        seconds.append(once)
        enough = len(seconds) >= repeats and (not cuda or sum(seconds) * calls >= _LEAST)
        if enough or seconds[0] > _LONG or len(seconds) >= max(repeats, _MOST):
            break
    return Measurement(tuple(seconds), extra_mb(), statistics.median(host) if host else None), result


def _settled_calls(work: Callable[[], Any]) -> int:
    """Call until all is compiled and recorded; return how many calls to time together."""
    first = _on_device(work, 1)[0]
    settled: list[float] = []
    while first <= _LONG and len(settled) < _SETTLING and max(settled, default=0.0) <= _SLOW:
        settled.append(_on_device(work, 1)[0])
    torch.cuda.reset_peak_memory_stats()
    return max(1, min(_MOST_CALLS, round(_BURST / min(settled, default=first))))


def _on_device(work: Callable[[], Any], calls: int) -> tuple[float, float, Any]:
    """Seconds of a call between two events, seconds of the host until it returns, and the last result."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = now("cuda")
    begin.record()
    for _ in range(calls):
        result = None  # its memory is free for the next
        result = work()
    end.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / calls, host / calls, result
