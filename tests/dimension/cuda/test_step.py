"""The fused step against the plain way: on the CPU through Triton's interpreter, and on a CUDA device.

The interpreter must be asked for before Triton is imported, so this file also runs as a script in a process of its own.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from tests.interpreter import needs_interpreter, run_interpreted, take_small_blocks
from tests.points import normal
from torch import Tensor
from torch.autograd import forward_ad

from ldreg import LDReg
from ldreg.dimension import cuda as launching
from ldreg.dimension.cuda import step as fused
from ldreg.dimension.estimators import lid


class Case(NamedTuple):
    """Rows, where to look for neighbors, which of them each row is, and LDReg's options."""

    x: Tensor
    reference: Tensor | None = None
    self_index: Tensor | None = None
    options: dict[str, Any] = {}  # noqa: RUF012


COLLAPSED_IN_PART = torch.cat((normal(10, 5), torch.full((5, 5), 9.0)))


def byol() -> Case:
    both = normal(40, 9, seed=1)
    own = torch.arange(13)
    own[::4] = -1
    return Case(both[:13], both, own, {"k": 7, "norm": "l2"})


def its_own_reference() -> Case:
    """Neighbors are sought in the rows themselves, and none is left out."""
    x = normal(15, 6, seed=7)
    return Case(x, x, options={"k": 5, "reference_grad": True})


def some(**options: Any) -> Callable[[], Case]:
    return lambda: Case(normal(18, 11), options={"k": 6, **options})


def shape(n: int, m: int | None, dim: int, k: int) -> Callable[[], Case]:
    return lambda: Case(normal(n, dim, seed=dim), None if m is None else normal(m, dim, seed=k), options={"k": k})


# Options take turns over the shapes, so that a short run meets all of them.
CASES: dict[str, Callable[[], Case]] = {
    "smallest": lambda: Case(torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 3.0]]), options={"k": 2}),
    "awkward": lambda: Case(normal(21, 37), options={"k": 8, "target": 3.0}),
    "two tiles": lambda: Case(normal(7, 17), normal(131, 17, seed=2), options={"k": 33, "convention": "pseudocode"}),
    "wide": lambda: Case(normal(5, 700), normal(19, 700, seed=3), options={"k": 11, "norm": "l2", "target": 40.0}),
    "many neighbors": lambda: Case(normal(4, 3), normal(301, 3, seed=4), options={"k": 200, "direction": "minimize"}),
    "all candidates": lambda: Case(normal(9, 6), options={"k": 8, "norm": "frechet", "target": 2.0}),
    "byol": byol,
    "offset": lambda: Case(normal(14, 20) * 0.02 + 300, options={"k": 5}),
    "1e-20": lambda: Case(normal(12, 6) * 1e-20, options={"k": 5, "convention": "pseudocode", "norm": "l2"}),
    "1e20": lambda: Case(normal(12, 6) * 1e20, options={"k": 5}),
    "least": lambda: Case(normal(12, 6) * 1e-36, options={"k": 5}),
    "largest": lambda: Case(normal(12, 6) * 2e37, options={"k": 5}),
    "tiny cluster": lambda: Case(
        normal(18, 5) * torch.where(torch.arange(18) < 10, 1e-25, 1.0)[:, None], options={"k": 4}
    ),
    "doubled": lambda: Case(normal(7, 6).repeat(2, 1), options={"k": 5, "norm": "l2"}),
    "one-hot": lambda: Case(torch.eye(4)[torch.arange(14) % 4], options={"k": 5}),
    "simplex": lambda: Case(torch.eye(9), options={"k": 4}),
    "constant": lambda: Case(torch.full((9, 3), 0.1), options={"k": 4, "norm": "l2"}),
    "half regular": lambda: Case(torch.cat((normal(10, 4) + 9, torch.zeros(6, 4))), options={"k": 5, "norm": "l2"}),
    "bfloat16": lambda: Case(normal(12, 24).bfloat16(), normal(20, 24, seed=5), options={"k": 5}),
    "no self in it": lambda: Case(normal(9, 4), normal(9, 4), options={"k": 3, "convention": "pseudocode"}),
    "reference_grad": some(reference_grad=True, target=2.0),
    "its own reference": its_own_reference,
    "strided self": lambda: byol()._replace(
        self_index=torch.stack((torch.arange(13), torch.zeros(13)), 1).long()[:, 0]
    ),
    "reference_grad, BYOL": lambda: byol()._replace(options={"k": 7, "reference_grad": True}),
}

MORE: dict[str, Callable[[], Case]] = {
    **{f"target {norm}": some(target=4.0, norm=norm) for norm in ("l1", "l2", "frechet")},
    **{f"pseudocode {norm}": some(target=4.0, norm=norm, convention="pseudocode") for norm in ("l1", "l2", "frechet")},
    "minimize l2": some(direction="minimize", norm="l2", convention="pseudocode"),
    "no strength": some(beta=0.0),
    "70 x 70 x 2, k = 3": shape(70, None, 2, 3),
    "66 x 66 x 129, k = 65": shape(66, None, 129, 65),
    "129 x 129 x 31, k = 4": shape(129, None, 31, 4),
    "3 x 513 x 65, k = 128": shape(3, 513, 65, 128),
    "2 x 1025 x 16, k = 199": shape(2, 1025, 16, 199),
}


def clusters(count: int) -> Tensor:
    """Points around two centers, in turn, so narrow that float16 cannot tell those of one center apart."""
    return normal(2, 9, seed=8).repeat(count // 2, 1) + 1e-6 * normal(count, 9, seed=9)


# What only the tensor cores care about: all rows are proven, all are in doubt, and some of each.
SCREENED: dict[str, Callable[[], Case]] = {
    "proven": lambda: Case(normal(45, 5), options={"k": 3, "norm": "l2"}),
    "in doubt": lambda: Case(clusters(46), options={"k": 3}),
    "some in doubt": lambda: Case(torch.cat((clusters(42), normal(20, 9) + 30)), options={"k": 3, "target": 2.0}),
}

# Met at every run of the tests; the others are slow in the interpreter.
SHORT = [
    "awkward",
    "two tiles",
    "byol",
    "its own reference",
    "strided self",
    "tiny cluster",
    "doubled",
    "constant",
    "bfloat16",
    "reference_grad",
]

# Which of several equally far rows is the k-th neighbor is open, and so is where the gradient points.
TIED = ["one-hot"]

NOT_FINITE: dict[str, Callable[[], Case]] = {
    "NaN": lambda: Case(torch.cat((normal(8, 3), torch.full((1, 3), torch.nan))), options={"k": 4}),
    "inf": lambda: Case(torch.cat((normal(8, 3), torch.full((1, 3), -torch.inf))), options={"k": 4, "norm": "l2"}),
    "NaN far off": lambda: Case(normal(5, 3), torch.cat((normal(8, 3), torch.full((1, 3), torch.nan)))),
}


class Outcome(NamedTuple):
    value: Tensor
    gradient: Tensor
    reference_gradient: Tensor | None
    regular_share: Tensor | None = None


def step(case: Case, path: str, *, compiled: bool = False) -> Outcome:
    """Value and gradients of one step on the given path."""
    x = case.x.detach().requires_grad_()
    reference = x if case.reference is case.x else None
    if case.reference is not None and reference is None:
        reference = case.reference.clone().requires_grad_()
    reg = LDReg(**({"k": 4, "beta": 0.7} | case.options))
    before, fused.PATH = fused.PATH, path  # type: ignore[assignment]
    try:
        value = (torch.compile(reg, fullgraph=True, backend="aot_eager") if compiled else reg)(
            x, reference, self_index=case.self_index
        )
        value.backward()
    finally:
        fused.PATH = before
    assert x.grad is not None
    return Outcome(value.detach(), x.grad, None if reference is None else reference.grad, reg.regular_share)


def assert_same(got: Outcome, expected: Outcome, name: str, tolerance: float = 5e-5) -> None:
    """Equal to what rounding of float32 distances leaves, which LID magnifies; bfloat16 rounds the gradient again.

    The plain way in float32 is itself up to 2.3e-5 off float64 in these cases.
    """
    torch.testing.assert_close(got.value, expected.value, rtol=tolerance, atol=1e-7, msg=lambda m: f"{name}: {m}")
    torch.testing.assert_close(got.regular_share, expected.regular_share, msg=lambda m: f"{name}: {m}")
    for ours, theirs in zip(got[1:3], expected[1:3], strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is None or theirs is None:
            continue
        assert ours.dtype == theirs.dtype
        assert torch.isfinite(ours).all(), name
        if name not in TIED:
            room = (2**-7 if ours.dtype == torch.bfloat16 else tolerance) * theirs.float().abs().max()
            assert (ours.float() - theirs.float()).abs().max() <= room, name


def main(out: str, path: str, *names: str) -> None:
    compiled, path = path == "compiled", "screened" if path == "screened" else "differences"
    if path == "screened":
        take_small_blocks()
    cases = CASES | MORE | NOT_FINITE | SCREENED
    shares = watch_doubt()
    outcomes: dict[str, tuple[Tensor | None, ...]] = {}
    doubtful: list[Tensor] = []
    for name in names:
        outcomes[name] = tuple(step(cases[name](), path, compiled=compiled))
        doubtful += shares[-1:] if name in SCREENED else []
    outcomes["sum"] = sum_of_squares(path)
    if doubtful:
        outcomes["doubtful"] = (torch.cat(doubtful), torch.zeros(0), None)
    torch.save(outcomes, out)


def watch_doubt() -> list[Tensor]:
    """The share of rows that the tensor cores leave in doubt, of each step from now on that asks them."""
    from ldreg.dimension.cuda import large_step_kernels

    shares: list[Tensor] = []
    measure = large_step_kernels.measure

    def watched(x: Tensor, *arguments: Any, **options: Any) -> Any:
        queue = measure(x, *arguments, **options)
        shares.append(queue.waiting / len(x))
        return queue

    large_step_kernels.measure = watched
    return shares


def sum_of_squares(path: str) -> tuple[Tensor, Tensor, Tensor]:
    """What ranks add up before they take a mean: the sum and its gradient, and how many points it is over."""
    x = COLLAPSED_IN_PART.clone().requires_grad_()
    fused.PATH = path  # type: ignore[assignment]
    value, totals = fused.ldreg_step(x, 4, reduction=fused.Reduction(True, "square", "sum", 0.3, 1.0))
    (gradient,) = torch.autograd.grad(3 * value, x)
    return value.detach(), gradient, totals[1]


EVERY = [*CASES, *MORE]
OTHERS = [name for name in EVERY if name not in SHORT]


@needs_interpreter
@pytest.mark.parametrize(
    ("path", "names", "not_finite"),
    [
        ("differences", SHORT, ["NaN"]),
        ("screened", ["awkward", "two tiles", "byol", "offset", "bfloat16", *SCREENED], ["NaN"]),
        pytest.param(
            "differences", [name for name in EVERY if name not in SHORT], [*NOT_FINITE], marks=pytest.mark.slow
        ),
        pytest.param("screened", [*EVERY, *SCREENED], [*NOT_FINITE], marks=pytest.mark.slow),
        pytest.param("compiled", ["awkward", "bfloat16", "reference_grad", "half regular"], [], marks=pytest.mark.slow),
    ],
    ids=["differences", "screened", "differences of all", "screened of all", "compiled"],
)
def test_interpreted_kernels_equal_the_plain_way(
    path: str, names: list[str], not_finite: list[str], tmp_path: Path
) -> None:
    run_interpreted(__file__, str(tmp_path / "outcomes.pt"), path, *names, *not_finite)
    outcomes = {name: Outcome(*saved) for name, saved in torch.load(tmp_path / "outcomes.pt").items()}
    for name in names:
        assert_same(outcomes[name], step((CASES | MORE | SCREENED)[name](), "plain"), name)
    for name in not_finite:
        assert outcomes[name].value.isnan()
        assert outcomes[name].gradient.isnan().all()
    if "constant" in names:
        assert outcomes["constant"].value == 0
        assert not outcomes["constant"].gradient.any()
    if path == "screened":
        proven, in_doubt, some = outcomes["doubtful"].value.tolist()
        assert proven == 0
        assert in_doubt == 1
        assert 0 < some < 1
    x = COLLAPSED_IN_PART.clone().requires_grad_()
    logs = lid(x, 4)[:10].log() - 0.3
    (gradient,) = torch.autograd.grad(3 * logs.square().sum(), x)
    assert outcomes["sum"].reference_gradient == 10
    torch.testing.assert_close(outcomes["sum"].value, logs.square().sum())
    torch.testing.assert_close(outcomes["sum"].gradient[:10], gradient[:10], rtol=1e-4, atol=1e-5)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is launched, and nothing runs: kernel, key and what Triton would tell variants apart by."""
    modules = [
        pytest.importorskip(f"ldreg.dimension.cuda.{name}_kernels") for name in ("step", "large_step", "nearest")
    ]
    seen: list[tuple[Any, ...]] = []

    def record(kernel: Any, grid: Any, *arguments: Any, kind: Any = None, **constants: Any) -> None:
        key = launching._kind(arguments, constants) if kind is None else kind
        told = [(name, type(value), value) for name, value in sorted(constants.items())]
        seen.append((kernel, key, (*map(specialized, arguments), *told)))
        for each in arguments:
            if isinstance(each, Tensor) and each.dtype == torch.int32:
                each.zero_()  # places, which must be some rows'

    for module in modules:
        monkeypatch.setattr(module, "launch", record)
    monkeypatch.setattr(fused, "PATH", "differences")
    return seen


def specialized(argument: Any) -> Any:
    """By what Triton compiles anew for an argument."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return type(argument), argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    return type(argument)


TRAITS: dict[str, tuple[Any, ...]] = {
    "n": (20, 32, 65),
    "dim": (1, 16, 17, 600),
    "dtype": (torch.float32, torch.float16, torch.bfloat16),
    "start": (0, 1, 4),
    "turned": (False, True),
    "m": (None, 20, 48, 300),
    "reference_dtype": (torch.float32, torch.bfloat16),
    "reference_start": (0, 1),
    "own": (None, 0, 1),
    "k": (2, 3, 15, 16),
    "beta": (1, 0.5, 0),
    "norm": ("l1", "l2"),
    "target": (None, 2.0, 3),
    "convention": ("paper", "pseudocode"),
    "reference_grad": (False, True),
    "path": ("differences", "screened"),
    "tiles": ((), (16, 8, 1), (64, 16, 4, False)),
}


def with_traits(traits: dict[str, Any]) -> Case:
    """A case of these shapes, types, addresses and options; values do not matter."""

    def matrix(rows: int, start: int, dtype: torch.dtype) -> Tensor:
        flat = torch.zeros(rows * traits["dim"] + start, dtype=dtype)[start:]
        return flat.view(traits["dim"], rows).T if traits["turned"] else flat.view(rows, traits["dim"])

    n, m = traits["n"], traits["m"]
    reference = None if m is None else matrix(m, traits["reference_start"], traits["reference_dtype"])
    own = None if m is None or traits["own"] is None else torch.zeros(n + 1, dtype=torch.int64)[traits["own"] :][:n]
    options = {name: traits[name] for name in ("k", "beta", "norm", "target", "convention", "reference_grad")}
    return Case(matrix(n, traits["start"], traits["dtype"]), reference, own, options)


def nearly_alike(choose: Random) -> Iterator[dict[str, Any]]:
    """Traits at random, and then the same but for one of them."""
    traits = {name: choose.choice(values) for name, values in TRAITS.items()}
    yield traits
    for name, values in TRAITS.items():
        yield from (traits | {name: value} for value in values)


def test_calls_of_one_kind_are_of_one_variant(launches: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a kernel would be launched that was compiled for other numbers."""
    from ldreg.dimension.cuda import step_kernels

    choose = Random(0)
    for traits in (each for _ in range(12) for each in nearly_alike(choose)):
        monkeypatch.setattr(step_kernels, "TILES", step_kernels.Tiles(*traits["tiles"]))
        monkeypatch.setattr(fused, "PATH", traits["path"])
        x, reference, own, options = with_traits(traits)
        value = LDReg(**options)(x.requires_grad_(), reference, self_index=own)
        (0 * value).backward()
    variants: dict[Any, Any] = {}
    for kernel, key, variant in launches:
        assert variants.setdefault((id(kernel), key), variant) == variant, kernel
    assert len(variants) > 1000


@pytest.mark.parametrize("reference_grad", [False, True])
def test_a_second_derivative_is_an_error(
    launches: list[tuple[Any, ...]], reference_grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("differences", "plain"):
        monkeypatch.setattr(fused, "PATH", path)
        x = normal(40, 3).requires_grad_()
        value = LDReg(k=4, reference_grad=reference_grad)(x) + x.pow(3).sum()
        with pytest.raises(RuntimeError, match="expected create_graph=False, as they have no second derivative"):
            torch.autograd.grad(value, x, create_graph=True)
    assert launches


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")  # torch.func's own
def test_transforms_go_the_plain_way(launches: list[tuple[Any, ...]]) -> None:
    x = normal(40, 3)
    torch.func.grad(LDReg(k=4))(x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError):
        LDReg(k=4)(forward_ad.make_dual(x, torch.ones_like(x)))
    assert not launches


def test_the_plain_way_is_taken_on_the_cpu_in_float64_and_for_large_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fused.supports(normal(9, 2), None, 4)
    assert not fused.supports(torch.empty(8192, 2048), None, 64)
    monkeypatch.setattr(fused, "PATH", "differences")
    assert fused.supports(normal(9, 2), None, 4)
    assert not fused.supports(normal(9, 2).double(), None, 4)
    assert not fused.supports(normal(9, 2), normal(9, 2).double(), 4)
    assert not fused.supports(torch.empty(9, 2), torch.empty(1 << 15, 2), 4)
    assert not fused.supports(torch.empty(10_000, 2), None, 4)


def on_cuda(case: Case) -> Case:
    _, reference, self_index, options = case
    x = case.x.cuda()
    return Case(
        x,
        None if reference is None else x if reference is case.x else reference.cuda(),
        None if self_index is None else self_index.cuda(),
        options,
    )


def on_cpu(outcome: Outcome) -> Outcome:
    return Outcome(*(None if tensor is None else tensor.cpu() for tensor in outcome))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["auto", "screened"])
@pytest.mark.parametrize("name", [*EVERY, *SCREENED, *NOT_FINITE])
def test_cuda_equals_the_cpu(name: str, path: str) -> None:
    case = (CASES | MORE | SCREENED | NOT_FINITE)[name]()
    assert path == "screened" or fused.supports(*on_cuda(case)[:2], case.options.get("k", 64))
    for _ in range(2):  # the second is launched by what the first compiled
        got = on_cpu(step(on_cuda(case), path))
        if name in NOT_FINITE:
            assert got.value.isnan()
            assert got.gradient.isnan().all()
        else:
            assert_same(got, step(case, "plain"), name)


REAL: dict[str, Callable[[], Case]] = {
    "ResNet-18": lambda: Case(normal(1024, 512), options={"k": 64}),
    "after ReLU": lambda: Case(normal(1024, 512).relu(), options={"k": 64, "norm": "l2"}),
    "offset": lambda: Case(normal(2048, 512) * 0.02 + 31, options={"k": 64}),
    "ResNet-50": lambda: Case(normal(2048, 2048), options={"k": 128, "target": 50.0}),
    "BYOL": lambda: Case(normal(1000, 300), normal(3000, 300), torch.arange(1000), {"k": 100, "norm": "l2"}),
    "bfloat16": lambda: Case(normal(1024, 512).bfloat16(), options={"k": 64}),
    "reference_grad": lambda: Case(normal(1024, 512), options={"k": 64, "reference_grad": True}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL)
def test_cuda_equals_the_cpu_at_real_sizes(name: str) -> None:
    """Differences of LID are those of float32 distances times LID, so gradients of high LID agree to fewer digits.

    In a few of thousands of rows the k-th and the next neighbor are equally far to float32, and either may be taken.
    """
    case = REAL[name]()
    got, expected = on_cpu(step(on_cuda(case), "auto")), step(case, "plain")
    torch.testing.assert_close(got.value, expected.value, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(got.regular_share, expected.regular_share)
    for ours, theirs in zip(got[1:3], expected[1:3], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.isfinite(ours).all()
            room = (2**-7 if ours.dtype == torch.bfloat16 else 2e-3) * theirs.float().abs().max()
            other = ((ours.float() - theirs.float()).abs() > room).any(1)
            assert other.float().mean() < 0.02, f"{int(other.sum())} of {len(other)} rows differ"


@pytest.mark.gpu
@pytest.mark.parametrize("screened", [False, True])
@pytest.mark.parametrize("offset", [0.0, 31.0])
def test_cuda_lid_is_right_for_every_point(offset: float, screened: bool) -> None:
    from ldreg.dimension.cuda import large_step_kernels, step_kernels

    x = normal(4096, 2048) * 0.02 + offset
    reduction = fused.Reduction(True, "plain", "mean", 0.0, 1.0)
    outcome = (large_step_kernels if screened else step_kernels).forward(x.cuda(), None, None, 64, reduction)
    some = torch.arange(0, 4096, 64)
    exact = lid(x[some].double(), 64, x.double(), self_index=some)
    error = outcome.rows[0, some.cuda()].double().exp().cpu() / exact - 1
    assert error.abs().max() < 1e-3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("path", ["auto", "screened"])
@pytest.mark.parametrize("options", [{}, {"norm": "l2", "target": 20.0}, {"reference_grad": True}], ids=str)
def test_cuda_step_does_not_wait(options: dict[str, Any], path: str) -> None:
    case = on_cuda(Case(normal(512, 64), options={"k": 32, **options}))
    expected = step(case, path)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = step(case, path)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(got, expected, str(options))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_cuda_step_takes_few_launches() -> None:
    case = on_cuda(REAL["ResNet-18"]())
    reg, x = LDReg(k=64), case.x.requires_grad_()
    reg(x).backward()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.autograd.grad(reg(x), x)
        torch.cuda.synchronize()
    launches = [event for event in profile.events() or [] if "CUDA" in str(event.device_type)]
    assert 0 < len(launches) <= 12, [event.name for event in launches]


@pytest.mark.gpu
def test_cuda_compiled_equals_eager() -> None:
    for name in ("awkward", "reference_grad", "bfloat16"):
        case = on_cuda(CASES[name]())
        assert_same(step(case, "auto", compiled=True), step(case, "auto"), name)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["auto", "screened"])
def test_cuda_step_can_be_captured(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "PATH", path)
    x = normal(256, 32).cuda().requires_grad_()
    reg = LDReg(k=16)
    (expected,) = torch.autograd.grad(reg(x), x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(reg(x), x)
    graph.replay()
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
