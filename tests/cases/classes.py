"""A small classification problem for optimisers."""

from __future__ import annotations

import torch
from torch import nn

N = 400


def problem(dtype=torch.float64):
    torch.manual_seed(1)
    x = torch.randn(N, 6, dtype=dtype)
    y = (x[:, 0] + 0.3 * torch.randn(N) > 0).long() + (x[:, 1] > 0.7).long()
    return nn.Linear(6, 3, bias=False).to(dtype), x, y
