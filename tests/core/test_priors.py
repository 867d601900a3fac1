"""Priors as values: densities and KL divergences against high-precision quadrature."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.core.priors import (
    PRIORS,
    Gaussian,
    Laplace,
    Prior,
    prior_from_json,
    prior_to_json,
)
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import sparse_layers

DOUBLE = torch.float64
CASES = [Gaussian(0.3), Gaussian(2.0), Laplace(0.1), Laplace(1.5)]
POSTERIORS = [(0.0, 1.0), (0.3, 0.05), (-2.0, 0.7), (1e-3, 0.4), (4.0, 0.01)]


def density(prior: Prior, theta: mp.mpf) -> mp.mpf:
    if isinstance(prior, Gaussian):
        return mp.npdf(theta, 0, mp.mpf(prior.std))
    return mp.exp(-abs(theta) / mp.mpf(prior.scale)) / (2 * mp.mpf(prior.scale))


@pytest.mark.parametrize("prior", CASES, ids=str)
def test_log_densities(prior):
    points = torch.tensor([-3.0, -0.2, 0.0, 1e-4, 0.7], dtype=torch.float64)
    with mp.workdps(50):
        wanted = [float(mp.log(density(prior, mp.mpf(x)))) for x in points.tolist()]
    assert prior.log_density(points).tolist() == pytest.approx(wanted, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("prior", CASES, ids=str)
@pytest.mark.parametrize(("mean", "std"), POSTERIORS)
def test_kl_is_the_integral(prior, mean, std):
    with mp.workdps(20):

        def integrand(t):
            theta = mp.mpf(mean) + mp.mpf(std) * t
            log_q = mp.log(mp.npdf(t)) - mp.log(mp.mpf(std))
            return mp.npdf(t) * (log_q - mp.log(density(prior, theta)))

        corner = -mp.mpf(mean) / mp.mpf(std)  # where |θ| has its edge
        edges = sorted({mp.mpf(-14), mp.mpf(14), *([corner] if abs(corner) < 14 else [])})
        wanted = float(mp.quad(integrand, edges))
    found = prior.kl(torch.tensor(mean, dtype=DOUBLE), torch.tensor(std, dtype=DOUBLE))
    assert float(found) == pytest.approx(wanted, rel=1e-11)
    assert float(found) >= 0.0


@pytest.mark.parametrize("prior", CASES, ids=str)
def test_gradients(prior):
    mean = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    std = torch.tensor([0.5, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(prior.kl, (mean, std))
    assert torch.autograd.gradcheck(prior.log_density, (mean,))


@pytest.mark.parametrize("prior", CASES, ids=str)
def test_a_file_can_name_them(prior):
    values = prior_to_json(prior)
    assert values["kind"] in PRIORS
    assert prior_from_json(values) == prior


def test_others_are_refused():
    class Own(Gaussian):
        pass

    with pytest.raises(InvalidValue, match="prior = Own: cannot be saved"):
        prior_to_json(Own(1.0))
    with pytest.raises(UnknownName, match="prior = cauchy"):
        prior_from_json({"kind": "cauchy", "scale": 1.0})
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidValue, match="must be finite and > 0"):
            Gaussian(wrong)
        with pytest.raises(InvalidValue, match="must be finite and > 0"):
            Laplace(wrong)


def test_a_network_has_the_prior_that_it_was_given():
    """The KL of the objective is the prior's own, weight by weight; a Gaussian one is fused."""
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).double()
    for prior in (Laplace(0.2), Gaussian(0.2)):
        bnn = gs.to_bayesian(net, 0.4, prior=prior)
        wanted = sum(
            float(prior.kl(layer.weight_mean.detach(), layer.weight_std.detach()).sum())
            for layer in sparse_layers(bnn).values()
        )
        kl = gs.kl_divergence(bnn)
        kl.backward()
        assert float(kl.detach()) == pytest.approx(wanted, rel=1e-12)
        assert all(layer.weight_mean.grad is not None for layer in sparse_layers(bnn).values())
