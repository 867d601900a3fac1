"""Small tables in float64, with and without a padding row, and numbers that look rows up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.nn import BayesianEmbedding

ROWS, COLUMNS, PADDING = 12, 5, 3
EVERY_PADDING = (None, 0, PADDING, ROWS - 1)
every_padding = pytest.mark.parametrize("padding", EVERY_PADDING)
every_engine = pytest.mark.parametrize("engine", BACKENDS)


def module(padding: int | None = None, rows: int = ROWS) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(rows, COLUMNS, padding_idx=padding).double()


def bayesian(padding: int | None = None, sparsity: float = 0.6, **options) -> BayesianEmbedding:
    layer = gs.to_bayesian(module(padding), sparsity, include=[nn.Embedding], **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    return layer


def some(padding: int | None = None) -> Tensor:
    x = torch.tensor([[0, 3, 3, 11], [7, 1, 0, 2]])
    if padding is not None:
        x[1, 1] = padding
    return x
