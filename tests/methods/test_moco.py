from dataclasses import asdict

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
    before = method.queue.clone()
    step(method.eval(), 0)
    assert torch.equal(method.queue, before)
    small = queued(4)  # a larger batch leaves its last keys
    torch.testing.assert_close(step(small, 0)[-4:], small.queue)


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
