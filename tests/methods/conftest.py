from collections.abc import Callable

import pytest
import torch
from tests.methods.small import NAMES, build, transformer
from timm.models import VisionTransformer

from ldreg.methods import Method


@pytest.fixture
def make() -> Callable[..., Method]:
    """A method by name ("moco_v3": the third version of MoCo) around a small encoder of 8×8 images."""
    torch.manual_seed(0)
    return build


@pytest.fixture
def make_transformer() -> Callable[..., VisionTransformer]:
    torch.manual_seed(0)
    return transformer


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
