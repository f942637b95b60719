import re

import pytest

from ldreg.views import ViewsConfig
from ldreg.views.config import POLICIES


def test_the_papers_tables() -> None:
    simclr, byol = POLICIES["simclr"], POLICIES["byol"]
    assert simclr.jitter == (0.8, 0.8, 0.8, 0.2)
    assert byol.jitter == (0.4, 0.4, 0.2, 0.1)
    assert simclr.blur == (0.5, 0.5)
    assert byol.blur == (1.0, 0.1)
    assert simclr.solarize == (0.0, 0.0)
    assert byol.solarize == (0.0, 0.2)
    for policy in (simclr, byol):
        assert (policy.flip, policy.jitter_probability, policy.grayscale) == (0.5, 0.8, 0.2)


@pytest.mark.parametrize("name", ["simclr", "byol", "mae"])
def test_no_options_resolve_to_the_policy(name: str) -> None:
    assert ViewsConfig(name).resolve() == POLICIES[name]  # type: ignore[arg-type, index]


def test_options_override_the_policy() -> None:
    policy = ViewsConfig(
        "byol", jitter=2.0, flip=0.1, min_scale=0.3, max_scale=0.9, grayscale=0.0, blur=False, interpolation="bicubic"
    ).resolve()
    assert policy.jitter == (0.8, 0.8, 0.4, 0.2)
    assert (policy.flip, policy.scale, policy.grayscale) == (0.1, (0.3, 0.9), 0.0)
    assert (policy.blur, policy.solarize, policy.interpolation) == ((0.0, 0.0), (0.0, 0.2), "bicubic")


def test_off_is_said_and_done_under_mae() -> None:
    assert ViewsConfig("mae", jitter=0.0, grayscale=0.0, blur=False).resolve() == POLICIES["mae"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "moco"}, "policy: expected one of simclr, byol, mae, got 'moco'"),
        ({"normalization": "unit"}, "normalization: expected one of imagenet, cifar, half, none, got 'unit'"),
        ({"interpolation": "nearest"}, "interpolation: expected one of None, bilinear, bicubic, got 'nearest'"),
        ({"flip": 1.5}, "flip: expected between 0 and 1, got 1.5"),
        ({"flip": float("nan")}, "flip: expected between 0 and 1, got nan"),
        ({"grayscale": -0.1}, "grayscale: expected between 0 and 1, got -0.1"),
        ({"jitter": -1.0}, "jitter: expected between 0 and 2.5, got -1.0"),
        ({"jitter": 2.6}, "jitter: expected between 0 and 2.5, got 2.6"),
        ({"policy": "byol", "jitter": 5.1}, "jitter: expected between 0 and 5, got 5.1"),
        ({"max_scale": 0.0}, "max_scale: expected above 0 and at most 1, got 0.0"),
        ({"max_scale": 1.1}, "max_scale: expected above 0 and at most 1, got 1.1"),
        ({"min_scale": 0.0}, "min_scale: expected above 0 and at most max_scale 1.0, got 0.0"),
        ({"min_scale": 0.6, "max_scale": 0.5}, "min_scale: expected above 0 and at most max_scale 0.5, got 0.6"),
        ({"policy": "mae", "max_scale": 0.1}, "max_scale: expected at least the policy's min_scale, got 0.1"),
        ({"policy": "mae", "jitter": 0.5}, "jitter: expected None or 0 as policy 'mae' has no color jitter, got 0.5"),
        ({"policy": "mae", "grayscale": 0.2}, "grayscale: expected None or 0 as policy 'mae' has no grayscale"),
        ({"policy": "mae", "blur": True}, "blur: expected None or False as policy 'mae' has no blur, got True"),
    ],
)
def test_what_cannot_be_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ViewsConfig(**options)  # type: ignore[arg-type]
