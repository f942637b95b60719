"""Steps of LDReg by its kernels, in a process where Triton interprets them; run by test_regularizer.py."""

import sys

import torch

from ldreg import LDReg
from ldreg.lid import fused


def main(path: str, cases: str, outcomes: str) -> None:
    """Value and gradients of every case (batch, reference, self_index, options), on the path named."""
    from ldreg.lid import kernels, screening_kernels, step_kernels

    if path == "screened":  # small blocks, so that small cases have several
        screening_kernels.TILES = screening_kernels.Tiles(16, 128, 16, 1, 1, 2)
        kernels.TILES = kernels.Tiles(16, 8, 1)
        step_kernels.SCORES = 16 * 64
    fused.PATH = path  # type: ignore[assignment]
    done = []
    for batch, reference, self_index, options in torch.load(cases):
        x = batch.clone().requires_grad_()
        rows = None if reference is None else reference.clone().requires_grad_()
        assert fused.supports(x, rows, options["k"])
        value = LDReg(**options)(x, rows, self_index=self_index)
        value.backward()
        done.append((value.detach(), x.grad, None if rows is None else rows.grad))
    torch.save(done, outcomes)


if __name__ == "__main__":
    main(*sys.argv[1:])
