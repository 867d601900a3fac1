"""From a layout and an input's shape to the native engine's description of the call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gossamer.ops.layout import Layout
from gossamer.ops.native.library import Geometry

_KINDS = ("linear", "conv", "conv_transpose")


def encode(layout: Layout) -> list[int]:
    """A layout as integers, which operators can take; its padding mode must be zeros.

    Not cached: compilers trace through it.
    """
    n = layout.dims
    return [
        _KINDS.index(layout.kind),
        layout.groups,
        int(layout.by_feature),
        *layout.shape,
        *(layout.stride or (1,) * n),
        *(side for pair in (layout.padding or ((0, 0),) * n) for side in pair),
        *(layout.dilation or (1,) * n),
        *(layout.output_padding or (0,) * n),
    ]


@lru_cache(maxsize=4096)
def decode(spec: tuple[int, ...]) -> Layout:
    """The layout that ``encode`` wrote down.

    For n spatial dimensions the record is: kind, groups, by_feature; the shape (2 + n); then n
    strides, n pairs of padding, n dilations and n output paddings.
    """
    n = (len(spec) - 5) // 6
    kind, groups, by_feature, shape, rest = *spec[:3], spec[3 : 5 + n], spec[5 + n :]
    stride, sides, dilation, output_padding = (
        rest[:n],
        rest[n : 3 * n],
        rest[3 * n : 4 * n],
        rest[4 * n :],
    )
    padding = tuple((sides[2 * d], sides[2 * d + 1]) for d in range(n))
    return Layout(
        _KINDS[kind],  # type: ignore[arg-type]
        shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=output_padding,
        groups=groups,
        by_feature=bool(by_feature),
    )


def output_shape(layout: Layout, shape: Sequence[int]) -> list[int]:
    """Shape of the output: of a linear layer ``[batch, out]``, else ``[batch, out, *spatial]``."""
    found = [shape[0], layout.fan_out]
    for d in range(layout.dims):
        reach = layout.dilation[d] * (layout.kernel[d] - 1) + 1
        size, (low, high) = shape[2 + d], layout.padding[d]
        if not layout.is_transposed:
            found.append((size + low + high - reach) // layout.stride[d] + 1)
        else:
            extra = layout.output_padding[d] - low - high
            found.append((size - 1) * layout.stride[d] + reach + extra)
    return found


def geometry(layout: Layout, shape: tuple[int, ...]) -> Geometry:
    """The description of a call on an input of ``shape``: batch and channels first.

    A transposed convolution is a plain one over inputs that lie ``stride`` apart.
    """
    return _geometry(layout, shape)


@lru_cache(maxsize=4096)
def _geometry(layout: Layout, shape: tuple[int, ...]) -> Geometry:
    found = Geometry()
    found.batch = shape[0]
    found.channels = layout.channels
    found.outputs = layout.fan_out
    found.groups = layout.groups
    out = output_shape(layout, shape)
    for field in ("in_", "out", "kernel", "stride", "dilation", "up"):
        getattr(found, field)[:] = (1, 1, 1)
    found.pad[:] = (0, 0, 0)
    for d in range(layout.dims):
        at = 3 - layout.dims + d
        found.in_[at], found.out[at] = shape[2 + d], out[2 + d]
        found.kernel[at], found.dilation[at] = layout.kernel[d], layout.dilation[d]
        if not layout.is_transposed:
            found.stride[at], found.pad[at] = layout.stride[d], layout.padding[d][0]
        else:
            found.up[at] = layout.stride[d]
            reach = layout.dilation[d] * (layout.kernel[d] - 1)
            found.pad[at] = reach - layout.padding[d][0]
    return found
