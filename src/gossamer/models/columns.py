"""Parts of a network for tables: a choice of columns, and a linear way past the hidden layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .checks import invalid


class SelectColumns(nn.Module):
    """Hands on some columns of [B, C], in a given order.

    The numbers are a buffer: they are saved, loaded and moved with the weights.

    Args:
        columns: Numbers of the columns, each once.
        num_columns: C, what the input has.
    """

    columns: Tensor

    def __init__(self, columns: Sequence[int], num_columns: int) -> None:
        super().__init__()
        numbers = list(columns)
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise invalid("columns", columns, "must be numbers of columns", "give at least one")
        if len(set(numbers)) != len(numbers) or not 0 <= min(numbers) <= max(numbers) < num_columns:
            rule = f"must lie in [0, {num_columns}), each once"
            raise invalid("columns", columns, rule, "count from 0")
        self.num_columns = num_columns
        self.register_buffer("columns", torch.tensor(numbers, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C] to [B, number chosen]."""
        return x.index_select(1, self.columns)

    def extra_repr(self) -> str:
        """How many of how many."""
        return f"{self.columns.numel()} of {self.num_columns}"


class LinearSkip(nn.Module):
    """The sum of a network and of a linear map of the same input.

    What is linear in the columns then need not go through hidden layers. The linear map has the
    bias of the body's last layer, and starts at 0.

    Args:
        body: From [B, C] to [B, D].
        num_columns: C.
        output_size: D.
    """

    def __init__(self, body: nn.Module, num_columns: int, output_size: int) -> None:
        super().__init__()
        self.body = body
        self.linear = nn.Linear(num_columns, output_size, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C] to [B, D]."""
        found: Tensor = self.body(x) + self.linear(x)
        return found
