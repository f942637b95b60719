"""Rows on their way from the host to a device, while the device works on those that came before."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor

from ldreg.dimension.chunks import slices

_STAGE_BYTES = 32 << 20  # of each of two pinned buffers


class Mover:
    """Copies rows to a device in a thread and, on CUDA, a stream of its own, through pinned memory.

    Rows that a mapped file holds are read from the disk in that thread too. Rows on the device stay where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(1)
        self._stage = _Stage(device) if device.type == "cuda" else None

    def __enter__(self) -> "Mover":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def moved(self, rows: Tensor) -> Tensor:
        """The rows (n, D) on the device."""
        return next(there for _, there in self.each(rows, [slice(0, len(rows))]))

    def each(self, rows: Tensor, blocks: Sequence[slice]) -> Generator[tuple[slice, Tensor], None, None]:
        """Every block and its rows on the device, in one of two places that serve all blocks in turn.

        What is yielded holds until the next one is asked for. To be closed where it is not run to its end.
        """
        if rows.device == self._device:
            yield from ((block, rows[block]) for block in blocks)
            return
        shape = max(block.stop - block.start for block in blocks), rows.shape[1]
        places = [rows.new_empty(shape, device=self._device) for _ in blocks[:2]]
        targets = [places[i % 2][: block.stop - block.start] for i, block in enumerate(blocks)]
        coming = self._send(rows[blocks[0]], targets[0])
        try:
            for i, block in enumerate(blocks):
                self._arrived(coming)
                if i + 1 < len(blocks):
                    coming = self._send(rows[blocks[i + 1]], targets[i + 1])
                yield block, targets[i]
        finally:
            # Nobody may be given the memory of `places` while a copy to it is under way.
            self._arrived(coming)

    def _send(self, source: Tensor, target: Tensor) -> "Future[torch.cuda.Event | None]":
        if self._stage is None:
            return self._pool.submit(_copy, source, target)
        # What the device was told to do so far may still read from the target.
        free = torch.cuda.current_stream(self._device).record_event()
        return self._pool.submit(self._stage.copy, source, target, free)

    def _arrived(self, coming: "Future[torch.cuda.Event | None]") -> None:
        event = coming.result()
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


class _Stage:
    """Two pinned buffers: while one is copied to the device, the next rows are copied to the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._buffers: list[Tensor] = []
        self._copied = [torch.cuda.Event(), torch.cuda.Event()]

    def copy(self, source: Tensor, target: Tensor, free: torch.cuda.Event) -> torch.cuda.Event:
        """Copy rows once `free` has happened; what is returned happens when they are there."""
        width = source.shape[1] * source.element_size()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(free)
            for i, part in enumerate(slices(len(source), max(1, _STAGE_BYTES // width))):
                rows = source[part]
                if rows.is_cuda:
                    target[part].copy_(rows, non_blocking=True)
                    continue
                self._copied[i % 2].synchronize()  # an event that was never recorded has happened
                staged = self._buffer(i % 2, width * len(rows)).view(source.dtype).view(rows.shape)
                target[part].copy_(staged.copy_(rows), non_blocking=True)
                self._copied[i % 2].record(self._stream)
            there = torch.cuda.Event()
            there.record(self._stream)
            return there

    def _buffer(self, which: int, size: int) -> Tensor:
        if not self._buffers or len(self._buffers[0]) < size:
            self._stream.synchronize()
            room = max(size, _STAGE_BYTES)
            self._buffers = [torch.empty(room, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in "ab"]
        return self._buffers[which][:size]
