"""What holds for every method."""

from dataclasses import asdict

import pytest
import torch
from lightly.models.modules import heads as lightly_heads
from tests.methods.small import NAMES, build
from tests.points import normal
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ldreg.methods import METHODS, Method, MoCoConfig, MoCoV2, Outcome, SimCLR, SimCLRConfig
from ldreg.methods.base import Last, mlp

every_method = pytest.mark.parametrize("name", NAMES)


def views_of(method: Method, count: int, *, seed: int = 0) -> tuple[Tensor, ...]:
    """Noisy views of the same few smooth images."""
    images = normal(count, 1, 4, 4, seed=7).repeat_interleave(2, 2).repeat_interleave(2, 3)
    noise = normal(method.view_count, count, 1, 8, 8, seed=seed)
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


@pytest.mark.parametrize("name", ["byol", "moco", "moco_v3"])
def test_losses_with_a_momentum_branch_by_a_plain_reference(name: str) -> None:
    """MoCo's keys enter the queue after they were compared."""
    method = build(name, **({} if name == "byol" else {"temperature": 0.2}))
    views, queue = views_of(method, 10), dict(method.named_buffers()).get("queue", torch.zeros(0)).clone()
    assert method.target is not None
    inputs = (views[0], views[1]) if name == "moco" else (torch.cat(views), torch.cat(views))
    outputs = method.projector(method.encoder(inputs[0]))
    outputs = outputs if method.predictor is None else method.predictor(outputs)
    queries, keys = (normalize(each, dim=1).split(10) for each in (outputs, method.target(inputs[1])[1]))
    loss = method(views).loss
    loss.backward()  # although the queue has changed
    ways = []
    for query, key in zip(queries, keys[::-1], strict=True):
        if name == "byol":
            ways.append((2 - 2 * (query * key).sum(1)).mean())
        elif name == "moco":
            logits = torch.cat(((query * key).sum(1, keepdim=True), query @ queue.T), 1)
            ways.append(cross_entropy(logits / 0.2, torch.zeros(10, dtype=torch.int64)))
        else:
            ways.append(0.4 * cross_entropy(query @ key.T / 0.2, torch.arange(10)))
    torch.testing.assert_close(loss, sum(ways))


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
    with pytest.raises(ValueError, match=r"encoder: .*`dimension`.* None"):
        SimCLR(nn.Flatten(), SimCLRConfig())


@every_method
def test_state_survives_a_round_trip(name: str) -> None:
    """Method and copy go on alike from a state dict, momentum branch and queue included."""
    method = build(name)
    descend(method, 3)
    other = build(name)
    other.load_state_dict(method.state_dict())
    assert descend(method, 3) == descend(other, 3)


@pytest.mark.parametrize(("name", "left"), [("byol", 0.9975), ("moco", 0.999), ("moco_v3", 0.9975)])
def test_the_branch_follows_by_the_momentum_of_that_time(name: str, left: float) -> None:
    method = build(name)
    assert method.target is not None
    followed, source = next(method.target.parameters()), next(method.encoder.parameters())
    method(views_of(method, 10))  # moves running statistics, which the branch does not take over
    for progress, share in ((2 / 3, left), (1.0, 1.0 if left < 0.999 else 0.999)):
        with torch.no_grad():
            source.copy_(followed + 1)
        before, buffers = followed.clone(), [buffer.clone() for buffer in method.target.buffers()]
        method.after_step(progress)  # after two thirds a quarter of the way from 1 back to 0.99 is left
        torch.testing.assert_close(followed, before + 1 - share)
        torch.testing.assert_close(list(method.target.buffers()), buffers, rtol=0, atol=0)


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


def enqueue(method: MoCoV2, seed: int, count: int = 6) -> Tensor:
    """One forward pass; the keys that it was to enqueue."""
    views = torch.randn(2, count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)).unbind()
    method(views)
    return normalize(method.target(views[1])[1], dim=1)


def queued(size: int) -> MoCoV2:
    method = build("moco", queue_size=size)
    assert isinstance(method, MoCoV2)
    return method


def test_queue_takes_keys_in_order_and_drops_the_oldest() -> None:
    method = queued(15)
    first = method.queue.clone()
    torch.testing.assert_close(first.norm(dim=1), torch.ones(15))
    a, b, c = (enqueue(method, seed) for seed in range(3))
    assert method.pointer == 18 % 15
    torch.testing.assert_close(method.queue, torch.cat((c[3:], a[3:], b, c[:3])))
    before = method.queue.clone()
    enqueue(method.eval(), 0)
    assert torch.equal(method.queue, before)
    small = queued(4)  # a larger batch leaves its last keys
    torch.testing.assert_close(enqueue(small, 0)[-4:], small.queue)


def test_defaults_are_those_of_the_version() -> None:
    assert asdict(MoCoConfig().settings()) == {
        "temperature": 0.2, "momentum": 0.999, "momentum_end": 0.999,
        "projector": (2048, 128), "predictor": (), "queue_size": 65536,
    }  # fmt: skip
    assert asdict(MoCoConfig(version="v3").settings()) == {
        "temperature": 1.0, "momentum": 0.99, "momentum_end": 1.0,
        "projector": (4096, 256), "predictor": (4096, 256), "queue_size": 0,
    }  # fmt: skip
    assert MoCoConfig(momentum=0.9).settings().momentum_end == 0.9
    assert MoCoConfig(momentum=0.9, momentum_end=1.0).settings().momentum_end == 1.0
