import os
from pathlib import Path
from typing import Any

import pytest

from ldreg.data import DataConfig, load_images, worker_count
from ldreg.data.config import available_cores, cache_folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cifar1O", "path": "x"}, "name: expected a known dataset, got 'cifar1O'; nearest: cifar10, cifar100"),
        ({"name": "zzz", "path": "x"}, "; known are digits, cifar10, .*, folder; images of your own are named folder"),
        ({"path": "x"}, "path: expected none for digits, .*, got 'x'; images of your own are named folder"),
        ({"decode": "cuda"}, "decode: expected auto, cpu or gpu, got 'cuda'"),
        ({"resident": "maybe"}, "resident: expected auto, yes or no, got 'maybe'"),
        ({"resident_limit": float("nan")}, "resident_limit: expected at least 0, got nan"),
        ({"workers": -1}, "workers: expected at least 0, got -1"),
        ({"max_unreadable": 1.0}, r"max_unreadable: expected a share in \[0, 1\), got 1.0"),
        ({"max_unreadable": -0.1}, r"max_unreadable: expected a share in \[0, 1\), got -0.1"),
        ({"size": 0}, "size: expected at least 1, got 0"),
        ({"limit": 0}, "limit: expected at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**options)


def test_an_option_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"resident: expected auto or yes for digits, .*, got no"):
        load_images(DataConfig(resident="no"), "train")


def test_a_split_that_is_not_one_is_named() -> None:
    split: Any = "val"
    with pytest.raises(ValueError, match="split: expected train or test, got 'val'"):
        load_images(DataConfig(), split)


def test_the_cache_is_the_configured_one_else_the_variable_else_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LDREG_CACHE", "/from/variable")
    assert cache_folder(DataConfig(cache=str(tmp_path))) == tmp_path
    assert cache_folder(DataConfig()) == Path("/from/variable")
    monkeypatch.delenv("LDREG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(DataConfig()) == tmp_path / ".cache" / "ldreg"


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_count(DataConfig(workers=0), processes=8) == 0
    monkeypatch.setattr("ldreg.data.config.available_cores", lambda: 12)
    assert worker_count(DataConfig()) == 12
    assert worker_count(DataConfig(), processes=4) == 3
    assert worker_count(DataConfig(), processes=100) == 1
    monkeypatch.setattr("ldreg.data.config.available_cores", lambda: 128)
    assert worker_count(DataConfig()) == 16


def test_cores_are_those_this_process_may_use() -> None:
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
