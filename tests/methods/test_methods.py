"""What holds for every method."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ldreg.methods import (
    BYOL,
    METHODS,
    BarlowTwinsConfig,
    BYOLConfig,
    Method,
    Outcome,
    SimCLR,
    SimCLRConfig,
    SimCLRTunedConfig,
    VICRegConfig,
)

Make = Callable[..., Method]


def views_of(method: Method, count: int, *, seed: int = 0) -> tuple[Tensor, ...]:
    """Noisy views of the same few smooth images."""
    images = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(7)).repeat_interleave(2, 2)
    images = images.repeat_interleave(2, 3)
    noise = torch.randn(method.view_count, count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (images + 0.3 * noise).unbind()


def test_outcome_has_the_encoders_representations_with_gradient(make: Make, name: str) -> None:
    method = make(name).eval()  # so that the encoder gives the same again
    views = views_of(method, 10)
    outcome = method(views)
    assert outcome.loss.shape == ()
    assert outcome.loss.requires_grad
    assert outcome.terms
    assert not any(term.requires_grad or term.shape for term in outcome.terms.values())
    assert outcome.representations.requires_grad
    if name == "mae":
        assert outcome.representations.shape == (10, 16)
    else:
        online = views[:1] if name == "moco" else views
        torch.testing.assert_close(outcome.representations, method.encoder(torch.cat(online)))


def test_only_byol_has_a_reference(make: Make, name: str) -> None:
    method = make(name).eval()
    views = views_of(method, 10)
    outcome = method(views)
    if name != "byol":
        assert outcome.reference is None
        assert outcome.self_index is None
        return
    assert outcome.reference is not None
    assert outcome.self_index is not None
    with torch.no_grad():
        method.get_parameter("target.encoder.0.weight").mul_(2)
    outcome = method(views)
    assert outcome.reference is not None
    assert outcome.self_index is not None
    assert torch.equal(outcome.reference[outcome.self_index], outcome.representations)
    assert method.target is not None
    momentum, _ = method.target(torch.cat(views))
    assert torch.equal(outcome.reference[20:], momentum)
    assert not torch.equal(momentum, outcome.representations)


def test_byol_predicts_the_other_view(make: Make) -> None:
    method = make("byol")
    assert isinstance(method, BYOL)
    views = views_of(method, 10)
    images = torch.cat(views)
    predictions = method.predictor(method.projector(method.encoder(images))).chunk(2)
    targets = method.target(images)[1].chunk(2)
    ways = [2 - 2 * nn.functional.cosine_similarity(predictions[i], targets[1 - i]).mean() for i in range(2)]
    torch.testing.assert_close(method(views).loss, ways[0] + ways[1])


def descend(method: Method, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        outcome: Outcome = method(views_of(method, 32, seed=step), torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        outcome.loss.backward()
        nn.utils.clip_grad_norm_(method.parameters(), 1.0)
        optimizer.step()
        method.after_step((step + 1) / steps)
        losses.append(outcome.loss.item())
    return losses


def test_loss_falls(make: Make, name: str) -> None:
    """MoCo's queue of random vectors is easier than one of keys: its loss is read once keys have filled the queue."""
    losses = descend(make(name, **({"momentum": 0.9} if name == "moco" else {})), 40)
    first, last = sum(losses[5:10]) / 5, sum(losses[-5:]) / 5
    assert last < 0.95 * first, losses


def test_every_trainable_parameter_has_a_gradient(make: Make, name: str) -> None:
    method = make(name)
    method(views_of(method, 10)).loss.backward()
    missing = {key for key, p in method.named_parameters() if p.requires_grad and p.grad is None}
    assert not missing


def test_parts_to_compile_are_called_as_modules(make: Make, name: str) -> None:
    """`module.compile()` acts on calls of the module; one that is passed by would be compiled for nothing."""
    method = make(name)
    called: list[nn.Module] = []
    for part in method.compiled_parts():
        part.register_forward_hook(lambda module, _args, _output: called.append(module))
    method(views_of(method, 10))
    assert called == method.compiled_parts()
    inside = {module for part in method.compiled_parts() for module in part.modules()}
    assert all(module in inside for module in method.modules() if isinstance(module, nn.Conv2d) and name != "mae")


def test_wrong_views_are_refused(make: Make, name: str) -> None:
    method = make(name)
    with pytest.raises(ValueError, match=f"views: expected {method.view_count} of one shape"):
        method([torch.zeros(4, 1, 8, 8)] * 3)
    if method.view_count == 2:
        with pytest.raises(ValueError, match="of one shape"):
            method((torch.zeros(4, 1, 8, 8), torch.zeros(3, 1, 8, 8)))


def test_state_survives_a_round_trip(make: Make, name: str) -> None:
    """Method and copy go on alike from a state dict, momentum branch and queue included."""
    method = make(name)
    descend(method, 3)
    other = make(name)
    other.load_state_dict(method.state_dict())
    assert descend(method, 3) == descend(other, 3)


def test_autocast_keeps_the_loss_in_float32(make: Make, name: str) -> None:
    method = make(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = method(views_of(method, 12))
    outcome.loss.backward()
    assert outcome.loss.dtype == torch.float32
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_those_of_the_papers() -> None:
    assert SimCLRConfig() == SimCLRConfig(0.1, (2048, 128))
    assert SimCLRTunedConfig() == SimCLRTunedConfig(0.15, (8192, 8192, 512))
    assert BYOLConfig() == BYOLConfig(0.99, 1.0, (4096, 256), (4096, 256))
    assert VICRegConfig() == VICRegConfig(25.0, 25.0, 1.0, (8192, 8192, 8192))
    assert BarlowTwinsConfig() == BarlowTwinsConfig(0.005, (8192, 8192, 8192))


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("simclr", "temperature", 0.0),
        ("simclr", "projector", ()),
        ("simclr_tuned", "temperature", float("nan")),
        ("simclr_tuned", "projector", (8, 0)),
        ("byol", "momentum", 1.1),
        ("byol", "momentum_end", -0.1),
        ("byol", "predictor", (8, 4)),  # does not end in the projector's last width
        ("vicreg", "covariance", -1.0),
        ("vicreg", "variance", float("inf")),
        ("barlow_twins", "redundancy", -0.1),
    ],
)
def test_options_out_of_range_are_rejected(name: str, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option}: expected"):
        METHODS[name].config(**{option: value})


def test_an_encoder_without_dimension_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"encoder: .*`dimension`.* None"):
        SimCLR(nn.Flatten(), SimCLRConfig())
