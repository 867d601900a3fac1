"""A small network under EM-MCMC, its data, and steps by hand."""

from __future__ import annotations

import torch
from torch import nn

import gossamer as gs
from gossamer.nn import sparse_layers

ROWS, BATCH, TOTAL = 24, 10, 48  # batches of 10, 10 and 4 rows: an epoch is 3 steps
EPOCH = 3


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    )


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(ROWS) % 3
    x = torch.randn(ROWS, 3, 6, 6, generator=generator, dtype=dtype)
    x[torch.arange(ROWS), y] += 1.0
    return x, y


def batch(step: int, dtype=torch.float64):
    x, y = data(dtype)
    part = slice(step % EPOCH * BATCH, (step % EPOCH + 1) * BATCH)
    return x[part], y[part]


SETTINGS = {
    "lr": 0.02,
    "betas": (0.5, 1.0),
    "tau_lr": 0.5,
    "cycles": 2,
    "samples_per_cycle": 2,
    "sample_every": 7,
    "weight_decay": 1e-3,
    "spike_decay": 4.0,
    "warmup": 0.2,
}


def build(seed: int = 0, net: nn.Module | None = None, dtype=torch.float64, **settings):
    torch.manual_seed(seed)
    net = (network() if net is None else net).to(dtype)
    options = {"num_data": ROWS, "total_steps": TOTAL, **SETTINGS, **settings}
    return gs.build("em_mcmc", net, **options)


def run(method, steps: int, start: int = 0, dtype=torch.float64) -> None:
    for step in range(start, start + steps):
        method.step(batch(step, dtype))


def sizes(method) -> dict[str, int]:
    return {name: layer.nnz for name, layer in sparse_layers(method.model).items()}


def dense(layer, vector: torch.Tensor) -> torch.Tensor:
    flat = torch.zeros(layer.layout.numel, dtype=vector.dtype)
    flat[layer.support.positions()] = vector
    return flat.view(layer.layout.shape)
