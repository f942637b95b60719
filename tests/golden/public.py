"""Cases of the public Python names: signatures, and values on fixed input."""

import inspect
from typing import Any

import numpy
import torch
from tests.golden.cases import case
from tests.golden.frozen import round_trip
from tests.golden.place import Place

import ldreg


def points(n: int = 400, dimensions: int = 16, seed: int = 0) -> numpy.ndarray:
    """Points of which the second quarter is nearly flat."""
    draw = numpy.random.default_rng(seed)
    x = draw.normal(size=(n, dimensions)).astype("float32")
    x[n // 4 : n // 2, 3:] *= 0.02
    return x


@case()
def public_names(place: Place) -> Any:
    signatures: dict[str, Any] = {}
    for name in sorted(ldreg.__all__):
        one = getattr(ldreg, name)
        if one is not ldreg.DimensionReport:  # made by `inspect`, not by users; its attributes are in public_inspect
            signatures[name] = parameters(one)
    return {"at_least": sorted(ldreg.__all__), "signatures": signatures}


def parameters(one: Any) -> list[str]:
    """Kind, name and default of every parameter."""
    return [
        f"{parameter.kind.name} {name}" + ("" if parameter.default is parameter.empty else f" = {parameter.default!r}")
        for name, parameter in inspect.signature(one).parameters.items()
    ]


@case()
def public_values(place: Place) -> Any:
    x = torch.from_numpy(points())
    found: dict[str, Any] = {}
    for estimator in ("mom", "mle", "tle"):
        for convention in ("paper", "pseudocode"):
            if estimator == "tle" and convention == "pseudocode":
                continue
            value = ldreg.lid(x, k=20, estimator=estimator, convention=convention)
            found[f"lid {estimator} {convention}"] = value.tolist()
    found["lid float64"] = ldreg.lid(x.double(), k=20).tolist()
    found["lid reference"] = ldreg.lid(x[:50], reference=x[50:], k=20).tolist()
    lid = ldreg.lid(x, k=20)
    found["geometric_mean"] = float(ldreg.geometric_mean(lid))
    found["frechet_variance"] = float(ldreg.frechet_variance(lid))
    found["fisher_rao"] = ldreg.fisher_rao(lid[:10], lid[10:20]).tolist()
    found["effective_rank"] = float(ldreg.effective_rank(x))
    found["global_dimension twonn"] = ldreg.global_dimension(x, estimator="twonn")
    found["global_dimension danco"] = ldreg.global_dimension(x)
    distances = ldreg.neighbor_distances(x, k=5)
    found["neighbor_distances"] = distances.tolist()
    variants: dict[str, dict[str, Any]] = {
        "l1": {},
        "l2": {"norm": "l2"},
        "frechet": {"norm": "frechet", "target": 9.0},
        "target": {"target": 5.0},
        "minimize": {"direction": "minimize"},
        "mle": {"estimator": "mle"},
        "pseudocode": {"convention": "pseudocode"},
        "reference_grad": {"reference_grad": True},
    }
    for name, options in variants.items():
        z = x[:128].clone().requires_grad_()
        loss = ldreg.LDReg(k=16, beta=0.1, **options)(z)
        loss.backward()
        assert z.grad is not None
        found[f"LDReg {name}"] = [float(loss.detach()), float(z.grad.abs().sum()), z.grad[3].tolist()]
    regularizer = ldreg.LDReg(k=16, beta=0.1, queue_size=256)
    found["LDReg queue"] = [float(regularizer(x[i : i + 64])) for i in range(0, 320, 64)]
    return found


@case()
def public_inspect(place: Place) -> Any:
    x = points()
    report = ldreg.inspect(x, labels=["even", "odd"] * 200, k=20)
    mapping = report.to_dict()
    report.to_json(place.folder / "report.json")
    assert place.json("report.json") == round_trip(mapping)
    attributes = sorted(name for name in dir(report) if not name.startswith("_"))
    return {"mapping": mapping, "attributes": {"at_least": attributes}, "lid": report.lid.tolist()}
