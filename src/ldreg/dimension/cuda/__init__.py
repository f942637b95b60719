"""CUDA paths behind two entry points: `nearest.nearest` selects candidates, `step.ldreg_step` is LDReg's whole step.

Modules named `*_kernels` import Triton, which is not installed everywhere, and are imported only where they are used.
They launch kernels by `launch`: Triton looks up the compiled variant of a kernel at every call, which takes longer than
the small kernels of this package run. Here it is looked up once for each kind of call. Triton's other work per call
(hooks, checks of where a tensor lies) is also done at the first call only.
"""

from collections.abc import Hashable
from typing import Any

from torch import Tensor

# Triton is changing this default and warns where it is not set.
_OPTIONS = {"enable_fp_fusion": True}
_MOST_KNOWN = 4096  # kinds of calls; beyond this all are forgotten

# The compiled variant for a kind of call, and the constants that follow its arguments.
_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Tensor | float | None, kind: Hashable = None, **constants: Any
) -> None:
    """Run a kernel on a grid of programs, on the current stream of the current device; its tensors must be there.

    Args:
        kernel: made by `triton.jit`, with constants after its arguments.
        grid: one to three numbers.
        arguments: tensors and numbers, in order.
        kind: a short key for this kind of call, if the caller has one. Calls of one kind share the device, dtypes,
            constants, options, integers, alignment of addresses to 16 bytes, and the places of floats.
        constants: the kernel's constants, in capitals, and Triton's options, such as `num_warps`.
    """
    key = (id(kernel), _kind(arguments, constants) if kind is None else kind)
    if key in _known:
        compiled, tail = _known[key]
        # Addresses as numbers, since for a tensor Triton asks the driver where it is.
        words = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
        compiled[(*grid, 1, 1)](*words, *tail)
        return
    compiled = kernel[grid](*arguments, **constants, **_OPTIONS)
    if compiled is not None:  # Triton's interpreter compiles nothing
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        names = kernel.arg_names[len(arguments) :]
        _known[key] = compiled, tuple(constants[name] for name in names)


def _kind(arguments: tuple[Any, ...], constants: dict[str, Any]) -> Hashable:
    """All that selects a variant: dtypes, alignment of addresses to 16 bytes, and integers, here by value."""
    return (
        *sorted((name, type(value), value) for name, value in constants.items()),
        *[
            (each.dtype, each.get_device(), each.data_ptr() % 16)
            if isinstance(each, Tensor)
            else (type(each), each if isinstance(each, int) else None)
            for each in arguments
        ],
    )


def blocks(total: int, size: int) -> int:
    """Number of blocks of a size that cover a total.

    >>> blocks(10, 4)
    3
    """
    return -(-total // size)


def power_of_2(number: int) -> int:
    """The smallest power of two not below the number.

    >>> [power_of_2(number) for number in (1, 5, 64)]
    [1, 8, 64]
    """
    return 1 << (number - 1).bit_length()
