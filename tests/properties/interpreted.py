"""Steps of LDReg by its kernels, in a process where Triton interprets them; run by test_regularizer.py."""

import sys

import torch
from tests.interpreter import take_small_blocks

from ldreg import LDReg
from ldreg.dimension.cuda import step as fused


def main(path: str, cases: str, outcomes: str) -> None:
    """Value and gradients of every case (batch, reference, self_index, options), on the path named."""
    if path == "screened":
        take_small_blocks()
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
