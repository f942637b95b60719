"""Batches decoded on the device: with a decoder that stands in for nvJPEG, they are those of the CPU."""

import io
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ldreg.data import Batch, ImageFiles, Loader, batches_in_order, file_batches
from ldreg.data.decoding import decode, log_once, read_content
from ldreg.data.file_batches import Crop, Made, prefetched
from ldreg.views import Views, ViewsConfig

# A machine with one core hears from torch that two workers are many.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

COUNT = 24
OTHERS: dict[int, tuple[str, dict[str, Any]]] = {
    3: ("PNG", {}),
    8: ("JPEG", {"progressive": True}),
    9: ("JPEG", {"mode": "CMYK"}),
    14: ("JPEG", {"mode": "L"}),
    20: ("PNG", {"mode": "P"}),
}


def file_of(seed: int, kind: str = "JPEG", *, mode: str = "RGB", **options: Any) -> bytes:
    """An image of 20 to 39 pixels a side as a file."""
    generator = np.random.default_rng(seed)
    height, width = generator.integers(20, 40, 2).tolist()
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def without_tables(content: bytes) -> bytes:
    """A JPEG that looks whole and that nobody can decode, as its quantization tables are missing."""
    place = 2
    while content[place + 1] != 0xDA:
        length = 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        if content[place + 1] == 0xDB:
            content = content[:place] + content[place + length :]
        else:
            place += length
    return content


def image_files(folder: Path, *, bad: tuple[int, ...] = (), max_unreadable: float = 0.01) -> ImageFiles:
    """Mostly JPEGs; those in `bad` are truncated, without tables, or empty, by turns."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:02}.jpg" for number in range(COUNT)]
    for number, path in enumerate(paths):
        kind, options = OTHERS.get(number, ("JPEG", {}))
        path.write_bytes(file_of(number, kind, **options))
    for turn, number in enumerate(bad):
        content = file_of(number)
        paths[number].write_bytes((content[: len(content) // 2], without_tables(content), b"")[turn % 3])
    return ImageFiles(paths, torch.arange(COUNT) % 3, ["a", "b", "c"], "mixed", max_unreadable=max_unreadable)


class StandIn:
    """Pillow in nvJPEG's place: all or nothing, on some files nothing; knows how many it was given at once."""

    def __init__(self, *, fails_on: frozenset[bytes] = frozenset(), error: Exception | None = None) -> None:
        self.fails_on, self.error = fails_on, error
        self.given: list[int] = []

    def __call__(self, contents: list[Tensor]) -> list[Tensor]:
        assert all(content.ndim == 1 and content.dtype == torch.uint8 for content in contents)
        self.given.append(len(contents))
        if self.error is not None:
            raise self.error
        files = [content.numpy().tobytes() for content in contents]
        if not self.fails_on.isdisjoint(files):
            raise RuntimeError("Error while decoding JPEG images")
        try:
            return [decode(file).pixels for file in files]
        except ValueError as error:
            raise RuntimeError("Error while decoding JPEG images") from error


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    decoder = StandIn()
    install(monkeypatch, decoder)
    return decoder


def install(monkeypatch: pytest.MonkeyPatch, decoder: StandIn) -> None:
    """Have files be decoded by it, but for those that ask for the CPU."""
    choose = {"auto": decoder, "gpu": decoder, "cpu": None}
    monkeypatch.setattr(file_batches, "device_decoder", lambda decoding, device: choose[decoding])


def on_cpu(files: ImageFiles) -> ImageFiles:
    """The same files, decoded by workers; with a tally of their own."""
    copy = files.take(torch.arange(len(files)))
    copy.decoding = "cpu"
    copy.tally = type(files.tally)(len(files), max_share=files.tally.max_share)
    return copy


def window(image: Tensor, generator: torch.Generator) -> Tensor:
    """Two random windows of 9 x 9 pixels."""
    corners = torch.randint(0, 12, (2, 2), generator=generator).tolist()
    return torch.stack([image[:, y : y + 9, x : x + 9] for y, x in corners])


def loader(files: ImageFiles, *, crop: Crop = window, workers: int = 0, seed: int = 5) -> Loader:
    return Loader(files, batch_size=6, seed=seed, crop=crop, workers=workers)


def run(made: Loader, epochs: range) -> Iterator[Batch]:
    for epoch in epochs:
        made.set_epoch(epoch)
        yield from made


def assert_same(left: list[Batch], right: list[Batch], *, tolerance: int = 0) -> None:
    assert len(left) == len(right)
    for ours, theirs in zip(left, right, strict=True):
        assert torch.equal(ours.indices, theirs.indices)
        assert torch.equal(ours.labels, theirs.labels)
        assert ours.images.shape == theirs.images.shape
        assert (ours.images.int() - theirs.images.int()).abs().max() <= tolerance


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ldreg-prefetch")]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_cpu(tmp_path: Path, workers: int, stand_in: StandIn) -> None:
    files = image_files(tmp_path)
    ours = list(run(loader(files, workers=workers), range(2)))
    assert len(ours) == 8
    # The decoder had all plain JPEGs of a batch at once, and nothing else.
    assert len(stand_in.given) == 8
    assert sum(stand_in.given) == 2 * (COUNT - len(OTHERS))
    assert_same(ours, list(run(loader(on_cpu(files)), range(2))))
    assert len(stand_in.given) == 8
    assert threads() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_crops_cut_at_once_are_those_of_the_cpu(tmp_path: Path, workers: int, stand_in: StandIn) -> None:
    files = image_files(tmp_path)
    views = Views(ViewsConfig("simclr"), size=16, channels=3)
    ours = list(run(loader(files, crop=views, workers=workers), range(2)))
    for theirs in (views, views.crop):
        assert_same(ours, list(run(loader(on_cpu(files), crop=theirs), range(2))), tolerance=1)


def test_cpu_decodes_what_the_device_fails_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ldreg")
    log_once.cache_clear()
    files = image_files(tmp_path)
    fails_on = frozenset(read_content(files.path(number)) for number in (0, 1, 17))
    install(monkeypatch, StandIn(fails_on=fails_on))
    assert_same(list(loader(files)), list(loader(on_cpu(files))))
    views = Views(ViewsConfig("simclr"), size=16, channels=3)
    ours, theirs = (list(loader(each, crop=views)) for each in (files, on_cpu(files)))
    assert_same(ours, theirs, tolerance=1)
    assert files.tally.listed == []
    said = "some images are decoded on the CPU, as nvJPEG fails on them"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_files_are_replaced_and_listed_as_on_the_cpu(
    tmp_path: Path, workers: int, stand_in: StandIn
) -> None:
    files = image_files(tmp_path, bad=(0, 4, 5, 6, 7, COUNT - 1), max_unreadable=0.25)
    reference = on_cpu(files)
    assert_same(list(run(loader(files, workers=workers), range(2))), list(run(loader(reference), range(2))))
    assert sorted(files.tally.listed) == sorted(reference.tally.listed)
    assert len(files.tally.listed) == 6
    # Truncated and empty files never came to the decoder; of those without tables it said that it cannot.
    assert max(stand_in.given) <= 6


def test_errors_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn())
    with pytest.raises(ValueError, match=r"^max_unreadable: .* got 3 of 24"):
        list(loader(image_files(tmp_path, bad=(0, 4, 5, 6), max_unreadable=0.1)))
    assert threads() == []
    install(monkeypatch, StandIn(error=TypeError("called wrongly")))
    with pytest.raises(TypeError, match="called wrongly"):
        list(loader(image_files(tmp_path)))
    assert threads() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_leaving_the_loop_ends_the_thread(tmp_path: Path, workers: int, stand_in: StandIn) -> None:
    files = image_files(tmp_path)
    made = loader(files, workers=workers)
    for _ in made:
        break
    assert threads() == []
    left = iter(made)
    next(left)  # and is kept
    assert_same(list(made), list(loader(on_cpu(files))))
    assert threads() == []
    assert list(left) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_in_order_batches_are_those_of_the_cpu(tmp_path: Path, workers: int, stand_in: StandIn) -> None:
    files = image_files(tmp_path, bad=(2, 10, 11), max_unreadable=0.2)
    Path(files.path(21)).write_bytes(file_of(21, "PNG", mode="P", transparency=bytes(256)))
    reference = on_cpu(files)
    ours, theirs = (list(batches_in_order(each, batch_size=7, size=16, workers=workers)) for each in (files, reference))
    assert_same(ours, theirs)
    assert stand_in.given
    assert sorted(files.tally.listed) == sorted(reference.tally.listed)
    assert len(files.tally.listed) == 3
    assert files.tally.transparent == reference.tally.transparent == 1


def test_missing_gpu_is_an_error_before_reading(tmp_path: Path) -> None:
    files = image_files(tmp_path)
    files.decoding = "gpu"
    for make in (lambda: loader(files), lambda: batches_in_order(files, batch_size=4, size=16)):
        with pytest.raises(ValueError, match=r"^decode: .* got gpu"):
            make()


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_on_a_gpu_batches_are_nearly_those_of_the_cpu(tmp_path: Path, workers: int) -> None:
    files = image_files(tmp_path, bad=(0, 4, 5), max_unreadable=0.2)
    files.decoding = "gpu"
    views = Views(ViewsConfig("simclr"), size=16, channels=3)
    crops: list[Crop] = [views, views.crop]
    for crop in crops:
        made = Loader(files, batch_size=6, seed=5, crop=crop, workers=workers, device="cuda")
        ours = list(run(made, range(2)))
        theirs = list(run(loader(on_cpu(files), crop=crop), range(2)))
        assert len(ours) == len(theirs) == 8
        for left, right in zip(ours, theirs, strict=True):
            assert all(part.is_cuda for part in left)
            assert torch.equal(left.indices.cpu(), right.indices)
            assert (left.images.cpu().float() - right.images.float()).abs().mean() < 3
        assert len(files.tally.listed) == 3


@pytest.mark.gpu
def test_what_a_stream_still_reads_is_not_written_over(tmp_path: Path) -> None:
    files = image_files(tmp_path)
    files.decoding = "gpu"
    crop = Views(ViewsConfig("simclr"), size=64, channels=3)
    sums = []
    for work in (0, 40):
        made = Loader(files, batch_size=6, seed=5, crop=crop, device="cuda")
        busy = torch.randn(2048, 2048, device="cuda")
        for batch in run(made, range(6)):
            for _ in range(work):  # the step's work before it reads the batch
                busy = (busy @ busy).tanh()
            sums.append(batch.images.sum(dtype=torch.int64) + 0 * busy.sum().long())
    found = torch.stack(sums).cpu()
    assert torch.equal(found[: len(found) // 2], found[len(found) // 2 :])


class Numbers:
    """Counts what is made, and knows by which thread it was closed."""

    def __init__(self, count: int) -> None:
        self.count, self.made = count, 0
        self.enough = threading.Semaphore(0)
        self.closed_by: threading.Thread | None = None

    def items(self) -> Generator[Made, None, None]:
        try:
            for number in range(self.count):
                self.made += 1
                self.enough.release()
                yield None, [], number
        finally:
            self.closed_by = threading.current_thread()


@pytest.mark.parametrize("ahead", [1, 3])
def test_thread_goes_ahead_by_the_given_number(ahead: int) -> None:
    numbers = Numbers(20)
    items = prefetched(numbers.items(), device=torch.device("cpu"), ahead=ahead)
    assert threads() == []
    assert next(items) == (None, [], 0)
    # One is used, `ahead` lie ready, and one waits for room.
    for _ in range(ahead + 2):
        assert numbers.enough.acquire(timeout=10)
    assert not numbers.enough.acquire(timeout=0.2)
    assert numbers.made == ahead + 2
    items.close()
    assert threads() == []
    assert numbers.closed_by is threading.main_thread()
    assert [number for _, _, number in prefetched(Numbers(50).items(), device=torch.device("cpu"))] == list(range(50))
