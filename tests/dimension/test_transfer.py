"""Blocks of rows on their way to a device; here "cpu:0", which tensors on "cpu" are not said to lie on."""

import time
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.dimension import transfer
from ldreg.dimension.transfer import Mover

ELSEWHERE = torch.device("cpu:0")
BLOCKS = [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 11), slice(11, 12)]


def rows(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(48.0, dtype=dtype).view(12, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_block_arrives_as_it_is(dtype: torch.dtype) -> None:
    x = rows(dtype)
    with Mover(ELSEWHERE) as mover:
        for (block, there), expected in zip(mover.each(x, BLOCKS), BLOCKS, strict=True):
            assert block == expected
            assert there.dtype == dtype
            assert torch.equal(there, x[block])
            assert there.data_ptr() != x[block].data_ptr()


def test_two_places_serve_all_blocks() -> None:
    with Mover(ELSEWHERE) as mover:
        assert len({there.untyped_storage().data_ptr() for _, there in mover.each(rows(), BLOCKS)}) == 2


def test_the_next_block_does_not_touch_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Tensor] = []
    copy = transfer._copy

    def recorded(source: Tensor, target: Tensor) -> None:
        copy(source, target)
        sent.append(target)

    monkeypatch.setattr(transfer, "_copy", recorded)
    x = rows()
    with Mover(ELSEWHERE) as mover:
        for i, (block, there) in enumerate(mover.each(x, BLOCKS)):
            while len(sent) < min(i + 2, len(BLOCKS)):
                time.sleep(0.001)  # the next block arrives while this one is in use
            assert torch.equal(there, x[block])


def test_rows_in_any_order_of_memory_arrive() -> None:
    x = rows().T.contiguous().T
    with Mover(ELSEWHERE) as mover:
        assert torch.equal(mover.moved(x), x)
        assert torch.equal(mover.moved(x[::2]), x[::2])


def test_rows_that_are_there_are_not_copied() -> None:
    x = rows()
    with Mover(torch.device("cpu")) as mover:
        assert mover.moved(x).data_ptr() == x.data_ptr()
        assert [there.data_ptr() for _, there in mover.each(x, BLOCKS)] == [x[block].data_ptr() for block in BLOCKS]


def test_walking_away_early_is_no_harm() -> None:
    x = rows()
    with Mover(ELSEWHERE) as mover:
        with closing(mover.each(x, BLOCKS)) as blocks:
            next(blocks)
        assert torch.equal(mover.moved(x), x)


def test_what_goes_wrong_on_the_way_is_raised_where_the_rows_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(transfer, "_copy", fail)
    with Mover(ELSEWHERE) as mover, pytest.raises(OSError, match="the disk is gone"):
        mover.moved(rows())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stage", [64, 1 << 12, 32 << 20])  # under a row, some rows, and all of them
def test_blocks_arrive_on_the_gpu_while_it_works(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_STAGE_BYTES", stage)
    device = torch.device("cuda", 0)
    x = torch.randn(5000, 129, generator=torch.Generator().manual_seed(0))
    blocks = [slice(start, min(start + 700, 5000)) for start in range(0, 5000, 700)]
    busy = torch.randn(2048, 2048, device=device)
    sums = []
    with Mover(device) as mover:
        for source in (x, x.half(), x.to(device)):
            for _, there in mover.each(source, blocks):
                for _ in range(20):
                    busy = busy @ busy / 2048  # the copies of later blocks must wait for the sum below
                sums.append(there.double().sum(0))
    expected = [source[block].double().sum(0) for source in (x, x.half(), x) for block in blocks]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(expected))
