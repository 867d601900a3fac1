"""Calls of the native engine's forward and backward kernels on tensors, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from gossamer.ops.layout import Layout
from gossamer.ops.native import library
from gossamer.ops.native.geometry import geometry, output_shape
from gossamer.ops.native.orders import view


class Call:
    """What one use of a layer hands to its kernels beside inputs and values.

    The forward and the backward pass share it, and with it the description that C reads.

    Args:
        indices: int32 ``[nnz]``, the kept positions.
        derived: The tensors of ``orders.ORDERS``.
        growth: ``Growth.buffers`` of an armed layer, else empty.
        layout: Of the weight, with zero padding.
    """

    def __init__(
        self, indices: Tensor, derived: Sequence[Tensor], growth: Sequence[Tensor], layout: Layout
    ) -> None:
        self.indices = indices
        self.derived = derived
        self.growth = growth
        self.layout = layout
        self._geometry: library.Geometry | None = None

    @cached_property
    def view(self) -> library.PatternView:
        """The addresses of the pattern, which lives as long as the call."""
        return view(self.indices, tuple(self.derived), self.layout)

    def geometry(self, x: Tensor) -> library.Geometry:
        """The description of the call on its input, the same in both passes."""
        if self._geometry is None:
            self._geometry = geometry(self.layout, tuple(x.shape))
        return self._geometry


def plain(x: Tensor, layout: Layout) -> Tensor:
    """The input as the kernels read it: any strides for a linear layer, else contiguous."""
    return x if layout.is_linear else x.contiguous()


def empty_output(x: Tensor, layout: Layout) -> Tensor:
    """A place for the output, in the order that the layout asks for."""
    shape = output_shape(layout, x.shape)
    return x.new_empty(shape[::-1]).t() if layout.by_feature else x.new_empty(shape)


def empty_slope(y: Tensor, layout: Layout, saves: bool) -> Tensor:
    """A place for ε/(2√variance); that of a linear layer lies in an order of the kernels' own."""
    return y.new_empty((y.shape[::-1] if layout.is_linear else y.shape) if saves else [0])


def is_by_feature(x: Tensor) -> bool:
    """Whether ``[batch, features]`` lies in memory as ``[features, batch]``."""
    return x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous()


def empty_dx(x: Tensor, layout: Layout, needs_dx: bool) -> Tensor:
    """A place for the gradient of a plain input, in the input's order."""
    if not needs_dx:
        return x.new_empty([0])
    if layout.is_linear and is_by_feature(x):
        return x.new_empty(x.shape[::-1]).t()
    return x.new_empty(x.shape)


def forward(
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    y: Tensor,
    second: Tensor | None,
    call: Call,
) -> None:
    """Write W x + b into ``y``, with noise if there is a seed.

    Args:
        x: ``[batch, channels, *spatial]``.
        mean: ``[nnz]``.
        variance: ``[nnz]`` or ``None``.
        bias: ``[out]`` or ``None``.
        seed: 0-d int64: the output gets the noise of this seed.
        y: ``[batch, out, *spatial]``, filled by the kernel.
        second: Filled by the kernel: with a seed the slope ε/(2√variance), which the backward pass
            needs; without one the output's variance.
        call: Pattern and layout.
    """
    x = plain(x, call.layout)
    if y.numel() == 0:
        return
    fields = library.Forward(
        x=x.data_ptr(),
        x_batch_stride=x.stride(0),
        x_channel_stride=x.stride(1),
        mean=(mean := mean.contiguous()).data_ptr(),
        variance=None if variance is None else (variance := variance.contiguous()).data_ptr(),
        bias=None if bias is None else (bias := bias.contiguous()).data_ptr(),
        y=y.data_ptr(),
        second=library.address(second),
        has_seed=int(seed is not None),
        seed=0 if seed is None else int(seed),
        y_by_feature=call.layout.by_feature,
    )
    library.check(
        library.loaded().gs_forward(
            call.geometry(x), call.view, library.DTYPES[x.dtype], fields, torch.get_num_threads()
        )
    )


def backward(
    gradient: Tensor,
    gradient2: Tensor | None,
    slope: Tensor | None,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    call: Call,
    needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, the means and the variances; empty where there is none.

    Args:
        gradient: Of the output, or of its mean.
        gradient2: Of the output's variance, for ``moments``.
        slope: ε/(2√variance), which turns ``gradient`` into that of the variance.
        x: Input of the forward pass.
        mean: ``[nnz]``.
        variance: ``[nnz]`` or ``None``.
        call: That of the forward pass.
        needs_dx: Whether the input's gradient is wanted.
    """
    x, gradient = plain(x, call.layout), plain(gradient, call.layout)
    dx = empty_dx(x, call.layout, needs_dx)
    dmean = torch.empty(mean.shape, dtype=x.dtype)
    dvariance = torch.empty([0] if variance is None else mean.shape, dtype=x.dtype)
    if gradient.numel() == 0:
        return dx.zero_(), dmean.zero_(), dvariance.zero_()
    fields = library.Backward(
        x=x.data_ptr(),
        x_batch_stride=x.stride(0),
        x_channel_stride=x.stride(1),
        mean=(mean := mean.contiguous()).data_ptr(),
        variance=None if variance is None else (variance := variance.contiguous()).data_ptr(),
        gradient=gradient.data_ptr(),
        g_batch_stride=gradient.stride(0),
        g_channel_stride=gradient.stride(1),
        slope=library.address(slope),
        gradient2=None if gradient2 is None else (gradient2 := gradient2.contiguous()).data_ptr(),
        dx=library.address(dx),
        dmean=dmean.data_ptr(),
        dvariance=library.address(dvariance),
        dx_by_feature=is_by_feature(dx),
    )
    library.check(
        library.loaded().gs_backward(
            call.geometry(x), call.view, library.DTYPES[x.dtype], fields, torch.get_num_threads()
        )
    )
    return dx, dmean, dvariance
