"""Extraction gives the encoder's own output and leaves no trace."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ldreg.evaluate.extract import representations, undisturbed

CPU = torch.device("cpu")


def images(count: int = 10) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def encoder() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten())


def test_rows_are_the_encoders_output_in_eval_mode_and_in_order() -> None:
    model, x, y = encoder(), images(), torch.arange(10)
    model[1].running_mean = torch.tensor([1.0, 2.0, 3.0])
    found, labels = representations(model, zip(x.split(4), y.split(4), strict=True), device="cpu")
    by_hand = torch.stack([model[0](image) for image in x]) - torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    by_hand = by_hand / (1 + 1e-5) ** 0.5  # the running variance is 1
    torch.testing.assert_close(found, by_hand.flatten(1))
    assert torch.equal(labels, y)
    assert not found.requires_grad


def test_modes_buffers_and_generators_stay_as_they_were() -> None:
    model = encoder()
    model[1].eval()  # a frozen part, which must not be set to train afterwards
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    loader = DataLoader(TensorDataset(images(), torch.arange(10)), batch_size=5)
    iter(loader)
    assert not torch.equal(torch.get_rng_state(), state)  # what extraction has to guard against
    torch.set_rng_state(state)
    representations(model, loader, device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_modes_come_back_after_an_error() -> None:
    model = encoder()
    with pytest.raises(RuntimeError), undisturbed(model, CPU):
        raise RuntimeError
    assert all(part.training for part in model.modules())


def test_a_lower_precision_is_computed_in_and_float32_returned() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
    batches = [(images(), torch.zeros(10, dtype=torch.int64))]
    exact, _ = representations(model, batches, device="cpu")
    coarse, _ = representations(model, batches, device="cpu", autocast=torch.bfloat16, store="cpu")
    assert coarse.dtype == torch.float32
    assert torch.equal(coarse, coarse.bfloat16().float())
    torch.testing.assert_close(coarse, exact, rtol=0.05, atol=0.05)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="batches: expected at least one"):
        representations(encoder(), [], device="cpu")
    with pytest.raises(ValueError, match=r"encoder: expected output of shape \(10, D\), got \(10, 1, 4, 4\)"):
        representations(nn.Identity(), [(images(), torch.arange(10))], device="cpu")
