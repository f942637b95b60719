import pytest
import torch
import torch.nn.functional as F
from tests.methods.small import build

from ldreg.methods import MoCoConfig, MoCoV2, MoCoV3


def step(method: MoCoV2, seed: int, count: int = 6) -> torch.Tensor:
    """One forward pass; the keys that it was to enqueue."""
    views = torch.randn(2, count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)).unbind()
    method(views)
    return F.normalize(method.target(views[1])[1], dim=1)


def queued(size: int) -> MoCoV2:
    method = build("moco", queue_size=size)
    assert isinstance(method, MoCoV2)
    return method


def test_queue_takes_keys_in_order_and_drops_the_oldest() -> None:
    method = queued(15)
    first = method.queue.clone()
    torch.testing.assert_close(first.norm(dim=1), torch.ones(15))
    a, b, c = (step(method, seed) for seed in range(3))
    assert method.pointer == 18 % 15
    torch.testing.assert_close(method.queue, torch.cat((c[3:], a[3:], b, c[:3])))


def test_a_batch_larger_than_the_queue_leaves_its_last_keys() -> None:
    method = queued(4)
    keys = step(method, 0)
    torch.testing.assert_close(method.queue, keys[-4:])


def test_keys_enter_after_they_were_compared() -> None:
    """The loss is that of the queue before, and its gradient can be taken although the queue has changed since."""
    method = queued(15)
    views = torch.randn(2, 6, 1, 8, 8).unbind()
    before = method.queue.clone()
    outcome = method(views)
    outcome.loss.backward()
    queries = F.normalize(method.projector(method.encoder(views[0])), dim=1)
    keys = F.normalize(method.target(views[1])[1], dim=1)
    logits = torch.cat(((queries * keys).sum(1, keepdim=True), queries @ before.T), 1) / 0.2
    torch.testing.assert_close(outcome.loss, F.cross_entropy(logits, torch.zeros(6, dtype=torch.int64)))


def test_evaluation_leaves_the_queue_alone() -> None:
    method = queued(15)
    before = method.queue.clone()
    step(method.eval(), 0)
    assert torch.equal(method.queue, before)
    assert method.pointer == 0


def test_version_3_by_a_plain_reference() -> None:
    method = build("moco_v3", temperature=0.2)
    assert isinstance(method, MoCoV3)
    views = torch.randn(2, 6, 1, 8, 8).unbind()
    images = torch.cat(views)
    queries = F.normalize(method.predictor(method.projector(method.encoder(images))), dim=1).chunk(2)
    keys = F.normalize(method.target(images)[1], dim=1).chunk(2)
    ways = [F.cross_entropy(queries[i] @ keys[1 - i].T / 0.2, torch.arange(6)) for i in range(2)]
    torch.testing.assert_close(method(views).loss, 2 * 0.2 * (ways[0] + ways[1]))


def test_defaults_are_those_of_the_version() -> None:
    v2, v3 = MoCoConfig().settings(), MoCoConfig(version="v3").settings()
    assert (v2.temperature, v2.momentum, v2.momentum_end, v2.projector, v2.predictor, v2.queue_size) == (
        0.2, 0.999, 0.999, (2048, 128), (), 65536,
    )  # fmt: skip
    assert (v3.temperature, v3.momentum, v3.momentum_end, v3.projector, v3.predictor, v3.queue_size) == (
        1.0, 0.99, 1.0, (4096, 256), (4096, 256), 0,
    )  # fmt: skip
    assert MoCoConfig(momentum=0.9).settings().momentum_end == 0.9
    assert MoCoConfig(momentum=0.9, momentum_end=1.0).settings().momentum_end == 1.0


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("version", {"version": "v1"}),
        ("predictor", {"predictor": (8, 4)}),  # an option of version 3
        ("queue_size", {"version": "v3", "queue_size": 8}),  # an option of version 2
        ("queue_size", {"queue_size": 0}),
        ("temperature", {"temperature": 0.0}),
        ("momentum", {"momentum": 1.5}),
        ("momentum_end", {"momentum_end": -1.0}),
        ("projector", {"projector": ()}),
        ("predictor", {"version": "v3", "predictor": (8, 4)}),  # does not end in the projector's last width
    ],
)
def test_options_that_do_not_fit_are_rejected(option: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{option}: "):
        MoCoConfig(**options)  # type: ignore[arg-type]
