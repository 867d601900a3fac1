"""Rows of a sparse table, without the table.

A batch looks up few rows of a large table. Those alone are made dense: the work then follows the
kept weights of the rows that were asked for, not the size of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.ops.layout import Layout
from gossamer.ops.torch_private import has_memory, is_recorded

MOST_ASKED = 0.5
"""Lookups per row of the table up to which it is worth finding out which rows are asked for."""


@dataclass(frozen=True, eq=False)
class Asked:
    """The rows that a batch looks up, as a table of their own.

    Attributes:
        x: The batch, by the numbers of the rows in the small table.
        slots: int64 ``[k]``, the kept weights that lie in these rows.
        indices: int64 ``[k]``, their flat positions in the small table.
        layout: Of the small table.
    """

    x: Tensor
    slots: Tensor
    indices: Tensor
    layout: Layout


def rows_asked_for(x: Tensor, indices: Tensor | None, layout: Layout) -> Asked | None:
    """The rows of a table that ``x`` looks up; ``None`` where the whole table serves as well.

    That is so for a full support, whose values are the table; for batches with as many lookups as
    the table has rows; and wherever the number of different rows, which is a shape here, cannot be
    known: in compiled and recorded code. A number without a row is left to torch, which names it.

    Args:
        x: Whole numbers, of any shape.
        indices: ``[nnz]``, sorted flat positions; ``None`` for a full support.
        layout: Of the table.
    """
    if (
        torch.compiler.is_compiling()
        or indices is None
        or x.dtype not in (torch.int32, torch.int64)
    ):
        return None
    rows, columns = layout.shape
    if not (x.is_cpu and has_memory(x)) or is_recorded():
        return None
    if not 0 < x.numel() <= MOST_ASKED * rows:
        return None
    asked, place = torch.unique(x, return_inverse=True)
    if int(asked[0]) < 0 or int(asked[-1]) >= rows:
        return None
    asked, kept = asked.to(torch.int64), indices.to(torch.int64)
    begin = torch.searchsorted(kept, asked * columns)
    count = torch.searchsorted(kept, (asked + 1) * columns) - begin
    owner = torch.repeat_interleave(torch.arange(asked.numel()), count)
    # The weights of a row lie side by side: the first of it, and how many came before in it.
    before = count.cumsum(0) - count
    slots = begin[owner] + torch.arange(owner.numel()) - before[owner]
    positions = kept[slots] + (owner - asked[owner]) * columns
    small = replace(layout, shape=(asked.numel(), columns))
    return Asked(place, slots, positions, small)
