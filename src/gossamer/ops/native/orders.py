"""A support in the two orders in which the kernels walk through it.

Derived in O(nnz) whenever the support changes, never saved.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from gossamer.ops.layout import Layout
from gossamer.ops.native import library
from gossamer.ops.native.geometry import geometry
from gossamer.ops.native.library import address
from gossamer.ops.pattern import Pattern

ORDERS = ("row_ptr", "row_cols", "row_perm", "col_ptr", "col_rows", "col_perm")
"""Names of the tensors of both orders, in the sequence in which operators take them."""

DERIVED = (*ORDERS, "positions")
"""Names of all derived tensors; ``positions`` stands for the indices of a full support."""


def orders_of(pattern: Pattern) -> list[Tensor]:
    """The tensors of ``ORDERS`` in a pattern that was prepared."""
    return list(pattern.derived[: len(ORDERS)])


def positions_of(pattern: Pattern) -> Tensor:
    """The kept positions, also of a full support that was prepared."""
    return pattern.derived[-1] if pattern.indices is None else pattern.indices


def derive(indices: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """The tensors of ``ORDERS`` for int32 ``indices`` on the CPU.

    Of the two orders one is that of the indices themselves, so that half of the tensors are empty:
    ``col_rows`` and ``col_perm`` (8 bytes per weight) serve all but transposed convolutions.
    """
    call = geometry(layout, _smallest_input(layout))
    transposed = layout.is_transposed
    columns = layout.channels * (1 if transposed else prod(layout.stride))
    nnz, none = indices.numel(), torch.empty(0, dtype=torch.int32)

    def each(is_needed: bool) -> Tensor:
        return torch.empty(nnz, dtype=torch.int32) if is_needed else none.clone()

    found = {
        "row_ptr": torch.empty(layout.fan_out + 1, dtype=torch.int64),
        "row_cols": each(transposed),
        "row_perm": each(transposed),
        "col_ptr": torch.empty(columns + 1, dtype=torch.int64),
        "col_rows": each(True),
        "col_perm": each(not transposed),
    }
    out = library.PatternOut(**{name: address(tensor) for name, tensor in found.items()})
    library.check(library.loaded().gs_pattern(call, int(transposed), nnz, address(indices), out))
    return tuple(found[name] for name in ORDERS)


def view(indices: Tensor, orders: tuple[Tensor, ...], layout: Layout) -> library.PatternView:
    """The addresses of a pattern for one call."""
    row_ptr, row_cols, row_perm, col_ptr, col_rows, col_perm = orders
    own = row_cols.numel() == 0
    return library.PatternView(
        nnz=indices.numel(),
        row_ptr=row_ptr.data_ptr(),
        row_cols=address(indices if own else row_cols),
        row_cols_step=layout.inputs_per_output if own else 0,
        row_perm=address(row_perm),
        col_ptr=col_ptr.data_ptr(),
        col_rows=address(col_rows),
        col_perm=address(col_perm),
    )


def _smallest_input(layout: Layout) -> tuple[int, ...]:
    """An input just large enough: the orders do not depend on it."""
    spatial = [layout.dilation[d] * (layout.kernel[d] - 1) + 1 for d in range(layout.dims)]
    return (1, layout.channels, *spatial)
