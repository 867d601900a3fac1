"""A pruner by itself."""

from __future__ import annotations

import torch
from torch import nn

import gossamer as gs
from gossamer.inference.pruning import Pruner, PruningRule
from gossamer.optim import CVSGHMC

RULE = {
    "pruning": "dfp",
    "group": "auto",
    "prune_group": "auto",
    "statistic": "auto",
    "spike_decay": 0.5,
    "spike_threshold": 0.0,
    "prune_threshold": 0.0,
    "target_scope": "network",
}


def pruner(net: nn.Module, sparsity: float = 0.0, steps: int = 1, **rule) -> Pruner:
    model = gs.to_sparse(net, sparsity, backend="masked").double()
    optimizer = CVSGHMC(model.parameters(), lr=0.0, num_data=10, temperature=0.0, weight_decay=1e-3)
    held = [p.detach().clone() for p in model.parameters()]
    for _ in range(steps):  # fills the state
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for p, value in zip(model.parameters(), held, strict=True):
        p.data.copy_(value)  # the first velocity is random
    return Pruner(model, optimizer, PruningRule(**{**RULE, **rule}), backend="masked")
