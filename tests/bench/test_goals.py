from typing import Any

import pytest

from ldreg.bench.benchmark import Points
from ldreg.bench.record import Result, Run

WIDE, LARGE, FLAT = Points(10_000, 2048), Points(20_000, 2048), Points(10_000, 128)


def test_verdicts_by_hand(lid_run: Run) -> None:
    found = {(verdict.goal.size, verdict.goal.quantity): verdict for verdict in lid_run.verdicts}
    speed = found[WIDE, "speed"]
    assert (speed.value, speed.met, speed.rival, speed.missing) == (1.5, True, "scikit-learn", ())
    large = found[LARGE, "speed"]
    assert (large.value, large.met, large.missing) == (1.2, False, ("scikit-dimension", "faiss", "pseudocode"))
    assert (found[WIDE, "extra memory"].value, found[WIDE, "extra memory"].met) == (100, True)
    assert (found[LARGE, "extra memory"].value, found[LARGE, "extra memory"].met) == (160, False)
    assert (found[FLAT, "speed"].value, found[FLAT, "speed"].met) == (0.9, False)
    assert len(found) == 5


def test_verdicts_of_the_regularizer(fabricate: Any) -> None:
    size = Points(4096, 2048)
    rivals = [fabricate.result("pseudocode", size, 3.0, 400), fabricate.result("cdist + topk", size, 0.1, 1)]
    run = fabricate.run(fabricate.result("ldreg", size, 2.0, 220), *rivals, benchmark="regularizer")
    speed, share = run.verdicts
    assert (speed.value, speed.met) == (1.5, True)
    assert (share.value, share.met) == (0.55, False)
    unknown = fabricate.run(fabricate.result("ldreg", size, 2.0, None), *rivals, benchmark="regularizer").verdicts[1]
    assert (unknown.value, unknown.met) == (None, None)


def test_verdicts_of_the_regularizer_on_a_gpu(fabricate: Any) -> None:
    size = Points(1024, 512)
    results = (
        fabricate.result("ldreg", size, 0.25e-3, 1, host=0.31e-3),
        fabricate.result("ldreg (compiled)", size, 0.2e-3, 1, host=0.1e-3),
        fabricate.result("ldreg (captured)", size, 0.32e-3, 1, host=0.1e-3),
        fabricate.result("pseudocode", size, 1.25e-3, 26, host=1e-3),
        fabricate.result("pseudocode (captured)", size, 1.2e-3, 26, host=1e-4),
    )
    run = fabricate.run(*results, benchmark="regularizer", device="cuda")
    found = {(verdict.goal.of, verdict.goal.quantity): verdict.met for verdict in run.verdicts}
    assert found == {
        ("ldreg", "speed"): True,
        ("ldreg", "time"): True,
        ("ldreg", "host time"): False,
        ("ldreg (compiled)", "time"): True,
        ("ldreg (compiled)", "host time"): True,
        ("ldreg (captured)", "speed"): False,
        ("ldreg (captured)", "time"): False,
        ("ldreg (captured)", "host time"): True,
        ("ldreg", "deviation"): True,
    }
    assert all(verdict.goal.size == size for verdict in run.verdicts)


def test_an_estimate_is_no_measurement_to_beat(fabricate: Any) -> None:
    size = Points(50_000, 2048)
    rival = Result("pseudocode", size, skipped="would take some 300 s", estimate=300.0)
    run = fabricate.run(fabricate.result("ldreg", size, 1.0), rival, device="cuda")
    speed, deviation = run.verdicts
    assert (speed.value, speed.met, speed.missing) == (None, None, ("pseudocode",))
    assert (deviation.value, deviation.met) == (1e-6, True)
    assert run.ratio(rival) == 300


def test_verdicts_of_views(views_run: Run) -> None:
    [verdict] = views_run.verdicts
    assert verdict.value == pytest.approx(4000)  # two views of 128 images in 64 ms
    assert verdict.met is False


def test_verdicts_of_a_step(step_run: Run) -> None:
    found = {verdict.goal.quantity: verdict for verdict in step_run.verdicts}
    assert found["img/s"].value == pytest.approx(512 / 0.0102)
    assert found["LDReg"].value == pytest.approx(0.02)
    assert found["views"].value == pytest.approx(0.0008 / 0.0102)
    assert found["views"].met


def test_no_verdict_without_the_measurements(fabricate: Any) -> None:
    alone = fabricate.run(fabricate.result("ldreg", FLAT, 1.0, 10)).verdicts
    assert [(verdict.value, verdict.met) for verdict in alone] == [(None, None)]
    pair = fabricate.result("ldreg", FLAT, 1.0, 10), fabricate.result("faiss", FLAT, 1.0, 10)
    assert fabricate.run(*pair, k=32).verdicts == ()
    assert fabricate.run(*pair, device="cuda").verdicts == ()
