"""Addition scores without a dense gradient.

The gradient of a weight is computed for blocks of its rows; of each block only the best scores off
the support are kept. Beside the k best and their candidates no more than ``BLOCK`` values exist at
a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout
from gossamer.ops.native.checks import layout_of
from gossamer.ops.native.geometry import output_shape

BLOCK = 2**19
"""Values of the dense gradient that exist at once (2 MB in float32), at least one row."""


@torch.library.custom_op(
    "gossamer::catch_streamed", mutates_args=("scores", "positions", "own", "dense", "task")
)
def _catch_streamed(
    x: Tensor,
    gradient: Tensor,
    own_gradient: Tensor,
    indices: Tensor,
    scores: Tensor,
    positions: Tensor,
    own: Tensor,
    dense: Tensor,
    task: Tensor,
    spec: Sequence[int],
) -> None:
    growth = Growth(scores, positions, own, dense, task)
    layout = layout_of(spec)
    growth.require(layout.numel, indices)
    _require_pass(x, gradient, own_gradient, indices, layout)
    again = growth.note_use()
    if growth.needs_dense:
        growth.forget()
        return
    if dense.numel() > 0:
        if not again:
            growth.new_pass()
        for start, block in gradient_blocks(x, gradient, layout):
            dense[start : start + block.numel()] += block
        growth.rank_gradient(dense, indices)
        return
    score = growth.score
    own.copy_(score(growth.reduced(own_gradient.clone()), indices))
    best = _Best(scores.numel())
    for start, block in gradient_blocks(x, gradient, layout):
        size = score(growth.reduced(block), range(start, start + block.numel()))
        inside = torch.searchsorted(indices, torch.tensor([start, start + size.numel()]))
        kept = indices[int(inside[0]) : int(inside[1])].to(torch.int64) - start
        best.offer(size.index_fill_(0, kept, -1.0), start)
    order = best.scores.sort(descending=True, stable=True).indices
    scores.copy_(best.scores[order])
    positions.copy_(best.positions[order])


def _require_pass(
    x: Tensor, gradient: Tensor, own_gradient: Tensor, indices: Tensor, layout: Layout
) -> None:
    """Raise unless these are input and gradients of one use of the layer."""
    shape = tuple(x.shape)
    if len(shape) != 2 + layout.dims or shape[1] != layout.channels:
        raise InvalidData("x", shape, f"must have {layout.channels} channels, batch first")
    right = {"gradient": (gradient, output_shape(layout, shape))}
    right["own_gradient"] = (own_gradient, list(indices.shape))
    for name, (tensor, wanted) in right.items():
        if list(tensor.shape) != wanted or tensor.dtype != x.dtype:
            found = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise InvalidData(name, found, f"must be {x.dtype} of the shape {tuple(wanted)}")
    if not x.is_floating_point() or x.layout != torch.strided:
        raise InvalidData("x", f"{x.dtype}, {x.layout}", "must be dense and hold real numbers")


@_catch_streamed.register_fake
def _(x: Tensor, *rest: object) -> None:
    return None


def catch_streamed(
    x: Tensor,
    gradient: Tensor,
    own_gradient: Tensor,
    indices: Tensor,
    buffers: Sequence[Tensor],
    spec: Sequence[int],
) -> None:
    """Fill the buffers of a ``Growth`` from the input and the output's gradient of one use.

    Args:
        x: Input of the layer, batch and channels first.
        gradient: Gradient of its output.
        own_gradient: ``[nnz]`` gradient on the support.
        indices: The support.
        buffers: ``Growth.buffers``.
        spec: The encoded layout.
    """
    _catch_streamed(x, gradient, own_gradient, indices, *buffers, spec)


class _Best:
    """The k best of a stream of scores."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.scores = torch.empty(0, dtype=torch.float32)
        self.positions = torch.empty(0, dtype=torch.int64)
        self.least = 0.0

    def offer(self, scores: Tensor, start: int) -> None:
        """Scores of the positions from ``start`` on; negative ones do not count."""
        # Non-finite scores must get through: they are what postpones a swap.
        worthy = (~(scores < self.least)).nonzero().squeeze(1)
        if worthy.numel() > self.k:
            worthy = worthy[scores[worthy].topk(self.k).indices]
        self.scores = torch.cat([self.scores, scores[worthy].to(self.scores.dtype)])
        self.positions = torch.cat([self.positions, worthy + start])
        if self.scores.numel() > self.k:
            best = self.scores.topk(self.k)
            self.scores, self.positions = best.values, self.positions[best.indices]
            self.least = float(self.scores[-1]) if self.k else 0.0


def gradient_blocks(x: Tensor, gradient: Tensor, layout: Layout) -> Iterator[tuple[int, Tensor]]:
    """The flat gradient of the weight in blocks of rows: flat start and ``[values]``."""
    per_row = layout.numel // layout.shape[0]
    rows = max(1, BLOCK // per_row)
    in_group = layout.shape[0] // layout.groups
    for group in range(layout.groups):
        for first in range(0, in_group, rows):
            count = min(rows, in_group - first)
            block = _block(x, gradient, layout, group, group * in_group + first, count)
            yield (group * in_group + first) * per_row, block.flatten()


def _block(
    x: Tensor, gradient: Tensor, layout: Layout, group: int, first: int, count: int
) -> Tensor:
    """Rows ``first`` to ``first + count`` of the gradient of the weight, within one group."""
    if layout.is_linear:
        width = layout.fan_in
        return gradient[:, first : first + count].t() @ x[:, group * width : (group + 1) * width]
    transposed = layout.is_transposed
    # A row is an output channel, or of a transposed convolution an input channel; the other side
    # gives all channels of the group.
    rows, other = (x, gradient) if transposed else (gradient, x)
    width = other.shape[1] // layout.groups
    rows = rows[:, first : first + count]
    other = other[:, group * width : (group + 1) * width]
    low = [a for a, _ in layout.padding]
    if not transposed and layout.symmetric_padding is None:
        other = torch.nn.functional.pad(other, layout.pad_argument)
        low = [0] * layout.dims
    found = torch.ops.aten.convolution_backward(
        other if transposed else rows,
        rows if transposed else other,
        x.new_empty((count, *layout.shape[1:])),
        None,
        layout.stride,
        low,
        layout.dilation,
        transposed,
        layout.output_padding if transposed else [0] * layout.dims,
        1,
        (False, True, False),
    )
    weight: Tensor = found[1]
    return weight
