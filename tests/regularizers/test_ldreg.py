"""LDReg: values by hand, gradients, degenerate batches, references, the queue."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.points import normal
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from ldreg import LDReg
from ldreg.dimension.cuda import step as fused
from ldreg.dimension.estimators import lid
from ldreg.dimension.geometry import geometric_mean

OPTIONS: dict[str, dict[str, Any]] = {
    "l1": {},
    "l2": {"norm": "l2"},
    "target": {"target": 3.0},
    "target l2": {"target": 3.0, "norm": "l2"},
    "target frechet": {"target": 3.0, "norm": "frechet"},
    "minimize": {"direction": "minimize"},
    "minimize l2": {"direction": "minimize", "norm": "l2"},
    "mle": {"estimator": "mle"},
    "tle": {"estimator": "tle"},
    "pseudocode": {"convention": "pseudocode"},
    "reference_grad": {"reference_grad": True},
    "k": {"k": 6},
    "beta": {"beta": 0.5},
}


def value_and_gradient(x: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = LDReg(**({"k": 8, "beta": 0.01} | options))(x)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def test_values_are_the_papers_formulas() -> None:
    x = normal(100, 8, dtype=torch.float64)
    logs = lid(x, 10).log()
    expected = {
        "l1": -0.3 * logs.mean(),
        "l2": -0.3 * logs.square().mean().sqrt(),
        "minimize": 0.3 * logs.mean(),
    }
    for name, value in expected.items():
        assert LDReg(k=10, beta=0.3, **OPTIONS[name])(x).item() == pytest.approx(value.item(), rel=1e-12), name
    for target in (3.0, 8.0, 30.0):  # under all of them, among them and over all
        apart = logs - math.log(target)
        towards = {"l1": apart.abs().mean(), "l2": apart.square().mean().sqrt(), "frechet": apart.mean().abs()}
        for name, value in towards.items():
            found = LDReg(k=10, beta=0.3, target=target, norm=name)(x)  # type: ignore[arg-type]
            assert found.item() == pytest.approx(0.3 * value.item(), rel=1e-12), (name, target)


def test_points_of_lid_under_one_are_pushed_up() -> None:
    """The authors' -|ln LID| rewards LID 0.5 as much as LID 2; -ln LID does not."""
    x = torch.tensor([[0.0], [1e-3], [2e-3], [1.0]])
    assert (lid(x, 3)[:3] < 1).all()
    assert LDReg(k=3, beta=1.0)(x[:3], x, self_index=torch.arange(3)) > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck(name: str) -> None:
    x = normal(14, 4, dtype=torch.float64).requires_grad_()
    reference = normal(25, 4, seed=1, dtype=torch.float64)
    reg = LDReg(**({"k": 8, "beta": 0.7} | OPTIONS[name]))
    assert torch.autograd.gradcheck(lambda z: reg(z, reference), (x,))
    if OPTIONS[name].get("reference_grad"):
        assert torch.autograd.gradcheck(reg, (x,))


@pytest.mark.parametrize(
    ("estimator", "direction"), [(e, "maximize") for e in ("mom", "mle", "tle")] + [("mom", "minimize")]
)
def test_a_step_along_the_negative_gradient_moves_the_geometric_mean(estimator: Any, direction: str) -> None:
    x = normal(200, 6)
    _, gradient = value_and_gradient(x, {"estimator": estimator, "k": 20, "direction": direction})
    moved = x - 0.05 * gradient / gradient.norm(dim=1, keepdim=True).mean()
    change = geometric_mean(lid(moved, 20)) / geometric_mean(lid(x, 20)) - 1
    assert change > 0.005 if direction == "maximize" else change < -0.005


DEGENERATE = {
    "constant": torch.ones(40, 6),
    "zeros": torch.zeros(40, 6),
    "doubled": normal(20, 6).repeat(2, 1),
    "twentyfold": normal(2, 6).repeat(20, 1),
    "one-hot": torch.eye(10)[torch.arange(40) % 10],
    "simplex": torch.eye(40),
    "near ties": torch.eye(40) + normal(40, 40) * 1e-7,
    "1e-30": normal(40, 6) * 1e-30,
    "1e-36": normal(40, 6) * 1e-36,
    "1e30": normal(40, 6) * 1e30,
    "two values": torch.arange(40.0).remainder(2).unsqueeze(1).expand(40, 3).contiguous(),
}


@pytest.mark.parametrize("data", DEGENERATE)
@pytest.mark.parametrize("name", OPTIONS)
def test_value_and_gradient_are_finite(data: str, name: str) -> None:
    value, gradient = value_and_gradient(DEGENERATE[data], OPTIONS[name])
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    if data == "constant":  # no point is regular
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("name", OPTIONS)
def test_degenerate_points_do_not_switch_the_others_off(name: str) -> None:
    regular = normal(40, 6) + 100
    alone, alone_gradient = value_and_gradient(regular, OPTIONS[name])
    value, gradient = value_and_gradient(torch.cat((regular, torch.zeros(15, 6))), OPTIONS[name])
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(gradient[:40], alone_gradient)
    assert not gradient[40:].any()


@pytest.mark.parametrize("size", [10, 50])  # of less than a batch, and of two and a half
def test_queue_adds_past_representations_to_the_candidates(size: int) -> None:
    batches = [normal(20, 4, seed=seed) for seed in range(4)]
    reg, plain = LDReg(k=8, beta=1.0, queue_size=size), LDReg(k=8, beta=1.0)
    torch.testing.assert_close(reg(batches[0]), plain(batches[0]))
    for step in (1, 2, 3):
        past = torch.cat(batches[:step])[-size:]
        reference = torch.cat((batches[step], past))
        torch.testing.assert_close(reg(batches[step]), plain(batches[step], reference, self_index=torch.arange(20)))


def test_queue_is_part_of_the_state_and_stands_still_outside_of_training() -> None:
    reg, fresh = LDReg(k=8, queue_size=30), LDReg(k=8, queue_size=30)
    before = copy.deepcopy(reg.state_dict())
    with torch.inference_mode():
        reg(normal(20, 4))
    assert not reg.queue.numel()
    reg(normal(20, 4))
    reg(normal(20, 4, seed=1))
    fresh.load_state_dict(reg.state_dict())
    batch = normal(20, 4, seed=2)
    assert reg.eval()(batch) == reg(batch) == fresh(batch)
    assert fresh(batch) != reg(batch)  # fresh is in training and has taken the batch in
    reg.load_state_dict(before)  # as a search for a learning rate does, which takes some steps and goes back
    other = normal(20, 6)
    assert reg(other) == LDReg(k=8)(other)


def test_without_a_queue_there_is_no_state_to_save_or_to_miss() -> None:
    """So that LDReg can be put into a model whose checkpoints know nothing of it, and taken out again."""
    model = nn.ModuleDict({"net": nn.Linear(3, 3), "reg": LDReg(k=8)})
    assert list(model.state_dict()) == ["net.weight", "net.bias"]
    model.load_state_dict({**nn.ModuleDict({"net": nn.Linear(3, 3)}).state_dict()})
    # As it was saved before.
    model.load_state_dict({**model.state_dict(), "reg.queue": torch.empty(0, 0), "reg._extra_state": torch.tensor(0)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.* "reg\.other"'):
        model.load_state_dict({**model.state_dict(), "reg.other": torch.empty(0)})
    with pytest.raises(RuntimeError, match=r'Missing key.* "queue", "_extra_state"'):
        LDReg(k=8, queue_size=30).load_state_dict({})


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.float32, torch.float16)])
def test_queue_holds_batches_of_different_dtypes(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    large = {torch.float16: 1e3, torch.float32: 1e6}  # of which float16 holds the first alone
    past, batch = ((normal(32, 4, seed=seed) * large[dtype]).to(dtype) for seed, dtype in enumerate(dtypes))
    reg = LDReg(k=8, queue_size=64)
    reg(past)
    found = reg(batch)
    assert found == LDReg(k=8)(batch, torch.cat((batch.float(), past.float())), self_index=torch.arange(32))
    assert torch.equal(reg.queue, torch.cat((past.float(), batch.float())))
    assert reg(batch).isfinite()


def test_what_does_not_fit_the_queue_is_refused() -> None:
    reg, x, own = LDReg(k=4, queue_size=16), normal(30, 3), torch.arange(30)
    reg(x, x, self_index=own)  # and the queue holds rows 30 to 45
    for row in (30, -2):
        wrong = torch.where(own == 7, row, own)
        with pytest.raises(
            ValueError, match=rf"^self_index: expected rows of the reference, 0 to 29, or -1, got {row}$"
        ):
            reg(x, x, self_index=wrong)
    with pytest.raises(ValueError, match="self_index: expected None without a reference"):
        reg(x, self_index=own)
    with pytest.raises(ValueError, match="representations: expected 3 columns"):
        reg(normal(30, 5))
    with pytest.raises(ValueError, match="queue_size: expected 16, as in the state dict, got 8"):
        LDReg(k=4, queue_size=8).load_state_dict(reg.state_dict())


def test_batches_smaller_than_k_wait_until_the_queue_holds_k() -> None:
    reg, batches = LDReg(k=30, queue_size=64), normal(80, 3).split(16)
    x = batches[0].clone().requires_grad_()
    values = [reg(x), *(reg(batch) for batch in batches[1:])]
    (gradient,) = torch.autograd.grad(values[0], x)
    assert not gradient.any()
    assert [bool(value == 0) for value in values] == [True] + [False] * 4, "15 others and 16 past ones are 31"
    expected = LDReg(k=30)(batches[1], torch.cat(batches[:2]), self_index=torch.arange(16, 32))
    assert values[1] == pytest.approx(expected.item(), rel=1e-6)
    few = normal(10, 3)
    assert LDReg(k=64, queue_size=55)(few) == 0
    for reg in (LDReg(k=64), LDReg(k=64, queue_size=54), LDReg(k=64, queue_size=100).eval()):
        with pytest.raises(ValueError, match=r"^k: expected fewer than the 10 representations of the batch, got 64"):
            reg(few)
    with pytest.raises(ValueError, match=r"^k: expected at most .* 64 rows of the reference, got 64$"):
        LDReg(k=64)(few, normal(64, 3), self_index=torch.arange(10))
    assert LDReg(k=64)(few, normal(64, 3)) != 0, "none of them is a point itself"


def test_autocast_and_half_precision() -> None:
    x = normal(64, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert LDReg(k=8)(x) == LDReg(k=8)(x.clone())
        half = x.bfloat16().requires_grad_()
        value = LDReg(k=8)(half)
    assert value.dtype == torch.float32
    value.backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(value, LDReg(k=8)(half.detach().float()))


def test_compiled_equals_eager() -> None:
    x = normal(64, 16)
    x[:20] = 0
    x.requires_grad_()
    numpy: dict[str, Any] = {"beta": np.float64(0.1), "target": np.float64(3.0), "queue_size": np.int64(0)}
    reg, captured = LDReg(k=8, beta=0.1, target=3.0), LDReg(k=8, **numpy)
    (eager,) = torch.autograd.grad(reg(x), x)
    (compiled,) = torch.autograd.grad(torch.compile(captured, fullgraph=True, backend="aot_eager")(x), x)
    torch.testing.assert_close(compiled, eager)
    assert 0 < reg.regular_share == captured.regular_share < 1


@pytest.mark.parametrize("estimator", ["mom", "mle", "tle"])
def test_the_share_of_regular_points_is_reported(estimator: Any) -> None:
    """By the LID of each point: the value is a mean over the regular ones, and the share says how many they are."""
    dead, repeated = normal(256, 16) + 10, normal(256, 16)
    dead[:115] = 0
    repeated[:100] = repeated[0].clone()
    for x in (dead, repeated):
        reg = LDReg(k=32, beta=1.0, estimator=estimator)
        assert reg.regular_share.isnan()
        value = reg(x.requires_grad_())
        values = lid(x.detach(), k=32, estimator=estimator)
        regular = values.isfinite() & (values > 0)
        torch.testing.assert_close(value.detach(), -values[regular].log().mean())
        torch.testing.assert_close(reg.regular_share, regular.float().mean())
        assert not reg.regular_share.requires_grad
        assert reg.state_dict() == {}
        copy.deepcopy(reg)


def test_compiled_without_a_break_where_representations_are_rows_of_the_reference() -> None:
    x = normal(64, 16).requires_grad_()
    both, own = torch.cat((x.detach(), normal(64, 16, seed=1))), torch.arange(64)
    reg = LDReg(k=8)
    compiled = torch.compile(reg, fullgraph=True, backend="aot_eager")
    (eager,) = torch.autograd.grad(reg(x, both, self_index=own), x)
    (found,) = torch.autograd.grad(compiled(x, both, self_index=own), x)
    torch.testing.assert_close(found, eager)
    with pytest.raises(ValueError, match="self_index: expected rows of the reference, 0 to 127, or -1, got 128"):
        compiled(x, both, self_index=own + 100)


def test_a_queue_leaves_what_is_around_it_compiled() -> None:
    counter, reg, layer = CompileCounter(), LDReg(k=8, queue_size=64), nn.Linear(4, 4).requires_grad_(False)
    plain = copy.deepcopy(reg)

    def loss(x: Tensor, regularizer: LDReg) -> Tensor:
        representations = layer(x)
        value: Tensor = representations.square().mean() + regularizer(representations)
        return value

    compiled = torch.compile(loss, backend=counter)
    for seed in range(12):
        batch = normal(16, 4, seed=seed)
        torch.testing.assert_close(compiled(batch, reg), loss(batch, plain))
    assert counter.frame_count == 2  # what comes before LDReg, and what after


def test_repr_shows_the_options() -> None:
    shown = repr(LDReg(k=32, beta=0.1, norm="l2"))
    assert "k=32, beta=0.1, share=None, smoothing=0.0, start=0, max_beta=None, norm='l2'" in shown


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm", {"norm": "l3"}),
        ("target", {"norm": "frechet"}),
        ("direction", {"direction": "up"}),
        ("target", {"target": 0.0}),
        ("direction", {"target": 2.0, "direction": "minimize"}),
        ("queue_size", {"queue_size": -1}),
        ("estimator", {"estimator": "x"}),
        ("k", {"k": 1}),
        ("k", {"k": 2.5}),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*got {options.get(name)!r}$"):
        LDReg(**options)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_found_while_the_queue_fills(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    reg, batch = LDReg(k=30, queue_size=64), normal(16, 3)
    batch[5, 1] = wrong
    with pytest.raises(ValueError, match=r"^representations: expected finite numbers, got NaN or inf in 1 of 16 rows"):
        reg(batch)
    assert [reg(each).isfinite().item() for each in normal(48, 3).split(16)] == [True] * 3
    monkeypatch.setattr(fused, "supports", lambda *_: True)  # where values are not looked at
    reg = LDReg(k=30, queue_size=64)
    assert reg(batch).isnan()
    assert reg.queue.isfinite().all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("size", [16, 40, 64])  # one batch, two and a half, four
def test_what_is_not_finite_does_not_enter_the_queue_unseen(
    wrong: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, batches = LDReg(k=4, queue_size=size), list(normal(80, 3).split(16))
    spoiled = batches[2].clone()
    spoiled[[3, 7], 1] = wrong
    monkeypatch.setattr(fused, "supports", lambda *_: True)  # where values are not looked at
    monkeypatch.setattr(fused, "ldreg_step", lambda x, *_, **__: (x.sum(), x.new_zeros(3)))
    for batch in (batches[0], batches[1]):
        reg(batch)
    before = reg.queue.clone()
    assert not reg(spoiled).isfinite()
    place = torch.arange(32, 48) % size
    kept = place[[3, 7]] % min(32, size)  # places that no row had taken have one of before
    expected = before.clone()
    expected[place] = batches[2]
    expected[place[[3, 7]]] = before[kept]
    torch.testing.assert_close(reg.queue, expected, rtol=0, atol=0)
    reg(batches[3])
    assert reg.queue.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("data", DEGENERATE)
def test_cuda_is_finite_on_degenerate_batches(data: str) -> None:
    for options in OPTIONS.values():
        value, gradient = value_and_gradient(DEGENERATE[data].cuda(), options)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIONS)
def test_cuda_equals_cpu(name: str) -> None:
    x = normal(300, 20)
    value, gradient = value_and_gradient(x, OPTIONS[name])
    cuda_value, cuda_gradient = value_and_gradient(x.cuda(), OPTIONS[name])
    assert cuda_value.item() == pytest.approx(value.item(), rel=1e-5)
    torch.testing.assert_close(cuda_gradient.cpu(), gradient, rtol=1e-3, atol=1e-6)


def test_the_fused_step_leaves_out_no_row_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at no value, and so must not take a row beyond the reference for the point itself."""
    reg, x, seen = LDReg(k=4, queue_size=16), normal(30, 3), []

    def reduced(x: Tensor, k: int, reference: Tensor, *, self_index: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        seen.extend(self_index.tolist())
        return x.sum(), x.new_zeros(3)

    reg(x)
    monkeypatch.setattr(fused, "supports", lambda *_: True)
    monkeypatch.setattr(fused, "ldreg_step", reduced)
    reg(x, x, self_index=torch.arange(1, 31))
    assert seen == [*range(1, 30), -1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_queue_takes_each_batch_once_under_activation_checkpointing(reentrant: bool) -> None:
    plain, checkpointed = (LDReg(k=8, queue_size=100) for _ in range(2))  # which the second batch overruns
    for step in range(4):
        x, y = (normal(60, 8, seed=step).requires_grad_() for _ in range(2))
        plain(x).backward()
        checkpoint(checkpointed, y, use_reentrant=reentrant).backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)
        assert torch.equal(plain.queue, checkpointed.queue)


def test_tle_is_refused_in_a_full_graph_and_runs_uncompiled_otherwise() -> None:
    reg, x = LDReg(k=8, estimator="tle"), normal(60, 8)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"estimator: expected 'mom' or 'mle'"):
        torch.compile(reg, fullgraph=True, backend="aot_eager")(x)
    assert torch.compile(reg, backend="aot_eager")(x) == reg(x)
