"""The defaults of variational methods on a small table with real targets."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn

import gossamer as gs

ROWS = 300


def fitted(name: str, steps: int = 2000, **settings):
    """A wide network on a linear function of 10 inputs with noise 0.1, and its test set."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS + 500, 10, generator=generator)
    y = x @ torch.randn(10, generator=generator) / sqrt(10)
    y += 0.1 * torch.randn(len(y), generator=generator)
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    method = gs.build(
        name, net, num_data=ROWS, total_steps=steps, likelihood="gaussian", **settings
    )
    while method.steps < steps:
        for rows in torch.randperm(ROWS, generator=generator).split(75):
            method.step((x[rows], y[rows]))
    return method, x[ROWS:], y[ROWS:]


def surprise(method, x, y) -> float:
    """Root mean square of the errors in units of the predicted standard deviation."""
    found = gs.predict(method, x, 16)
    return float(((found.mean.reshape(-1) - y) / found.std.reshape(-1)).square().mean().sqrt())


@pytest.mark.parametrize(("name", "settings"), [("ssvi", {"sparsity": 0.9}), ("dense_vi", {})])
def test_intervals_are_not_too_narrow(name, settings):
    assert 0.4 < surprise(*fitted(name, **settings)) < 1.3


def test_with_the_weight_of_labels_they_would_be():
    assert surprise(*fitted("ssvi", sparsity=0.9, kl_weight=0.01)) > 2.0


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian", "poisson"])
@pytest.mark.parametrize(("name", "of_noise"), [("ssvi", 0.5), ("dense_vi", 0.3)])
def test_the_kl_weight_depends_on_the_targets(name, of_noise, likelihood):
    weight = of_noise if likelihood == "gaussian" else 0.01
    outputs = 3 if likelihood == "categorical" else 1
    for given, wanted in (({}, weight), ({"kl_weight": 0.7}, 0.7)):
        method = gs.build(
            name,
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs)),
            num_data=20,
            total_steps=4,
            kl_warmup=0.0,
            likelihood=likelihood,
            **given,
        )
        assert method.elbo.kl_weight == wanted
