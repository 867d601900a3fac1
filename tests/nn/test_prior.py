"""Scales of prior and initial posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import mlp
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers
from gossamer.nn.prior import POSTERIOR_SHARE, PRIOR_GAIN


def test_a_prior_draw_keeps_the_scale_of_its_input():
    """Scaled prior: 1/√(kept inputs per output), dense or sparse; for white x, Var y = 1."""
    for module, inputs in ((nn.Linear(50, 20), 50), (nn.Conv2d(6, 8, 3, groups=2), 27)):
        for sparsity in (0.0, 0.6):
            layer = gs.to_bayesian(module, sparsity)
            kept = inputs * layer.density
            assert layer.prior.std == pytest.approx(PRIOR_GAIN / math.sqrt(kept), rel=1e-12)
            share = layer.weight_std.detach() / layer.prior.std
            assert (share - POSTERIOR_SHARE).abs().max() < 1e-5  # softplus in float32


def test_a_layer_with_less_than_one_input_per_output_stays_bounded():
    assert gs.to_bayesian(nn.Linear(10, 10), 0.99).prior.std == PRIOR_GAIN


def test_numbers_are_taken_as_they_are():
    for layer in sparse_layers(
        gs.to_bayesian(mlp(), 0.3, prior_std=0.005, posterior_std=6e-4)
    ).values():
        assert layer.prior.std == 0.005
        assert (layer.weight_std.detach() / 6e-4 - 1).abs().max() < 1e-5  # softplus in float32


def test_a_random_initial_std():
    """|N(m, s²)| per weight, as in the authors' code: the folded mean, within 4 standard errors."""
    generator = torch.Generator().manual_seed(0)
    layer = gs.to_bayesian(nn.Linear(200, 100), posterior_std=(6e-4, 5e-4), generator=generator)
    std = layer.weight_std.detach().double().numpy()
    m, s = 6e-4, 5e-4
    folded = s * math.sqrt(2 / math.pi) * math.exp(-(m**2) / (2 * s**2)) + m * math.erf(
        m / (s * math.sqrt(2))
    )
    deviation = math.sqrt(m**2 + s**2 - folded**2)
    assert abs(std.mean() - folded) < 4 * deviation / math.sqrt(std.size)
    assert std.min() > 0
    assert len(np.unique(std)) > 19_000
    again = gs.to_bayesian(
        nn.Linear(200, 100), posterior_std=(m, s), generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(again.weight_raw_std, layer.weight_raw_std)


@pytest.mark.parametrize("prior_std", [0.0, -1.0, float("nan"), float("inf"), "banana"])
def test_wrong_priors(prior_std):
    with pytest.raises(InvalidValue, match=r"prior_std = .*must be"):
        gs.to_bayesian(mlp(), prior_std=prior_std)


@pytest.mark.parametrize(
    "posterior_std",
    [0.0, -1.0, float("nan"), float("inf"), "banana", None, (0.1,), (0.1, 0.2, 0.3)],
)
def test_wrong_posteriors(posterior_std):
    with pytest.raises(InvalidValue, match="std"):
        gs.to_bayesian(mlp(), posterior_std=posterior_std)
