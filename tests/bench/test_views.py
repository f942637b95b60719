"""Makers of views must make the same views, or their rates say nothing."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from ldreg.bench import view_makers, views
from ldreg.bench.benchmark import Pictures, Setting
from ldreg.bench.pictures import CLASS, as_pil, draw, write_files
from ldreg.bench.suite import BENCHMARKS

MAKERS = {name: {"compiled": False, "decode": "auto"} if name == "ours" else {} for name in view_makers.MAKERS}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("files", [False, True])
def test_every_maker_gives_two_normalized_views(name: str, files: bool, tmp_path: Path) -> None:
    setting = Setting(Pictures(6, 32, files=files), threads=1)
    batches: Any = view_makers.MAKERS[name](setting, tmp_path, **MAKERS[name])
    for _ in range(2):
        first, second = next(batches)
        assert first.shape == second.shape == (6, 3, 32, 32)
        assert first.dtype == torch.float32
        assert not torch.equal(first, second)
    # Values from 0 to 1, less a mean near 0.45, by a deviation near 0.225.
    assert -2.2 < first.min() < -0.3
    assert 0.3 < first.max() < 2.7
    batches.close()


def test_pictures_are_drawn_anew_by_seed_alone() -> None:
    size = Pictures(3, 32)
    assert torch.equal(draw(size, seed=1), draw(size, seed=1))
    assert not torch.equal(draw(size, seed=1), draw(size, seed=2))
    assert draw(size, seed=1).float().std() > 30


def test_files_are_those_pictures_at_the_bits_of_photographs(tmp_path: Path) -> None:
    pictures = draw(Pictures(2, 224), seed=0)
    paths = write_files(pictures, tmp_path)
    assert [path.parent.name for path in paths] == [CLASS, CLASS]
    with Image.open(io.BytesIO(paths[1].read_bytes())) as read:
        assert read.size == (400, 350)
        decoded = torch.frombuffer(bytearray(read.tobytes()), dtype=torch.uint8).view(350, 400, 3).permute(2, 0, 1)
    assert (decoded.float() - pictures[1].float()).abs().mean() < 10
    assert 3 < 8 * paths[1].stat().st_size / (350 * 400) < 6  # bits a pixel; ImageNet's have about five
    assert as_pil(pictures)[0].getpixel((7, 5)) == tuple(pictures[0, :, 5, 7].tolist())


def test_views_follow_the_recipes() -> None:
    small, large = view_makers.config_of(Pictures(1, 32)).resolve(), view_makers.config_of(Pictures(1, 224)).resolve()
    assert (small.blur[0], large.blur[0]) == (0, 0.5)
    assert small.jitter[0] == large.jitter[0] / 2


def test_a_measurement_of_views_is_of_one_batch() -> None:
    outcome = views.ours(Setting(Pictures(4, 16), repeats=2))
    assert len(outcome.measured.seconds) == 2
    assert (outcome.deviation, outcome.measured.extra_mb, outcome.measured.host) == (None, None, None)


def test_workers_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counted(setting: Setting, folder: Path) -> view_makers.Batches:
        while True:
            taken.append(1)
            yield ()

    monkeypatch.setitem(view_makers.MAKERS, "lightly", counted)
    measure = BENCHMARKS["views"].contenders["lightly"].measure
    measure(Setting(Pictures(4, 16), repeats=2, threads=3))
    assert len(taken) == 3 * (views._RESERVE + 2)
