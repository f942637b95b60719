"""Share of the gradient: the written formula by separate gradients in float64, in every setting of training."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from tests.methods.small import NAMES, build
from tests.points import normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ldreg import Balance, LDReg, geometric_mean, lid, suggest_beta
from ldreg.regularizers import Covariance, KoLeo, SIGReg

SHARE = 0.2


def encoder(*, dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 6, dtype=dtype)


def images(rows: int = 48, *, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(rows, 5, seed=1, dtype=dtype)


def task(z: Tensor) -> Tensor:
    """A loss that uses the representations twice."""
    loss: Tensor = 30 * z.sigmoid().square().mean() + (z * torch.arange(6, device=z.device).to(z.dtype)).tanh().mean()
    return loss


def by_hand(z: Tensor, loss: Callable[[Tensor], Tensor], term: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of the formula at representations z."""
    z = z.detach().requires_grad_()
    (of_loss,), (of_term,) = torch.autograd.grad(loss(z), z), torch.autograd.grad(term(z), z)
    mixed: Tensor = of_loss + SHARE * of_loss.norm() / of_term.norm() * of_term
    return mixed


def weight_gradient(model: nn.Linear, x: Tensor, at_representations: Tensor) -> Tensor:
    model.zero_grad()
    model(x).backward(at_representations)
    assert model.weight.grad is not None
    return model.weight.grad.clone()


def gradient_of(model: nn.Linear, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()
    assert model.weight.grad is not None
    return model.weight.grad.clone()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "l2"},
        {"target": 3.0},
        {"direction": "minimize"},
        {"reference_grad": True},
        {"estimator": "tle"},
        {"estimator": "mle", "convention": "pseudocode"},
    ],
)
@pytest.mark.parametrize("scale", [1.0, 65536.0, 1e-30])
def test_ldreg_has_the_share_at_any_scale_of_the_loss(options: dict[str, Any], scale: float) -> None:
    model, x, reg = encoder(), images(), LDReg(k=8, share=SHARE, **options)
    z, penalty = reg.fork(model(x))
    found = gradient_of(model, scale * (task(z) + penalty)) / scale
    at_z = by_hand(model(x), task, LDReg(k=8, beta=1.0, **options))
    torch.testing.assert_close(found, weight_gradient(model, x, at_z), rtol=1e-6, atol=1e-12)
    assert penalty.item() == pytest.approx(LDReg(k=8, beta=1.0, **options)(model(x)).item(), rel=1e-12)


@pytest.mark.parametrize("kind", [Covariance, KoLeo, SIGReg])
def test_any_regularizer_has_the_share(kind: type[nn.Module]) -> None:
    model, x = encoder(), images()
    one, other = kind(), kind()
    for_loss, for_term = Balance(SHARE)(model(x))
    found = gradient_of(model, task(for_loss) + one(for_term))
    torch.testing.assert_close(found, weight_gradient(model, x, by_hand(model(x), task, other)), rtol=1e-6, atol=1e-12)


def test_byols_reference_and_a_queue() -> None:
    model, x = encoder(), images()
    own = torch.arange(len(x))

    def reference(z: Tensor) -> Tensor:
        return torch.cat((z, z.detach() * 1.1 + 0.1))

    reg, plain = LDReg(k=8, share=SHARE, queue_size=64), LDReg(k=8, beta=1.0, queue_size=64)
    for step in range(3):
        batch = x + step
        raw = model(batch)
        z, penalty = reg.fork(raw, reference(raw), self_index=own)
        found = gradient_of(model, task(z) + penalty)
        at_z = by_hand(model(batch), task, lambda z: plain(z, reference(z), self_index=own))
        torch.testing.assert_close(found, weight_gradient(model, batch, at_z), rtol=1e-6, atol=1e-12)
    with pytest.raises(ValueError, match="reference_grad"):
        LDReg(k=8, share=SHARE, reference_grad=True).fork(model(x), reference(model(x)), self_index=own)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_forks_where_its_loss_and_the_regularizer_part(name: str) -> None:
    """For MAE these are all tokens, of which LDReg reads one."""
    views = normal(2, 24, 1, 8, 8, dtype=torch.float64).unbind()
    branches: list[Tensor] = []

    def copies(x: Tensor) -> tuple[Tensor, Tensor]:
        branches[:] = [x.detach().requires_grad_(), x.detach().requires_grad_(), x]
        return branches[0], branches[1]

    method, term = build(name).double(), Covariance(beta=1.0)
    twin = copy.deepcopy(method)
    method.fork = copies
    outcome = method(views[: method.view_count], torch.Generator().manual_seed(3))
    (of_loss,) = torch.autograd.grad(outcome.loss, branches[0])
    (of_term,) = torch.autograd.grad(term(outcome.representations), branches[1])
    branches[2].backward(of_loss + SHARE * of_loss.norm() / of_term.norm() * of_term)
    expected = [parameter.grad for parameter in method.encoder.parameters() if parameter.grad is not None]

    twin.fork = Balance(SHARE)
    outcome = twin(views[: twin.view_count], torch.Generator().manual_seed(3))
    (outcome.loss + term(outcome.representations)).backward()
    found = [parameter.grad for parameter in twin.encoder.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


ROUTES: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "compiled": lambda loss, x: torch.compile(loss, backend="aot_eager")(x),
    "compiled by inductor": lambda loss, x: torch.compile(loss, backend="inductor")(x),
    "checkpointed": lambda loss, x: checkpoint(loss, x.requires_grad_(), use_reentrant=False),
    "checkpointed, reentrant": lambda loss, x: checkpoint(loss, x.requires_grad_(), use_reentrant=True),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which Dynamo hides, unless it is an error
@pytest.mark.parametrize("name", ROUTES)
def test_compiled_and_checkpointed_steps_have_the_same_gradient(name: str) -> None:
    model, x, reg = encoder(dtype=torch.float32), images(dtype=torch.float32), LDReg(k=8, share=SHARE)

    def loss(x: Tensor) -> Tensor:
        z, penalty = reg.fork(model(x))
        return task(z) + penalty

    expected = gradient_of(model, loss(x))
    torch.testing.assert_close(gradient_of(model, ROUTES[name](loss, x)), expected)
    assert reg.effective_beta > 0


def test_half_precision_with_a_scaler() -> None:
    model, x = encoder(dtype=torch.float32), images(dtype=torch.float32)
    reg, scaler = LDReg(k=8, share=SHARE), torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.float16):
        raw = model(x)
        z, penalty = reg.fork(raw)
        loss = task(z.float()) + penalty
    assert (raw.dtype, z.dtype, penalty.dtype) == (torch.float16, torch.float16, torch.float32)
    found = gradient_of(model, scaler.scale(loss)) / scaler.get_scale()
    at_z = by_hand(raw.double(), task, LDReg(k=8, beta=1.0)).float()
    torch.testing.assert_close(found, weight_gradient(model, x, at_z), rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("bad", ["no loss", "flat loss", "infinite loss", "NaN term", "flat term"])
def test_without_two_usable_gradients_the_losss_stays(bad: str) -> None:
    model, x, balance = encoder(), images(), Balance(SHARE)
    factors = {"flat loss": (0.0, 1.0), "infinite loss": (math.inf, 1.0), "NaN term": (1.0, math.nan)}
    of_loss, of_term = factors.get(bad, (1.0, 0.0 if bad == "flat term" else 1.0))

    def loss(z: Tensor) -> Tensor:
        return of_loss * z.square().sum()

    for_loss, for_term = balance(model(x))
    term = of_term * for_term.tanh().sum()
    whole = term if bad == "no loss" else loss(for_loss) + term
    model.zero_grad()
    whole.backward()
    if bad == "no loss":
        assert model.weight.grad is None
    else:
        found = model.weight.grad
        assert found is not None
        expected = gradient_of(model, loss(model(x)))
        assert torch.equal(found.isfinite(), expected.isfinite())
        assert bad == "infinite loss" or torch.equal(found, expected)
    assert (int(balance.passes), int(balance.skipped), float(balance.effective_beta)) == (1, 1, 0)


def test_without_a_share_the_gradients_add_up_and_are_measured() -> None:
    model, x, balance = encoder(), images(), Balance(None)
    for with_loss in (True, False):
        for_loss, for_term = balance(model(x))
        found = gradient_of(model, for_term.tanh().sum() + (task(for_loss) if with_loss else 0))
        z = model(x)
        expected = gradient_of(model, z.tanh().sum() + (task(z) if with_loss else 0))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        assert balance.pull.isfinite() == with_loss


def test_smoothing_is_a_moving_geometric_mean_and_resumes_bitwise() -> None:
    model, x, balance = encoder(), images(), Balance(SHARE, smoothing=0.75)
    log_ratio = math.nan
    for step in range(6):
        if step == 3:  # as from a checkpoint
            state = balance.state_dict()
            balance = Balance(SHARE, smoothing=0.75)
            balance.load_state_dict(state)
        scale = 2.0 ** (step % 3)
        for_loss, for_term = balance(model(x))
        (scale * task(for_loss) + for_term.tanh().sum()).backward()
        z = model(x).detach().requires_grad_()
        (of_loss,), (of_term,) = torch.autograd.grad(scale * task(z), z), torch.autograd.grad(z.tanh().sum(), z)
        now = math.log(of_loss.norm() / of_term.norm())
        log_ratio = now if step == 0 else 0.75 * log_ratio + 0.25 * now
        assert balance.effective_beta.item() == pytest.approx(SHARE * math.exp(log_ratio), rel=1e-5)
    assert int(balance.passes) == 6
    assert not Balance(SHARE).state_dict(), "checkpoints without state stay as they are"


def test_start_and_ceiling() -> None:
    model, x = encoder(), images()
    late, capped = Balance(SHARE, start=2), Balance(SHARE, max_beta=1e-6)
    betas = []
    for _ in range(4):
        for balance in (late, capped):
            for_loss, for_term = balance(model(x))
            (task(for_loss) + for_term.tanh().sum()).backward()
        betas.append((late.effective_beta.item(), capped.effective_beta.item()))
    assert [late > 0 for late, _ in betas] == [False, False, True, True]
    assert all(capped == pytest.approx(1e-6) for _, capped in betas)
    assert not late.skipped
    reg = LDReg(k=8, share=SHARE, start=1)
    for _ in range(2):
        z, penalty = reg.fork(model(x))
        (task(z) + penalty).backward()
        betas.append((reg.effective_beta.item(), 0.0))
    assert [beta > 0 for beta, _ in betas[-2:]] == [False, True]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda z, reg: task(z) + reg.fork(z)[1], "what fork returns"),
        (lambda z, reg: task(reg.fork(z)[0]), "the penalty of fork"),
        (lambda z, reg: task(z) + reg.fork(z.detach())[1], "a gradient"),
    ],
    ids=["the loss uses other representations", "the penalty is not added", "detached"],
)
def test_a_share_without_effect_is_warned_of_once(wrong: Callable[[Tensor, LDReg], Tensor], named: str) -> None:
    model, x, reg = encoder(), images(), LDReg(k=8, share=SHARE)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(45):
            wrong(model(x), reg).backward()
    assert [("share:" in str(one.message), named in str(one.message)) for one in found] == [(True, True)]


def test_without_gradients_the_representations_pass_through() -> None:
    reg, x = LDReg(k=8, share=SHARE), images()
    z, penalty = reg.fork(x)
    assert z is x
    assert penalty == reg(x) == LDReg(k=8, beta=1.0)(x)
    z, penalty = LDReg(k=8, beta=0.5).fork(x)
    assert z is x
    assert penalty == LDReg(k=8, beta=0.5)(x)


def test_wrong_options_are_refused() -> None:
    wrong = [("share", -0.1), ("share", math.nan), ("smoothing", 1.0), ("start", 0.5), ("max_beta", 0)]
    for name, value in wrong:
        with pytest.raises(ValueError, match=f"^{name}: expected "):
            Balance(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^share: expected None with a beta"):
        LDReg(beta=0.5, share=0.1)
    for name, value in (("smoothing", 0.5), ("start", 10), ("max_beta", 1.0)):
        with pytest.raises(ValueError, match=f"^{name}: expected .* without a share"):
            LDReg(k=8, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^share: expected .* got a call without fork"):
        LDReg(k=8, share=0.1)(images().requires_grad_())


def test_the_suggested_beta_gives_the_share() -> None:
    model = encoder()
    outputs = [model(images() + shift) for shift in range(3)]
    suggestion = suggest_beta([(task(z), z) for z in outputs], share=0.3, regularizer=LDReg(k=8, beta=0.02))
    ratios = []
    for z, beta in zip(outputs, suggestion.betas, strict=True):
        (of_loss,) = torch.autograd.grad(task(z), z, retain_graph=True)
        (of_term,) = torch.autograd.grad(LDReg(k=8, beta=beta)(z), z, retain_graph=True)
        ratios.append((of_term.norm() / of_loss.norm()).item())
    assert ratios == pytest.approx([0.3] * 3, rel=1e-6)
    assert suggestion.beta == pytest.approx(math.prod(suggestion.betas) ** (1 / 3))
    (axes,) = suggestion.plot().axes
    assert (axes.get_xscale(), len(axes.lines)) == ("log", 5)
    with pytest.raises(ValueError, match=r"^batches: expected a batch with finite gradients .* got 1$"):
        suggest_beta([(task(outputs[0]), model(images()))], regularizer=LDReg(k=8))
    with pytest.raises(ValueError, match=r"^share: "):
        suggest_beta([], share=0)


def pulled(reg: LDReg, steps: int, *, scale: float = 1.0, same_tensor: bool = True) -> list[Tensor]:
    """The gradients of steps on a loss of this size, which may use another tensor than LDReg gets."""
    model, x, gradients = encoder(), images(), []
    for _ in range(steps):
        z = model(x)
        gradients.append(gradient_of(model, scale * task(z if same_tensor else model(x)) + reg(z)))
    return gradients


def pull_by_hand(beta: float, scale: float = 1.0) -> float:
    z = encoder()(images()).detach().requires_grad_()
    (of_loss,), (of_term,) = (torch.autograd.grad(loss, z) for loss in (scale * task(z), LDReg(k=8, beta=beta)(z)))
    return float(of_term.norm() / of_loss.norm())


def test_the_pull_of_a_beta_is_measured_every_fiftieth_step_and_changes_no_gradient() -> None:
    reg = LDReg(k=8, beta=0.02)
    assert reg.pull.isnan()
    gradients = pulled(reg, 50)
    assert reg.pull.item() == pytest.approx(pull_by_hand(0.02), rel=1e-4)
    assert torch.equal(gradients[-1], gradients[0])  # the last was measured, the first was not
    assert not reg.state_dict()
    reg = LDReg(k=8, beta=0.02)
    pulled(reg, 50, same_tensor=False)
    assert reg.pull.isnan()


@pytest.mark.parametrize(("scale", "found"), [(1e6, "negligible"), (1e-6, "dominant"), (0.1, None)])
def test_a_pull_far_off_is_warned_of_once_with_a_beta_that_gives_ten_percent(scale: float, found: str | None) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        pulled(LDReg(k=8, beta=0.01), 300, scale=scale)
    assert len(warned) == (found is not None)
    if found is not None:
        message = str(warned[0].message)
        assert found in message
        beta = float(message.partition("beta ")[2].split()[0])
        assert pull_by_hand(beta, scale) == pytest.approx(0.1, rel=0.06)  # two digits of beta


@pytest.mark.slow
def test_a_simclr_of_ones_own_gains_lid_beyond_noise() -> None:
    """The lines of the README in a plain loop on digits, over seeds."""
    digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16

    def trained(seed: int, share: float) -> float:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        head = nn.Sequential(nn.ReLU(), nn.Linear(32, 16))
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=2e-3)
        reg = LDReg(k=64, share=share)
        for _ in range(200):
            batch = digits[torch.randint(len(digits), (128,))]
            z, penalty = reg.fork(model(torch.cat([batch + 0.15 * torch.randn_like(batch) for _ in range(2)])))
            embeddings = nn.functional.normalize(head(z))
            similarity = (embeddings @ embeddings.T / 0.1).fill_diagonal_(-torch.inf)
            loss = nn.functional.cross_entropy(similarity, torch.arange(256).roll(128)) + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            return geometric_mean(lid(model(digits), k=64)).item()

    found = {share: torch.tensor([trained(seed, share) for seed in range(3)]) for share in (0.0, 0.1)}
    assert found[0.1].mean() - found[0.0].mean() > 3 * found[0.0].std()


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_the_gpu_has_the_gradient_of_the_cpu(captured: bool) -> None:
    x = images(256, dtype=torch.float32)
    found = []
    for device in ("cpu", "cuda"):
        model, reg, batch = encoder(dtype=torch.float32).to(device), LDReg(k=8, share=SHARE), x.to(device)

        def step(model: nn.Linear = model, reg: LDReg = reg, batch: Tensor = batch) -> None:
            model.zero_grad(set_to_none=False)
            z, penalty = reg.fork(model(batch))
            (task(z) + penalty).backward()

        step()
        if captured and device == "cuda":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            graph.replay()
        assert model.weight.grad is not None
        found.append(model.weight.grad.cpu())
        assert reg.pull.item() == pytest.approx(SHARE, rel=1e-5)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-6)
