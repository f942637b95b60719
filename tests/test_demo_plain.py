"""The demo's runs in plain PyTorch, for where the training extra is not installed."""

import pytest
import torch

from ldreg.demo_plain import plain_run


def test_ldreg_raises_local_and_global_dimension() -> None:
    before = torch.random.get_rng_state()
    plain, regularized = (plain_run("SimCLR", beta=beta, epochs=6, thumbnails=6) for beta in (0.0, 0.3))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert regularized.results["lid"] > plain.results["lid"]
    assert regularized.results["effective_rank"] > 1.1 * plain.results["effective_rank"]
    assert (plain.settings["regularizer"], regularized.settings["regularizer"]) == ("none", "ldreg")
    assert regularized.settings["ldreg.beta"] == 0.3
    for run in (plain, regularized):
        assert run.results["linear"] > 0.9
        assert run.results["knn"] > 0.6
        assert len(run.lid) == len(run.map) == run.images == 1797 - 360
        assert [image.lid for image in run.most_collapsed] == pytest.approx(sorted(run.lid)[:6])
        assert [epoch for epoch, _ in run.curves["lid"]] == [6]
        assert len(run.curves["loss"]) == 6


def test_same_seed_same_run() -> None:
    first, second, other = (plain_run("SimCLR", beta=0.1, epochs=1, seed=seed) for seed in (0, 0, 1))
    assert first.lid == second.lid
    assert first.lid != other.lid


def test_no_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="epochs: expected at least 1, got 0"):
        plain_run("SimCLR", beta=0.0, epochs=0)
