"""The native backend: products that cost what the kept weights cost, on the CPU.

The kernels are in csrc/, their operators in ``operators``. What they cannot do (other devices,
half precision, large full supports, tables) goes to the masked backend, call by call.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InvalidData
from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout
from gossamer.ops.native import library
from gossamer.ops.native.geometry import output_shape
from gossamer.ops.native.kernels import Call
from gossamer.ops.native.operators import local, moments, product
from gossamer.ops.native.orders import DERIVED, derive, orders_of, positions_of
from gossamer.ops.native.samples import runs_together, together
from gossamer.ops.pattern import Pattern
from gossamer.ops.torch.draws import one_by_one
from gossamer.ops.torch.masked import MaskedBackend
from gossamer.ops.torch_private import has_memory, is_exported_to_onnx

_MASKED = MaskedBackend()
_INDEX_LIMIT = 2**31
_PLACES = DERIVED.index("col_rows")
"""Of the derived tensors: the one that every pattern has with an entry per kept weight."""

FULL_LIMIT = 2**16
"""Weights up to which a full support is worth the 12 bytes each that the kernels read it by."""

LINKED_ROWS = 128
"""Rows up to which a chain of linear layers lies by feature. Of more, as tokens are, neighbouring
features are pages apart, and torch's element-wise kernels are slower on them than a transpose."""


class NativeBackend:
    """See the module."""

    name = "native"
    derived = DERIVED

    def supports(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether the kernels run a layer of this layout here."""
        return (
            library.is_available()
            and device.type == "cpu"
            and dtype in library.DTYPES
            and layout.numel < _INDEX_LIMIT
            and not layout.is_lookup
        )

    def prepare(self, indices: Tensor | None, layout: Layout) -> tuple[Tensor, ...]:
        """The two orders of the support; nothing for a full one that is not small, or a table."""
        if layout.is_lookup:
            return ()
        if indices is None:
            if layout.numel > FULL_LIMIT:
                return ()
            positions = torch.arange(layout.numel, dtype=torch.int32)
            return (*derive(positions, layout), positions)
        if indices.device.type != "cpu" or indices.dtype != torch.int32:
            return ()
        return (*derive(indices.contiguous(), layout), indices.new_empty(0))

    def weight(
        self, values: Tensor, pattern: Pattern, layout: Layout, growth: Growth | None
    ) -> Tensor:
        """See ``Backend.weight``."""
        return _MASKED.weight(values, pattern.bare, layout, growth)

    def product(
        self,
        x: Tensor,
        values: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        growth: Growth | None,
    ) -> Tensor:
        """See ``Backend.product``."""
        if not _runs(x, values, pattern, layout, bias):
            return _MASKED.product(x, values, pattern.bare, layout, bias, growth)
        _require_count("values of the weights", values, pattern)
        shaped = _Shaped(x, layout)
        call = shaped.call(pattern, growth)
        return shaped.restore(product(shaped.x, values, bias, call))

    def local(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        seed: Tensor,
        growth: Growth | None,
    ) -> Tensor:
        """See ``Backend.local``."""
        if variance.dtype != mean.dtype or not _runs(x, mean, pattern, layout, bias):
            return _MASKED.local(x, mean, variance, pattern.bare, layout, bias, seed, growth)
        _require_count("means of the weights", mean, pattern)
        _require_count("variances of the weights", variance, pattern)
        shaped = _Shaped(x, layout)
        call = shaped.call(pattern, growth)
        return shaped.restore(local(shaped.x, mean, variance, bias, seed, call))

    def moments(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """See ``Backend.moments``."""
        if not _runs(x, mean, pattern, layout, bias):
            return _MASKED.moments(x, mean, variance, pattern.bare, layout, bias)
        _require_count("means of the weights", mean, pattern)
        _require_count("variances of the weights", variance, pattern)
        shaped = _Shaped(x, layout)
        call = shaped.call(pattern, None)
        centre, spread = moments(shaped.x, mean, variance, bias, call)
        return shaped.restore(centre), shaped.restore(spread)

    def samples(
        self,
        x: Tensor,
        mean: Tensor,
        std: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        seeds: Tensor,
    ) -> Tensor:
        """See ``Backend.samples``."""
        if _runs(x, mean, pattern, layout, bias) and runs_together(layout):
            _require_count("means of the weights", mean, pattern)
            _require_count("deviations of the weights", std, pattern)
            shaped = _Shaped(x, layout)
            call = shaped.call(pattern, None)
            return shaped.restore(together(shaped.x, mean, std, bias, seeds, call))

        def product(rows: Tensor, values: Tensor) -> Tensor:
            return self.product(rows, values, pattern, layout, bias, None)

        return one_by_one(product, x, mean, std, seeds)


def _require_count(name: str, vector: Tensor, pattern: Pattern) -> None:
    """Raise unless there is a value for every kept weight: a kernel would read beyond the last."""
    if vector.numel() != pattern.derived[_PLACES].numel():
        raise InvalidData(
            name,
            tuple(vector.shape),
            f"must have one value for each of the {pattern.derived[_PLACES].numel()} kept weights",
            "change the support with gossamer.nn.move, not the data of a parameter",
        )


def _runs(x: Tensor, values: Tensor, pattern: Pattern, layout: Layout, bias: Tensor | None) -> bool:
    """Whether the kernels take this call.

    Half precision also comes in through autocast; torch.func transforms need operators that torch
    knows from inside, and an ONNX file such that ONNX knows. An input that does not fit the layer
    goes the same way: torch says what is wrong with it, where a kernel would read beyond it.
    """
    return (
        has_memory(x)
        and len(pattern.derived) > 0
        and values.numel() > 0
        and x.is_cpu
        and x.dtype == values.dtype
        and x.dtype in library.DTYPES
        and not torch.is_autocast_enabled("cpu")
        and not is_exported_to_onnx()
        and (bias is None or (bias.dtype == x.dtype and bias.shape == (layout.fan_out,)))
        and _fits(x, layout)
    )


def _fits(x: Tensor, layout: Layout) -> bool:
    """Whether an input has the layer's channels and is large enough for its kernel."""
    if layout.is_linear:
        return x.dim() >= 1 and x.shape[-1] == layout.channels
    if x.dim() not in (layout.dims + 1, layout.dims + 2):
        return False
    channels, *spatial = x.shape[-1 - layout.dims :]
    if channels != layout.channels:
        return False
    return all(size >= 1 for size in output_shape(layout, (1, channels, *spatial))[2:])


class _Shaped:
    """An input brought to ``[batch, channels, *spatial]``, and the way back."""

    def __init__(self, x: Tensor, layout: Layout) -> None:
        if layout.kind == "conv" and layout.padding_mode != "zeros":
            x = F.pad(x, layout.pad_argument, mode=layout.padding_mode)
            none = tuple((0, 0) for _ in layout.padding)
            layout = replace(layout, padding=none, padding_mode="zeros")
        self.leading: tuple[int, ...] | None = None
        self.is_single = False
        if layout.is_linear:
            if x.dim() != 2:  # a reshape that changes nothing would still be a node of the graph
                self.leading = tuple(x.shape[:-1])
                x = x.reshape(-1, x.shape[-1])
            if layout.by_feature and x.shape[0] > LINKED_ROWS:
                layout = replace(layout, by_feature=False)
        elif x.dim() == layout.dims + 1:
            self.is_single = True
            x = x.unsqueeze(0)
        self.x = x
        self.layout = layout

    def call(self, pattern: Pattern, growth: Growth | None) -> Call:
        """What the operators take beside the input and the values."""
        buffers = [] if growth is None else growth.buffers
        return Call(positions_of(pattern), orders_of(pattern), buffers, self.layout)

    def restore(self, y: Tensor) -> Tensor:
        """The output in the shape that the caller expects."""
        if self.leading is not None:
            return y.reshape(*self.leading, y.shape[-1])
        return y.squeeze(0) if self.is_single else y
