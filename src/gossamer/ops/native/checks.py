"""What the registered operators ask of their arguments before a kernel gets an address.

Layers check their inputs where they choose a backend, and their patterns are derived, not given. An
operator may be called by anybody with anything: a wrong size would be a read beyond an array.
Sizes, dtypes and memory are asked in every call, the positions of a pattern once as long as it
stays as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.ops.layout import Layout
from gossamer.ops.native.geometry import decode, output_shape
from gossamer.ops.native.kernels import Call
from gossamer.ops.native.library import DTYPES
from gossamer.ops.native.orders import ORDERS, derive
from gossamer.ops.torch_private import version_of

_MOST_WEIGHTS = 2**31


def require_memory(name: str, tensor: Tensor) -> None:
    """Raise unless a tensor is dense and its values lie in the memory of this process.

    Those of other devices do not, nor those of wrappers: fake, functional and distributed tensors.
    """
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        where = f"{tensor.layout} on {tensor.device}"
        raise InvalidData(name, where, "must be a dense tensor on the CPU", "use backend='masked'")
    if tensor.is_neg() or tensor.is_conj():
        raise InvalidData(name, None, "must hold its own values", "give tensor.resolve_neg()")
    try:
        has_values = tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        has_values = False
    if not has_values:
        kind = type(tensor).__name__
        raise InvalidData(name, kind, "has no memory of its own", "give the tensor it stands for")


def require(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise unless a tensor has memory, this shape and this dtype."""
    require_memory(name, tensor)
    if tensor.dtype != dtype:
        raise InvalidData(name, str(tensor.dtype), f"must be {dtype}", "convert it")
    if tuple(tensor.shape) != tuple(shape):
        raise InvalidData(name, tuple(tensor.shape), f"must have the shape {tuple(shape)}")


def require_float(name: str, tensor: Tensor) -> torch.dtype:
    """Raise unless a tensor has memory and a dtype of the kernels, which is returned."""
    require_memory(name, tensor)
    if tensor.dtype not in DTYPES:
        raise InvalidData(name, str(tensor.dtype), "must be float32 or float64", "convert it")
    return tensor.dtype


def require_seed(seed: Tensor) -> None:
    """Raise unless a tensor is a seed."""
    require("seed", seed, (), torch.int64)


def checked_call(
    indices: Tensor, derived: Sequence[Tensor], growth: Sequence[Tensor], spec: Sequence[int]
) -> Call:
    """The call that an operator's last arguments stand for, after they were checked."""
    layout = layout_of(spec)
    if len(derived) != len(ORDERS):
        raise InvalidData(
            "derived", len(derived), f"must be the {len(ORDERS)} tensors of a pattern"
        )
    if len(growth) not in (0, 5):
        raise InvalidData("growth", len(growth), "must be the 5 buffers of an armed layer, or none")
    _require_pattern(indices, tuple(derived), layout)
    return Call(indices, derived, growth, layout)


def require_input(x: Tensor, layout: Layout) -> tuple[torch.dtype, list[int]]:
    """Raise unless a layer takes this input; its dtype and the shape of the output."""
    dtype = require_float("x", x)
    shape = tuple(x.shape)
    if len(shape) != 2 + layout.dims or shape[1] != layout.channels:
        rule = f"must have {2 + layout.dims} axes and {layout.channels} channels"
        raise InvalidData("x", shape, rule, "batch and channels come first")
    found = output_shape(layout, shape)
    if any(size < 1 for size in found[2:]):
        raise InvalidData("x", shape, f"is too small for the kernel: the output would be {found}")
    return dtype, found


def require_product(
    x: Tensor, values: Tensor, variance: Tensor | None, bias: Tensor | None, call: Call
) -> None:
    """Raise unless these are the arguments of a forward pass of the call."""
    dtype, _ = require_input(x, call.layout)
    require("values", values, call.indices.shape, dtype)
    if variance is not None:
        require("variance", variance, call.indices.shape, dtype)
    if bias is not None:
        require("bias", bias, (call.layout.fan_out,), dtype)


def require_backward(
    gradient: Tensor,
    gradient2: Tensor | None,
    slope: Tensor | None,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    call: Call,
) -> None:
    """Raise unless these are the arguments of a backward pass of the call."""
    dtype, output = require_input(x, call.layout)
    require("gradient", gradient, output, dtype)
    require("mean", mean, call.indices.shape, dtype)
    if variance is not None:
        require("variance", variance, call.indices.shape, dtype)
        if (slope is None) == (gradient2 is None):
            raise InvalidData("slope, gradient2", None, "exactly one must be given with a variance")
    if gradient2 is not None:
        require("gradient2", gradient2, output, dtype)
    if slope is not None:
        require("slope", slope, output[::-1] if call.layout.is_linear else output, dtype)
        if not slope.is_contiguous():
            raise InvalidData("slope", slope.stride(), "must be contiguous, as it was written")


def layout_of(spec: Sequence[int]) -> Layout:
    """The layout that ``geometry.encode`` wrote down, or an error."""
    return _layout(tuple(spec))


@lru_cache(maxsize=4096)
def _layout(spec: tuple[int, ...]) -> Layout:
    dims, rest = divmod(len(spec) - 5, 6)
    is_whole = rest == 0 and 0 <= dims <= 3 and all(abs(value) < _MOST_WEIGHTS for value in spec)
    if not is_whole or not 0 <= spec[0] <= 2 or spec[2] not in (0, 1):
        raise _no_layout(spec)
    layout = decode(spec)
    slow = layout.shape[0]
    is_sane = (
        layout.is_linear == (dims == 0)
        and not (layout.by_feature and not layout.is_linear)
        and layout.groups >= 1
        and slow % layout.groups == 0
        and min((*layout.shape, *layout.stride, *layout.dilation)) >= 1
        and min((0, *layout.output_padding, *(side for pair in layout.padding for side in pair)))
        == 0
        and layout.numel < _MOST_WEIGHTS
    )
    if not is_sane:
        raise _no_layout(spec)
    return layout


def _no_layout(spec: tuple[int, ...]) -> InvalidValue:
    return InvalidValue(
        "spec",
        spec,
        "does not describe a layer",
        "take it from gossamer.ops.native.geometry.encode",
    )


_Stamp = tuple[Layout, tuple[tuple[int, int], ...]]
_known: dict[int, tuple[weakref.ref[Tensor], tuple[Tensor, ...], _Stamp]] = {}
"""Patterns that were found right: the orders are held, so that an id stays its own."""


def _require_pattern(indices: Tensor, derived: tuple[Tensor, ...], layout: Layout) -> None:
    """Raise unless these are the orders of the positions; asked anew after every change of them."""
    tensors = (indices, *derived)
    stamp = (layout, tuple((id(t), version_of(t)) for t in tensors))
    seen = _known.get(id(indices))
    if seen is not None and seen[0]() is indices and seen[2] == stamp:
        return
    require("indices", indices, (indices.numel(),), torch.int32)
    if not indices.is_contiguous():
        raise InvalidData("indices", indices.stride(), "must be contiguous", "use .contiguous()")
    for name, given, right in zip(ORDERS, derived, derive(indices, layout), strict=True):
        require(name, given, right.shape, right.dtype)
        if not given.is_contiguous() or not torch.equal(given, right):
            raise InvalidData(
                name, None, "is not that of the indices", "rebuild the layer's pattern"
            )
    if all(version >= 0 for _, version in stamp[1]):  # else changes are not counted
        number = id(indices)
        gone = weakref.ref(indices, lambda _: _known.pop(number, None))
        _known[number] = (gone, derived, stamp)
