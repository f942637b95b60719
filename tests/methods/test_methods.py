"""What holds for every method."""

import copy

import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from tests.methods.small import NAMES, build
from torch import Tensor, nn

from ldreg.methods import (
    BYOL,
    METHODS,
    Method,
    Outcome,
    SimCLR,
    SimCLRConfig,
)
from ldreg.methods.base import Last, MomentumBranch, mlp

every_method = pytest.mark.parametrize("name", NAMES)


def views_of(method: Method, count: int, *, seed: int = 0) -> tuple[Tensor, ...]:
    """Noisy views of the same few smooth images."""
    images = torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(7)).repeat_interleave(2, 2)
    images = images.repeat_interleave(2, 3)
    noise = torch.randn(method.view_count, count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (images + 0.3 * noise).unbind()


@every_method
def test_outcome_has_the_encoders_representations_with_gradient(name: str) -> None:
    method = build(name).eval()  # so that the encoder gives the same again
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

    if name != "byol":
        assert outcome.reference is outcome.self_index is None


def test_byols_reference_is_of_both_branches() -> None:
    method = build("byol").eval()
    views = views_of(method, 10)
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


def test_byol_predicts_the_other_view() -> None:
    method = build("byol")
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


@every_method
def test_loss_falls(name: str) -> None:
    """MoCo's queue of random vectors is easier than one of keys: its loss is read once keys have filled the queue."""
    losses = descend(build(name, **({"momentum": 0.9} if name == "moco" else {})), 40)
    first, last = sum(losses[5:10]) / 5, sum(losses[-5:]) / 5
    assert last < 0.95 * first, losses


@every_method
def test_every_trainable_parameter_has_a_gradient_and_the_branch_has_none(name: str) -> None:
    method = build(name)
    method(views_of(method, 10)).loss.backward()
    trained = {key for key, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {key for key, p in method.named_parameters() if p.requires_grad and not key.startswith("target.")}
    if method.target is not None:  # it has batch statistics of its own
        assert method.get_buffer("target.encoder.1.num_batches_tracked") == 1


@every_method
def test_parts_to_compile_are_called_as_modules(name: str) -> None:
    """`module.compile()` acts on calls of the module; one that is passed by would be compiled for nothing."""
    method = build(name)
    called: list[nn.Module] = []
    for part in method.compiled_parts():
        part.register_forward_hook(lambda module, _args, _output: called.append(module))
    method(views_of(method, 10))
    assert called == method.compiled_parts()
    inside = {module for part in method.compiled_parts() for module in part.modules()}
    assert all(module in inside for module in method.modules() if isinstance(module, nn.Conv2d) and name != "mae")


@every_method
def test_wrong_views_are_refused(name: str) -> None:
    method = build(name)
    with pytest.raises(ValueError, match=f"views: expected {method.view_count} of one shape"):
        method([torch.zeros(4, 1, 8, 8)] * 3)
    if method.view_count == 2:
        with pytest.raises(ValueError, match="of one shape"):
            method((torch.zeros(4, 1, 8, 8), torch.zeros(3, 1, 8, 8)))


@every_method
def test_state_survives_a_round_trip(name: str) -> None:
    """Method and copy go on alike from a state dict, momentum branch and queue included."""
    method = build(name)
    descend(method, 3)
    other = build(name)
    other.load_state_dict(method.state_dict())
    assert descend(method, 3) == descend(other, 3)


@every_method
def test_autocast_keeps_the_loss_in_float32(name: str) -> None:
    method = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outcome = method(views_of(method, 12))
    outcome.loss.backward()
    assert outcome.loss.dtype == torch.float32
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize(("name", "left"), [("byol", 0.9975), ("moco", 0.999), ("moco_v3", 0.9975)])
def test_the_branch_follows_by_the_momentum_of_that_time(name: str, left: float) -> None:
    method = build(name)
    assert method.target is not None
    followed, source = next(method.target.parameters()), next(method.encoder.parameters())
    for progress, share in ((2 / 3, left), (1.0, 1.0 if left < 0.999 else 0.999)):
        with torch.no_grad():
            source.copy_(followed + 1)
        before = followed.clone()
        method.after_step(progress)  # after two thirds a quarter of the way from 1 back to 0.99 is left
        torch.testing.assert_close(followed, before + 1 - share)


def test_update_is_the_moving_average_of_parameters_alone() -> None:
    torch.manual_seed(0)
    encoder, projector = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2)
    branch = MomentumBranch(encoder, projector, start=0.9, end=0.9)
    online = [*encoder.parameters(), *projector.parameters()]
    with torch.no_grad():
        for parameter in online:
            parameter.add_(torch.randn_like(parameter))
    encoder(torch.randn(5, 3))  # moves the encoder's running statistics, which the branch does not take over
    before = copy.deepcopy(branch)
    branch.update(encoder, projector, 0.5)
    for new, old, source in zip(branch.parameters(), before.parameters(), online, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * source)
    for new_buffer, old_buffer in zip(branch.buffers(), before.buffers(), strict=True):
        assert torch.equal(new_buffer, old_buffer)


def layers(head: nn.Module) -> list[tuple[type[nn.Module], int | None]]:
    found = [layer for layer in head.modules() if not list(layer.children())]
    return [(type(layer), layer.out_features if isinstance(layer, nn.Linear) else None) for layer in found]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (mlp(6, (5, 4), last="scale"), lightly_heads.SimCLRProjectionHead(6, 5, 4)),
        (mlp(6, (5, 5, 4), last="scale"), lightly_heads.SimCLRProjectionHead(6, 5, 4, num_layers=3)),
        (mlp(6, (5, 4)), lightly_heads.BYOLProjectionHead(6, 5, 4)),
        (mlp(6, (5, 4), batch_norm=False), lightly_heads.MoCoProjectionHead(6, 5, 4)),
        (mlp(6, (4,)), nn.Sequential(nn.Linear(6, 4))),
    ],
)
def test_layers_are_those_of_lightly(ours: nn.Module, theirs: nn.Module) -> None:
    assert layers(ours) == layers(theirs)


@pytest.mark.parametrize(("last", "trained"), [("linear", 4), ("scale", 5), ("plain", 4)])
def test_what_the_last_norm_trains(last: Last, trained: int) -> None:
    """Two linear weights and the first norm's scale and shift, plus the last norm's scale where it has one."""
    head = mlp(6, (5, 4), last=last)
    assert len([p for p in head.parameters() if p.requires_grad]) == trained
    embeddings = head(torch.randn(32, 6))
    if last != "linear":
        torch.testing.assert_close(embeddings.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
        torch.testing.assert_close(embeddings.var(0, correction=0), torch.ones(4), atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("name", "option", "options"),
    [
        ("simclr", "temperature", {"temperature": 0.0}),
        ("simclr", "projector", {"projector": ()}),
        ("simclr_tuned", "temperature", {"temperature": float("nan")}),
        ("simclr_tuned", "projector", {"projector": (8, 0)}),
        ("byol", "momentum", {"momentum": 1.1}),
        ("byol", "momentum_end", {"momentum_end": -0.1}),
        ("byol", "predictor", {"predictor": (8, 4)}),  # does not end in the projector's last width
        ("vicreg", "covariance", {"covariance": -1.0}),
        ("vicreg", "variance", {"variance": float("inf")}),
        ("barlow_twins", "redundancy", {"redundancy": -0.1}),
        ("mae", "mask_ratio", {"mask_ratio": 0.0}),
        ("mae", "mask_ratio", {"mask_ratio": 1.0}),
        ("mae", "decoder_depth", {"decoder_depth": 0}),
        ("mae", "decoder_width", {"decoder_width": 30, "decoder_heads": 4}),
        ("moco", "version", {"version": "v1"}),
        ("moco", "predictor", {"predictor": (8, 4)}),  # an option of version 3
        ("moco", "queue_size", {"version": "v3", "queue_size": 8}),  # an option of version 2
        ("moco", "queue_size", {"queue_size": 0}),
        ("moco", "temperature", {"temperature": 0.0}),
        ("moco", "momentum", {"momentum": 1.5}),
        ("moco", "projector", {"projector": ()}),
        ("moco", "predictor", {"version": "v3", "predictor": (8, 4)}),
    ],
)
def test_options_out_of_range_are_rejected(name: str, option: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{option}: expected"):
        METHODS[name].config(**options)


def test_an_encoder_without_dimension_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"encoder: .*`dimension`.* None"):
        SimCLR(nn.Flatten(), SimCLRConfig())
