"""Sparse tables whose rows are looked up: ``nn.Embedding``.

The padding row of a table is no weight: torch gives it no gradient, so a posterior of it would
never hear of the data. It is left out of the table that the support is over, and stands beside it
as a constant, 0 unless the torch module had another value there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.nn.origin import blank_table
from gossamer.ops import Layout


class _Table(SparseLayer):
    """The lookup, and the attributes of ``nn.Embedding`` that other code reads.

    Attributes:
        padding_row: ``[columns]``, what ``padding_idx`` looks up; ``None`` without one.
    """

    padding_row: Tensor | None
    max_norm = None
    norm_type = 2.0
    scale_grad_by_freq = False
    sparse = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        like = self.leading().detach()
        row = None if self.padding_idx is None else like.new_zeros(self.embedding_dim)
        self.register_buffer("padding_row", row)

    @property
    def num_embeddings(self) -> int:
        """Rows, the padding row included."""
        return self.layout.fan_in + (self.padding_idx is not None)

    @property
    def embedding_dim(self) -> int:
        """Columns."""
        return self.layout.fan_out

    @property
    def padding_idx(self) -> int | None:
        """The index that stands for no row."""
        return self.layout.padding_idx

    def take_rest(self, module: nn.Module) -> None:
        """The padding row of a torch module, or of another layer, whose tensor is shared."""
        if self.padding_idx is None:
            return
        if isinstance(module, _Table):
            self.padding_row = module.padding_row
        else:
            assert isinstance(module.weight, Tensor)
            self.padding_row = module.weight.detach()[self.padding_idx].clone()

    def as_stored(self, weight: Tensor) -> Tensor:
        """``[rows, columns]`` with the padding row in its place."""
        at, row = self.padding_idx, self.padding_row
        if at is None or row is None:
            return weight
        return torch.cat([weight[:at], row.to(weight).unsqueeze(0), weight[at:]])

    def compute(self, x: Tensor, layout: Layout) -> Tensor:
        """The rows of ``x``; the padding row is a constant, without noise or gradient."""
        at, row = self.padding_idx, self.padding_row
        if at is None or row is None:
            return super().compute(x, layout)
        y = super().compute(self.rows_of(x), layout)
        return torch.where((x == at).unsqueeze(-1), row.to(y.dtype), y)

    def rows_of(self, x: Tensor) -> Tensor:
        """Numbers of rows in the table without its padding row; some row for the padding itself."""
        at = self.padding_idx
        return x if at is None else torch.where(x == at, 0, x - (x > at).to(x.dtype))


class BayesianEmbedding(_Table, BayesianLayer):
    """``[...]`` whole numbers ``→ [..., columns]`` with a Gaussian on every kept weight.

    An output is a weight, so that local noise, a draw of its own for every looked-up token, is the
    exact law of a row: N(mean row, std² row).
    """


class SparseEmbedding(_Table, DeterministicLayer):
    """``[...]`` whole numbers ``→ [..., columns]`` with one value on every kept weight."""


def table_layout(module: nn.Embedding) -> Layout:
    """The layout of a torch table: its rows but for the padding row."""
    rows = module.num_embeddings - (module.padding_idx is not None)
    return Layout("lookup", (rows, module.embedding_dim), padding_idx=module.padding_idx)


def table_of(module: nn.Module) -> Tensor:
    """The weight of a torch table without its padding row."""
    assert isinstance(module, nn.Embedding)
    at, weight = module.padding_idx, module.weight
    return weight if at is None else torch.cat([weight[:at], weight[at + 1 :]])


def dense_embedding(layer: BayesianEmbedding | SparseEmbedding) -> nn.Embedding:
    """An uninitialised torch table of the same geometry."""
    return blank_table(layer.num_embeddings, layer.embedding_dim, layer.padding_idx)


def why_not(module: nn.Module) -> str | None:
    """What a torch table does that a sparse one does not; ``None`` where there is nothing."""
    if not isinstance(module, nn.Embedding):
        return None
    reason = None
    if module.max_norm is not None:
        reason = "max_norm writes to the rows that are looked up, and a posterior has no such rows"
    elif module.scale_grad_by_freq:
        reason = "scale_grad_by_freq makes its gradient that of another loss"
    elif module.sparse:
        reason = "with sparse=True its gradient holds no position that could enter the support"
    elif table_layout(module).numel == 0:
        reason = "it has no row beside its padding row"
    return reason
