import os
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing import Pipe, active_children, get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.data.pictures import pixels, save, save_transparent
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision import transforms
from torchvision.transforms.v2 import functional as tvf

from ldreg.data import (
    Batch,
    ImageFiles,
    Loader,
    ResidentImages,
    batches_in_order,
    derived_seed,
    epoch_order,
)
from ldreg.data.file_batches import report_lost_workers, resize_and_crop

# A machine with one core hears from torch that two workers are many.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def crop(image: Tensor, generator: torch.Generator) -> Tensor:
    """Two random 4×4 windows, (2, 3, 4, 4)."""
    corners = torch.randint(0, 5, (2, 2), generator=generator).tolist()
    return torch.stack([image[:, y : y + 4, x : x + 4] for y, x in corners])


def whole(image: Tensor, generator: torch.Generator) -> Tensor:
    return image[None]


def array(count: int = 20) -> ResidentImages:
    images = torch.stack([torch.from_numpy(pixels(seed)).permute(2, 0, 1) for seed in range(count)])
    return ResidentImages(images, torch.arange(count) % 3, ["a", "b", "c"], "tiny")


def image_files(
    folder: Path, count: int = 20, *, bad: tuple[int, ...] = (), max_unreadable: float = 0.01
) -> ImageFiles:
    """The images of `array` as PNGs, those in `bad` cut short."""
    paths = [save(folder / f"{seed:03d}.png", seed) for seed in range(count)]
    for index in bad:
        paths[index].write_bytes(paths[index].read_bytes()[:60])
    return ImageFiles(paths, torch.arange(count) % 3, ["a", "b", "c"], "tiny", size=8, max_unreadable=max_unreadable)


@pytest.fixture(params=["resident", "files"])
def loader(request: pytest.FixtureRequest, tmp_path: Path) -> Loader:
    return make(request.param, tmp_path)


def make(kind: str, folder: Path, *, workers: int = 0) -> Loader:
    if kind == "resident":
        return Loader(array(), batch_size=3, seed=5)
    return Loader(image_files(folder), batch_size=3, seed=5, crop=crop, workers=workers)


def same(left: Batch, right: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_resident_batches_are_the_images_of_the_order() -> None:
    images = array()
    loader = Loader(images, batch_size=4, seed=7, rank=1, world=2)
    loader.set_epoch(3)
    order = epoch_order(20, seed=7, epoch=3, rank=1, world=2, batch_size=4)
    batches = list(loader)
    assert len(batches) == len(loader) == 2
    for batch, indices in zip(batches, order, strict=True):
        assert torch.equal(batch.indices, indices)
        assert torch.equal(batch.images, images.images[indices])
        assert torch.equal(batch.labels, images.labels[indices])
        assert batch.images.dtype == torch.uint8


@pytest.mark.parametrize("workers", [0, 2])
def test_files_give_the_batches_of_the_array(tmp_path: Path, workers: int) -> None:
    resident = Loader(array(), batch_size=4, seed=7)
    from_files = Loader(image_files(tmp_path), batch_size=4, seed=7, crop=whole, workers=workers)
    for epoch in range(2):
        resident.set_epoch(epoch)
        from_files.set_epoch(epoch)
        for left, right in zip(resident, from_files, strict=True):
            assert right.images.shape == (4, 1, 3, 8, 8)
            assert same(left, right._replace(images=right.images[:, 0]))


def test_crops_depend_on_seed_epoch_and_image_alone(tmp_path: Path) -> None:
    files = image_files(tmp_path)

    def crops(*, seed: int = 5, epoch: int = 0, batch_size: int = 5, workers: int = 0) -> dict[int, Tensor]:
        loader = Loader(files, batch_size=batch_size, seed=seed, crop=crop, workers=workers)
        loader.set_epoch(epoch)
        return {
            index: view for batch in loader for index, view in zip(batch.indices.tolist(), batch.images, strict=True)
        }

    first = crops()
    assert len(first) == 20
    for other in (crops(batch_size=10), crops(workers=2)):
        assert all(torch.equal(first[index], other[index]) for index in first)
    for other in (crops(seed=6), crops(epoch=1)):
        assert sum(torch.equal(first[index], other[index]) for index in first) < 5


def test_loading_leaves_the_global_generator_alone(loader: Loader) -> None:
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(before, torch.get_rng_state())


def run(loader: Loader, epochs: range) -> Iterator[Batch]:
    for epoch in epochs:
        loader.set_epoch(epoch)
        yield from loader


@pytest.mark.parametrize("seen", [0, 4, 6, 8])
@pytest.mark.parametrize("kind", ["resident", "files"])
def test_a_resumed_run_continues_with_the_batches_not_yet_seen(kind: str, seen: int, tmp_path: Path) -> None:
    uninterrupted = list(run(make(kind, tmp_path), range(2)))
    assert len(uninterrupted) == 12
    before = make(kind, tmp_path)
    first = list(islice(run(before, range(2)), seen))
    state = before.state_dict()
    after = make(kind, tmp_path)
    after.load_state_dict(state)
    resumed = first + list(run(after, range(state["epoch"], 2)))
    assert len(resumed) == 12
    assert all(same(left, right) for left, right in zip(resumed, uninterrupted, strict=True))


def test_resuming_with_workers_that_had_fetched_ahead(tmp_path: Path) -> None:
    loader = make("files", tmp_path, workers=2)
    uninterrupted = list(loader)
    iterator = iter(loader)
    first = [next(iterator), next(iterator)]
    assert loader.state_dict() == {"epoch": 0, "batches": 2}
    loader.load_state_dict(loader.state_dict())
    resumed = first + list(loader)
    assert all(same(left, right) for left, right in zip(resumed, uninterrupted, strict=True))


def test_a_closed_loader_has_no_workers_and_can_be_iterated_again(tmp_path: Path) -> None:
    before = set(active_children())
    loader = make("files", tmp_path, workers=2)
    batches = list(loader)
    iterator = iter(loader)
    next(iterator)  # and the rest is fetched ahead
    assert len(set(active_children()) - before) == 2
    start = time.monotonic()
    loader.close()
    assert set(active_children()) == before
    assert time.monotonic() - start < 4  # torch gives workers that do not hear of their end five seconds
    assert all(same(left, right) for left, right in zip(loader, batches, strict=True))
    loader.close()


def broken(image: Tensor, generator: torch.Generator) -> Tensor:
    raise RuntimeError("broken")


def test_no_worker_outlives_a_kept_error(tmp_path: Path) -> None:
    before = set(active_children())
    loader = Loader(image_files(tmp_path), batch_size=3, seed=5, crop=broken, workers=2)
    with pytest.raises(RuntimeError, match="broken") as kept:
        list(loader)
    loader.close()
    assert set(active_children()) == before, kept  # whose traceback refers to what has the workers
    with pytest.raises(ValueError, match="max_unreadable") as kept_too:
        list(batches_in_order(image_files(tmp_path, bad=(4, 5)), batch_size=4, size=8, workers=2))
    assert set(active_children()) == before, kept_too


def test_ctrl_c_while_workers_end_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = _MultiProcessingDataLoaderIter._shutdown_workers

    def interrupted(self: Any) -> None:
        end(self)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_shutdown_workers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(batches_in_order(image_files(tmp_path), batch_size=4, size=8, workers=2))


def test_ctrl_c_while_workers_start_is_raised_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(active_children())
    loader = make("files", tmp_path, workers=2)
    begin = _MultiProcessingDataLoaderIter._reset

    def interrupted(self: Any, *given: Any, **named: Any) -> None:
        signal.raise_signal(signal.SIGINT)  # workers run, and the iterator lacks what it ends them with
        begin(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(_MultiProcessingDataLoaderIter, "_reset", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
    loader.close()
    assert set(active_children()) == before
    assert len(list(loader)) == len(loader)
    loader.close()


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_workers_ignore_signals_of_others(tmp_path: Path, name: str) -> None:
    before = set(active_children())
    loader = make("files", tmp_path, workers=2)
    batches = list(loader)
    workers = set(active_children()) - before
    subprocess.run(["kill", f"-{name}", *(str(worker.pid) for worker in workers)], check=True)  # as a system does
    assert all(same(left, right) for left, right in zip(loader, batches, strict=True))
    assert set(active_children()) - before == workers
    loader.close()


def test_worker_ends_when_its_parent_terminates_it(tmp_path: Path) -> None:
    before = set(active_children())
    loader = make("files", tmp_path, workers=1)
    next(iter(loader))
    (worker,) = set(active_children()) - before
    worker.terminate()  # as torch does where one does not hear, and Python at its end
    worker.join(10)
    assert worker.exitcode == 0
    loader.close()


def test_workers_of_a_killed_process_are_soon_gone(tmp_path: Path) -> None:
    here, there = Pipe()

    def begin() -> None:
        loader = make("files", tmp_path, workers=2)
        next(iter(loader))
        there.send([worker.pid for worker in active_children()])
        signal.pause()

    process = get_context("fork").Process(target=begin)
    process.start()
    workers = here.recv()
    process.kill()
    process.join()
    until = time.monotonic() + 4  # torch looks every five seconds
    while any(alive(worker) for worker in workers):
        assert time.monotonic() < until
        time.sleep(0.1)


def alive(process: int) -> bool:
    """Whether it runs; one that has ended may be kept for its parent to ask for."""
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def killed(image: Tensor, generator: torch.Generator) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return image


def test_killed_worker_gives_one_line(tmp_path: Path) -> None:
    loader = Loader(image_files(tmp_path), batch_size=3, seed=5, crop=killed, workers=1)
    with pytest.raises(ChildProcessError, match=r"data\.workers"), report_lost_workers():
        list(loader)
    loader.close()
    with pytest.raises(RuntimeError, match="broken"), report_lost_workers():
        broken(torch.empty(0), torch.Generator())


def test_positions(loader: Loader) -> None:
    def place(epoch: int, batches: int) -> dict[str, int]:
        return {"epoch": epoch, "batches": batches}

    assert loader.state_dict() == place(0, 0)
    loader.load_state_dict(place(0, 4))
    loader.set_epoch(0)  # the present epoch keeps its place
    assert len(list(loader)) == 2
    assert loader.state_dict() == place(0, 6)
    assert len(list(loader)) == 6  # a place holds once
    loader.load_state_dict(place(0, 4))
    loader.set_epoch(1)
    assert loader.state_dict() == place(1, 0)
    assert len(list(loader)) == 6
    loader.load_state_dict(place(2, 6))
    assert list(loader) == []
    with pytest.raises(ValueError, match=r"^batches: .* 0 to 6, .* got 7"):
        loader.load_state_dict(place(0, 7))


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_files_are_replaced_by_the_next_and_tallied(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = image_files(tmp_path, bad=(4, 5, 19), max_unreadable=0.15)
    loader = Loader(files, batch_size=5, seed=1, crop=whole, workers=workers)
    replaced = {4: 6, 5: 6, 19: 0}
    for epoch in range(2):
        loader.set_epoch(epoch)
        order = epoch_order(20, seed=1, epoch=epoch, batch_size=5)
        for batch, indices in zip(loader, order, strict=True):
            assert batch.indices.tolist() == [replaced.get(index, index) for index in indices.tolist()]
            assert torch.equal(batch.images[:, 0], array().images[batch.indices])
            assert torch.equal(batch.labels, batch.indices % 3)
    listed = sorted(line.split(": ")[0] for line in files.tally.listed)
    assert listed == [str(tmp_path / f"{i:03d}.png") for i in (4, 5, 19)]
    for _ in range(2):  # each is logged once, whoever meets it
        list(batches_in_order(files, batch_size=5, size=8))
        list(batches_in_order(files.take(torch.tensor([4, 8])), batch_size=5, size=8))
    assert sum("unreadable image" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_unreadable_files_are_an_error(tmp_path: Path, workers: int) -> None:
    for count, bound, bad in ((3, 0.1, (4, 5, 19)), (11, 0.5, tuple(range(20)))):
        files = image_files(tmp_path, bad=bad, max_unreadable=bound)
        made = Loader(files, batch_size=5 if count == 3 else 1, seed=1, crop=whole, workers=workers)
        with pytest.raises(ValueError, match=rf"^max_unreadable: .* got {count} of 20"):
            list(made)
        made.close()


def test_in_order_array_is_unchanged() -> None:
    images = array()
    batches = list(batches_in_order(images, batch_size=8, size=8))
    assert [len(batch.images) for batch in batches] == [8, 8, 4]
    assert torch.equal(torch.cat([batch.images for batch in batches]), images.images)
    assert torch.equal(torch.cat([batch.labels for batch in batches]), images.labels)
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(20))
    resized = next(batches_in_order(images, batch_size=8, size=12)).images
    assert resized.shape == (8, 3, 12, 12)
    assert resized.dtype == torch.uint8


def test_in_order_other_files_are_resized_and_cropped_as_torchvision_does(tmp_path: Path) -> None:
    sizes = [(40, 60), (70, 45), (29, 28)]
    paths = [save(tmp_path / f"{number}.png", number, *size) for number, size in enumerate(sizes)]
    files = ImageFiles(paths, torch.full((3,), -1), [], "mixed")
    (batch,) = batches_in_order(files, batch_size=3, size=28)
    standard = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(28), transforms.PILToTensor()])
    for path, image in zip(paths, batch.images, strict=True):
        with Image.open(path) as opened:
            assert (standard(opened).int() - image.int()).abs().max() <= 1
    assert batch.labels.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("workers", [0, 2])
def test_transparent_images_are_counted_as_they_are_decoded(
    tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = image_files(tmp_path, bad=(4,), max_unreadable=0.1)
    for index in (1, 2, 17):
        save_transparent(tmp_path / f"{index:03d}.png", index)
    for batch in batches_in_order(files, batch_size=8, size=8, workers=workers):
        for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
            assert bool((image[:, :4] == 255).all()) == (index in (1, 2, 17))
    assert files.tally.transparent == 3
    training = Loader(image_files(tmp_path / "others"), batch_size=5, seed=5, crop=whole, workers=workers)
    for index in range(6):
        save_transparent(tmp_path / "others" / f"{index:03d}.png", index)
    for epoch in range(2):  # the second says nothing new
        training.set_epoch(epoch)
        list(training)
    training.close()
    said = [line.split(" have ")[0] for line in caplog.messages if not line.startswith("unreadable")]
    assert said == ["3 of 19 images", "6 of 20 images"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [8, 11])
def test_in_order_squares_are_resized_whole_in_any_set(tmp_path: Path, size: int, workers: int) -> None:
    """What becomes of an image does not depend on the set that it is in."""
    files = image_files(tmp_path)
    for side in (8, None):  # None: there are others among them
        files.size = side
        batches = batches_in_order(files, batch_size=8, size=size, workers=workers)
        for left, right in zip(batches, batches_in_order(array(), batch_size=8, size=size), strict=True):
            assert same(left, right)


def test_in_order_unreadable_files_are_left_out(tmp_path: Path) -> None:
    files = image_files(tmp_path, bad=(0, 1, 7), max_unreadable=0.15)
    batches = list(batches_in_order(files, batch_size=2, size=8))
    indices = [index for index in range(20) if index not in (0, 1, 7)]
    assert torch.cat([batch.indices for batch in batches]).tolist() == indices
    assert torch.equal(torch.cat([batch.images for batch in batches]), array().images[indices])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("long", "short"), [(3000, 301), (2999, 300), (1001, 200), (901, 300), (1300, 299)])
def test_middle_of_a_long_image_is_that_of_the_whole_resized(long: int, short: int, turned: bool) -> None:
    # Waves of 80 pixels, of which a shift by one pixel changes values by at most 10; 1 more for rounding twice.
    wave = 127 + 127 * torch.sin(torch.arange(long) * (2 * torch.pi / 80 * 224 / short))
    image = wave.round().to(torch.uint8)[None, :, None].expand(3, long, short)
    image = image.transpose(1, 2).contiguous() if turned else image.contiguous()
    reference = tvf.center_crop(tvf.resize(image, [256], antialias=True), [224, 224])
    assert (resize_and_crop(image, size=224).int() - reference.int()).abs().max() <= 12


class LargestMade(TorchDispatchMode):
    """Knows the number of elements of the largest tensor made in it."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        self.elements = max(self.elements, made.numel() if isinstance(made, Tensor) else 0)
        return made


@pytest.mark.parametrize("shape", [(20_000, 1), (1, 20_001)])
def test_a_long_thin_image_takes_little_memory(shape: tuple[int, int]) -> None:
    image = torch.zeros(3, *shape, dtype=torch.uint8, device="meta")  # which would take none in any case
    with LargestMade() as largest:  # type: ignore[no-untyped-call]
        resize_and_crop(image, size=224)
    assert largest.elements < 6 * 3 * 256 * 256


def test_epoch_has_every_image_once_but_for_the_incomplete_batch() -> None:
    order = epoch_order(103, seed=1, epoch=2, batch_size=10)
    assert (order.shape, order.dtype) == ((10, 10), torch.int64)
    assert len(order.unique()) == 100
    assert 0 <= order.min() <= order.max() < 103


def test_ranks_together_see_the_batches_of_one_rank() -> None:
    whole = epoch_order(50, seed=3, epoch=1, batch_size=8)
    ranks = [epoch_order(50, seed=3, epoch=1, rank=rank, world=2, batch_size=4) for rank in range(2)]
    assert not set(ranks[0].flatten().tolist()) & set(ranks[1].flatten().tolist())
    for step in range(len(whole)):
        assert sorted(torch.cat([rank[step] for rank in ranks]).tolist()) == sorted(whole[step].tolist())


def test_order_depends_only_on_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        return tuple(epoch_order(64, seed=seed, epoch=epoch, batch_size=64)[0].tolist())

    before = order(0, 0)
    torch.rand(3)  # the global generator plays no part
    assert order(0, 0) == before
    assert len({order(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9


@pytest.mark.parametrize(("batch_size", "world"), [(11, 1), (6, 2)])
def test_images_that_do_not_fill_a_batch_are_rejected(batch_size: int, world: int) -> None:
    with pytest.raises(ValueError, match=r"^batch_size: "):
        epoch_order(10, seed=0, epoch=0, batch_size=batch_size, world=world)


def test_derived_seeds_differ_between_tuples() -> None:
    seeds = {derived_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(1, 11) != derived_seed(11, 1) != derived_seed(111)
