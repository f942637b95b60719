"""Each loss against lightly's, a plain reference or a value computed by hand."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import BarlowTwinsLoss, NTXentLoss, VICRegLoss
from torch import Tensor

from ldreg.methods import losses


def pair(rows: int, columns: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    a = torch.randn(rows, columns, generator=generator, dtype=dtype)
    b = 0.7 * a + 0.5 * torch.randn(rows, columns, generator=generator, dtype=dtype) + 0.3
    return a.requires_grad_(), b.requires_grad_()


def assert_same(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor
) -> None:
    """The same value and the same gradient to both arguments."""
    value, expected = ours(a, b), theirs(a, b)
    torch.testing.assert_close(value, expected)
    assert expected.abs() > 1e-3
    for got, want in zip(torch.autograd.grad(value, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True):
        assert want.abs().max() > 1e-6
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_that_of_lightly(temperature: float) -> None:
    assert_same(lambda a, b: losses.nt_xent(a, b, temperature=temperature), NTXentLoss(temperature), *pair(13, 7))


# Fewer rows than half the columns take the other way to the squares.
@pytest.mark.parametrize(("rows", "columns"), [(20, 6), (6, 20), (10, 20), (11, 20), (2, 5)])
def test_vicreg_is_that_of_lightly(rows: int, columns: int) -> None:
    assert_same(lambda a, b: losses.vicreg(a, b)[0], VICRegLoss(), *pair(rows, columns))
    assert_same(
        lambda a, b: losses.vicreg(a, b, invariance=2.0, variance=3.0, covariance=5.0)[0],
        VICRegLoss(2.0, 3.0, 5.0),
        *pair(rows, columns),
    )


@pytest.mark.parametrize(("rows", "columns"), [(20, 6), (6, 20), (10, 20), (11, 20)])
def test_barlow_twins_is_that_of_lightly(rows: int, columns: int) -> None:
    assert_same(lambda a, b: losses.barlow_twins(a, b)[0], BarlowTwinsLoss(), *pair(rows, columns))
    assert_same(lambda a, b: losses.barlow_twins(a, b, redundancy=0.5)[0], BarlowTwinsLoss(0.5), *pair(rows, columns))


def test_terms_are_unweighted_and_detached() -> None:
    a, b = pair(12, 5)
    loss, terms = losses.vicreg(a, b, invariance=2.0, variance=3.0, covariance=5.0)
    weighted = 2 * terms["invariance"] + 3 * terms["variance"] + 5 * terms["covariance"]
    torch.testing.assert_close(weighted, loss.detach())
    loss, terms = losses.barlow_twins(a, b, redundancy=0.25)
    torch.testing.assert_close(terms["invariance"] + 0.25 * terms["redundancy"], loss.detach())
    assert not any(term.requires_grad for term in terms.values())


@pytest.mark.parametrize("rows", [64, 1024])
def test_covariances_of_large_embeddings_hold_in_float32(rows: int) -> None:
    """The value after subtraction agrees with float64, in both ways to it."""
    a, b = pair(rows, 512, dtype=torch.float32)
    for ours in (losses.vicreg, losses.barlow_twins):
        _, terms = ours(a, b)
        _, exact = ours(a.double(), b.double())
        for name in terms:
            torch.testing.assert_close(terms[name].double(), exact[name], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("queued", [False, True])
def test_info_nce_is_a_cross_entropy_over_the_keys_of_the_batch_or_key_and_queue(queued: bool) -> None:
    queue = F.normalize(torch.randn(30, 5, dtype=torch.float64), dim=1)

    def plain(queries: Tensor, keys: Tensor) -> Tensor:
        queries, keys = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
        if not queued:
            return F.cross_entropy(queries @ keys.T / 0.2, torch.arange(len(queries)))
        logits = torch.cat(((queries * keys).sum(1, keepdim=True), queries @ queue.T), 1) / 0.2
        return F.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.int64))

    def ours(queries: Tensor, keys: Tensor) -> Tensor:
        return losses.info_nce(queries, keys, temperature=0.2, queue=queue if queued else None)

    assert_same(ours, plain, *pair(9, 5))


def test_info_nce_survives_extreme_similarities() -> None:
    """At a temperature of 0.001 a plain softmax overflows; here value and gradient are finite and right."""
    queries = torch.eye(2, requires_grad=True)
    value = losses.info_nce(queries, -torch.eye(2), temperature=1e-3, queue=torch.eye(2))
    value.backward()
    assert value.item() == pytest.approx(2000)
    assert queries.grad is not None
    assert queries.grad.isfinite().all()


def test_byol_by_hand() -> None:
    angle = math.pi / 3
    prediction_a, prediction_b = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    target_a = torch.tensor([[math.cos(angle), math.sin(angle)]]) * 5  # 30 degrees from prediction b
    target_b = torch.tensor([[math.cos(angle), -math.sin(angle)]])  # 60 degrees from prediction a
    expected = (2 - 2 * 0.5) + (2 - 2 * math.sqrt(3) / 2)
    assert losses.byol(prediction_a, prediction_b, target_a, target_b).item() == pytest.approx(expected)


def test_reconstruction_by_hand() -> None:
    patches = torch.tensor([[[1.0, 3.0], [0.0, 4.0]]])  # normalized by the unbiased variance: ±0.7071
    predictions = torch.zeros_like(patches)
    assert losses.reconstruction(predictions, patches).item() == pytest.approx(0.5, rel=1e-5)
    assert losses.reconstruction(predictions, patches, normalize=False).item() == pytest.approx(26 / 4)


CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nt_xent": lambda a, b: losses.nt_xent(a, b, temperature=0.1),
    "info_nce": lambda a, b: losses.info_nce(a, b, temperature=0.1),
    "queue": lambda a, b: losses.info_nce(a, b, temperature=0.1, queue=F.normalize(torch.ones(3, a.shape[1]), dim=1)),
    "byol": lambda a, b: losses.byol(a, b, b, a),
    "vicreg": lambda a, b: losses.vicreg(a, b)[0],
    "barlow_twins": lambda a, b: losses.barlow_twins(a, b)[0],
    "reconstruction": lambda a, b: losses.reconstruction(a[None], b[None]),
}


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_nothing(name: str) -> None:
    """Half-precision embeddings are widened, and float32 products stay float32."""
    a, b = pair(8, 24, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = CALLS[name](a, b)
    assert value.dtype == torch.float32
    assert torch.equal(value, CALLS[name](a.float(), b.float()))


@pytest.mark.parametrize("name", CALLS)
def test_wrong_shapes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected tensors of one shape.*8, 4.*7, 4"):
        CALLS[name](torch.zeros(8, 4), torch.zeros(7, 4))
    if name in ("vicreg", "barlow_twins"):
        with pytest.raises(ValueError, match="at least 2 rows"):
            CALLS[name](torch.zeros(1, 4), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="queue: expected 4 columns"):
        losses.info_nce(torch.zeros(2, 4), torch.zeros(2, 4), temperature=0.1, queue=torch.zeros(3, 5))
