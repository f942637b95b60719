"""Launches of Triton's kernels that cost the host little.

Triton finds out anew at every call which compiled variant of a kernel is meant, which takes longer than the small
kernels of this package run. Here it is asked once for each kind of call. What else Triton does at every
call, as hooks before a run or a check of where a tensor lies, is done at the first alone.
"""

from collections.abc import Hashable
from typing import Any

from torch import Tensor

# Triton is changing its default for this, and warns where it is not said.
_OPTIONS = {"enable_fp_fusion": True}
_MOST_KNOWN = 4096  # kinds of calls, beyond which all are forgotten: whoever changes shapes so often waits anyway

# The compiled variant for a kind of call, and the constants it takes after the arguments.
_known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Tensor | float | None,
    kind: Hashable = None,
    **constants: Any,
) -> None:
    """Run a kernel on a grid of programs, on the current stream of the current device, where its tensors must be.

    Args:
        kernel: what `triton.jit` made, whose constants come after its arguments.
        grid: one to three numbers.
        arguments: tensors and numbers, in order.
        kind: what tells this kind of call from others of the kernel, where the caller knows it in fewer words: calls
            of one kind have the same device, dtypes, constants, options, whole numbers and alignment of addresses to
            16 bytes, and floats in the same places.
        constants: those of the kernel, named in capitals, and Triton's own options, such as `num_warps`.
    """
    key = (id(kernel), _kind(arguments, constants) if kind is None else kind)
    known = _known.get(key)
    if known is None:
        _first(key, kernel, grid, arguments, constants)
    else:
        compiled, tail = known
        # Addresses as numbers, since of a tensor Triton asks the driver where it is.
        words = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
        compiled[(*grid, 1, 1)](*words, *tail)


def _kind(arguments: tuple[Any, ...], constants: dict[str, Any]) -> Hashable:
    """What Triton tells variants apart by: dtypes, whether addresses are multiples of 16, traits of whole numbers.

    For those traits the numbers themselves stand here.
    """
    return (
        *sorted((name, type(value), value) for name, value in constants.items()),
        *[
            (each.dtype, each.get_device(), each.data_ptr() % 16)
            if isinstance(each, Tensor)
            else (type(each), each if isinstance(each, int) else None)
            for each in arguments
        ],
    )


def _first(
    key: tuple[Any, ...], kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
) -> None:
    compiled = kernel[grid](*arguments, **constants, **_OPTIONS)
    if compiled is None:  # by Triton's interpreter, which compiles nothing
        return
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    names = kernel.arg_names[len(arguments) :]
    _known[key] = compiled, tuple(constants[name] for name in names)


def blocks(total: int, size: int) -> int:
    """How many blocks of a size cover a total.

    >>> blocks(10, 4)
    3
    """
    return -(-total // size)


def power_of_2(number: int) -> int:
    """The smallest power of two that is at least the number.

    >>> [power_of_2(number) for number in (1, 5, 64)]
    [1, 8, 64]
    """
    return 1 << (number - 1).bit_length()
