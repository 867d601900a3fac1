"""The reference backend: dense torch products of a scattered weight.

It runs on any device, with any dtype and any optimiser, at the cost of a dense layer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.growth import Growth, probe
from gossamer.ops.layout import Layout
from gossamer.ops.noise import noise_dtype, normal_like
from gossamer.ops.pattern import Pattern
from gossamer.ops.torch.draws import one_by_one
from gossamer.ops.torch.lookup import rows_asked_for

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}

MOST_LIVE = 0.5
"""Share of a linear layer's inputs up to which it is worth gathering those that it reads."""


class MaskedBackend:
    """Values are scattered into a dense weight at every call; a full support is only viewed."""

    name = "masked"
    derived = ("live", "compact")

    def supports(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> bool:
        """Always: this is the reference."""
        return True

    def prepare(self, indices: Tensor | None, layout: Layout) -> tuple[Tensor, ...]:
        """Of a linear layer that reads few of its inputs: which, and the support among them."""
        if indices is None or not layout.is_linear or layout.groups > 1:
            return ()
        columns = indices.to(torch.int64) % layout.shape[1]
        live, place = torch.unique(columns, return_inverse=True)
        if live.numel() > MOST_LIVE * layout.shape[1]:
            return ()
        rows = indices.to(torch.int64) // layout.shape[1]
        # Four bytes where torch takes them: with the indices no more than 16 per kept weight.
        return live.to(torch.int32), rows * live.numel() + place

    def weight(
        self, values: Tensor, pattern: Pattern, layout: Layout, growth: Growth | None
    ) -> Tensor:
        """See ``Backend.weight``."""
        return _dense(values, pattern.indices, layout, growth)

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
        if pattern.derived and growth is None:
            live, compact = pattern.derived
            flat = values.new_zeros(layout.shape[0] * live.numel()).index_put((compact,), values)
            return F.linear(
                x.index_select(-1, live), flat.view(layout.shape[0], live.numel()), bias
            )
        x, indices, layout, (values,) = _narrowed(x, pattern.indices, layout, growth, values)
        weight = _dense(values, indices, layout, growth)
        return _apply(_pad(x, layout), weight, layout, bias)

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
        x, indices, layout, (mean, variance) = _narrowed(
            x, pattern.indices, layout, growth, mean, variance
        )
        x = _pad(x, layout)
        centre = _apply(x, _dense(mean, indices, layout, growth), layout, bias)
        spread = _variance(x, variance, indices, layout)
        return _add_noise(centre, spread, normal_like(seed, spread))

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
        x, indices, layout, (mean, variance) = _narrowed(
            x, pattern.indices, layout, None, mean, variance
        )
        x = _pad(x, layout)
        centre = _apply(x, _dense(mean, indices, layout, None), layout, bias)
        return centre, _variance(x, variance, indices, layout)

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

        def product(rows: Tensor, values: Tensor) -> Tensor:
            return self.product(rows, values, pattern, layout, bias, None)

        return one_by_one(product, x, mean, std, seeds)


class _Noisy(torch.autograd.Function):
    """centre + sqrt(variance) ⊙ noise in two passes over the output, three on the way back.

    Where the variance is 0 (an empty row, a dead input) the output is the centre and the gradient
    to the variance is 0, where autograd would give 0/0. No epsilon is added under the root.
    """

    @staticmethod
    def forward(centre: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        return torch.addcmul(centre, _root(variance), noise)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        _, variance, noise = inputs
        ctx.save_for_backward(variance, noise)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        variance, noise = ctx.saved_tensors
        root = _root(variance)
        if (
            torch.is_grad_enabled()
        ):  # a second derivative of the root at 0 would be 0 times infinity
            root = torch.where(variance > 0.0, variance, 1.0).sqrt()
        slope = torch.where(variance > 0.0, noise / (2.0 * root), 0.0)
        return gradient, slope * gradient, None


def _root(variance: Tensor) -> Tensor:
    """Square root; a convolution algorithm may return -1e-12 for a sum of squares."""
    return variance.clamp(min=0.0).sqrt()


def _add_noise(centre: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    """Eq. (4), in the dtype of the variance, returned in that of the centre."""
    out: Tensor = _Noisy.apply(centre.to(variance.dtype), variance, noise)  # type: ignore[no-untyped-call]
    return out.to(centre.dtype)


def _variance(x: Tensor, variance: Tensor, indices: Tensor | None, layout: Layout) -> Tensor:
    """(σ⊙σ)(x⊙x) in float32 at least, also under autocast.

    Half precision underflows at σ = 2e-4.
    """
    dtype = torch.promote_types(noise_dtype(x), noise_dtype(variance))
    with torch.autocast(x.device.type, enabled=False):
        square = x if layout.is_lookup else x.to(dtype).square()
        return _apply(square, _dense(variance.to(dtype), indices, layout, None), layout, None)


def _narrowed(
    x: Tensor, indices: Tensor | None, layout: Layout, growth: Growth | None, *vectors: Tensor
) -> tuple[Tensor, Tensor | None, Layout, tuple[Tensor, ...]]:
    """Input, support, layout and vectors of the rows of a table that are looked up.

    As they are for all other layers, and for an armed one, which scores every position.
    """
    if not layout.is_lookup or growth is not None:
        return x, indices, layout, vectors
    asked = rows_asked_for(x, indices, layout)
    if asked is None:
        return x, indices, layout, vectors
    kept = tuple(vector.index_select(0, asked.slots) for vector in vectors)
    return asked.x, asked.indices, asked.layout, kept


def _dense(values: Tensor, indices: Tensor | None, layout: Layout, growth: Growth | None) -> Tensor:
    if indices is None:
        return values.view(layout.shape)
    flat = values.new_zeros(prod(layout.shape)).index_put((indices.to(torch.int64),), values)
    if growth is not None:
        flat = probe(flat, indices, growth)
    return flat.view(layout.shape)


def _pad(x: Tensor, layout: Layout) -> Tensor:
    """The input padded once, so that mean and variance see the same values.

    Unchanged where the product pads by itself.
    """
    if layout.is_padded_by_product:
        return x
    mode = "constant" if layout.padding_mode == "zeros" else layout.padding_mode
    return F.pad(x, layout.pad_argument, mode=mode)


def _grouped(x: Tensor, weight: Tensor, groups: int, bias: Tensor | None) -> Tensor:
    """Groups of features mapped apart: ``[..., groups · in]`` to ``[..., out]``."""
    parts = x.reshape(*x.shape[:-1], groups, weight.shape[1])
    matrices = weight.reshape(groups, -1, weight.shape[1])
    found = torch.einsum("...gi,goi->...go", parts, matrices).flatten(-2)
    return found if bias is None else found + bias


def _apply(x: Tensor, weight: Tensor, layout: Layout, bias: Tensor | None) -> Tensor:
    groups = layout.groups
    if layout.is_linear:
        return F.linear(x, weight, bias) if groups == 1 else _grouped(x, weight, groups, bias)
    if layout.is_lookup:
        return F.embedding(x, weight)
    stride, dilation = layout.stride, layout.dilation
    if not layout.is_transposed:
        padding = layout.symmetric_padding or (0,) * layout.dims
        return _CONV[layout.dims](x, weight, bias, stride, padding, dilation, groups)
    padding = tuple(a for a, _ in layout.padding)
    transposed = _CONV_TRANSPOSE[layout.dims]
    return transposed(x, weight, bias, stride, padding, layout.output_padding, groups, dilation)
