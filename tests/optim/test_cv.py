"""Where τ and μ of Algorithms 1 and 2 settle on Gaussians, and the context of means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.errors import InvalidValue
from gossamer.optim import CVSGHMC, CVAdam
from reference.linear_law import Quadratic

N = 500
CHAINS = 400
NEAR = 0.015
"""Relative; the noise that a small step leaves in τ biases its mean by less. τ is asked to settle
below 0.6, because above, a ρ that once went far takes some 1/η steps to come back."""


def settle(opt, w: torch.Tensor, loss: Quadratic, rates: list[tuple[float, int]]) -> np.ndarray:
    """τ, averaged over chains and the second half of the last stage, after stages (η, steps)."""
    hessian, centre = torch.from_numpy(loss.hessian), torch.from_numpy(loss.centre)
    total, seen = torch.zeros(len(centre), dtype=torch.float64), 0
    for stage, (tau_lr, steps) in enumerate(rates):
        opt.param_groups[0]["tau_lr"] = tau_lr
        for step in range(steps):
            w.grad = (w.detach() - centre) @ hessian
            opt.step()
            if stage == len(rates) - 1 and 2 * step >= steps:
                total += torch.sigmoid(opt.state[w]["rho"]).mean(0)
                seen += 1
    return np.asarray(total / seen)


def chains(dim: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(CHAINS, dim, dtype=torch.float64))


def three() -> Quadratic:
    """A correlated likelihood whose third weight is hardly determined; the prior counts."""
    hessian = np.array([[1.0, 0.5, 0.1], [0.5, 0.6, 0.0], [0.1, 0.0, 0.02]])
    return Quadratic(hessian, np.array([1.0, -2.0, 0.5]), decay=0.1)


def test_algorithm_1_on_a_gaussian():
    """μ → posterior mean; ατ_i → Λ_ii^(-1/2) where that is below α, else τ → 1."""
    loss, w = three(), chains(3)
    precision = N * np.diag(loss.precision)  # Λ_ii = NH_ii + δ
    alpha = 2.5 * precision[0] ** -0.5
    assert precision[2] ** -0.5 > 1.2 * alpha
    opt = CVAdam([w], 0.1, num_data=N, alpha=alpha, weight_decay=loss.decay, tau_lr=0.0)
    tau = settle(opt, w, loss, [(0.02 * N, 800), (0.002 * N, 2000)])
    wanted = np.minimum(precision**-0.5 / alpha, 1.0)
    assert wanted[:2].max() < 0.6
    np.testing.assert_allclose(tau[:2], wanted[:2], rtol=NEAR)
    assert tau[2] > 0.98
    mean = opt.state[w]["mean"].numpy()
    error = np.abs(mean.mean(0) - loss.mode) / (mean.std(0) / np.sqrt(CHAINS))
    assert error.max() < 4.0, error


def test_algorithm_1_counts_the_prior_once():
    """δ = NH: the variance is 1/(NH + δ), and 1/(NH + 2δ), a fifth less std, had g been used."""
    loss, w = Quadratic(np.eye(1), np.zeros(1), decay=1.0), chains(1)
    alpha = 0.1
    opt = CVAdam([w], 0.1, num_data=N, alpha=alpha, weight_decay=1.0, tau_lr=0.0)
    std = alpha * settle(opt, w, loss, [(0.05 * N, 400), (0.004 * N, 1000)])
    np.testing.assert_allclose(std, (2 * N) ** -0.5, rtol=NEAR)
    assert abs(std[0] / (3 * N) ** -0.5 - 1) > 0.2


def test_temperature_of_algorithm_1():
    """Variances are proportional to it."""
    loss, w = Quadratic(np.eye(1), np.zeros(1), decay=0.2), chains(1)
    opt = CVAdam([w], 0.1, num_data=N, alpha=0.1, temperature=0.25, weight_decay=0.2, tau_lr=0.0)
    std = 0.1 * settle(opt, w, loss, [(0.2 * N, 400), (0.008 * N, 1000)])
    np.testing.assert_allclose(std, 0.5 * (1.2 * N) ** -0.5, rtol=NEAR)


@pytest.mark.parametrize("betas", [(0.1, 1.0), (0.6, 0.7)])
def test_tau_of_algorithm_2(betas):
    """As printed: min(1, 1/(α√(δ + cNH))), c = √(2+2β₁²)."""
    hessian, delta = np.array([1.0, 0.6, 0.03]), 0.1 * N
    c = np.sqrt(2 + 2 * betas[0] ** 2)
    loss, w = Quadratic(np.diag(hessian), np.zeros(3), decay=delta / N), chains(3)
    free = (delta + c * N * hessian) ** -0.5
    alpha, lr = 2.5 * free[0], 0.25
    opt = CVSGHMC(
        [w],
        lr,
        num_data=N,
        noise_scale=alpha / lr**0.75,
        betas=betas,
        tau_lr=0.0,
        weight_decay=loss.decay,
    )
    tau = settle(opt, w, loss, [(0.02 * N, 800), (0.002 * N, 2000)])
    wanted = free / alpha
    assert wanted[1] < 0.6 < wanted[2] - 0.5
    np.testing.assert_allclose(tau[:2], wanted[:2], rtol=NEAR)
    assert tau[2] > 0.98
    vi = (N * hessian + delta) ** -0.5 / alpha
    assert abs(wanted[0] / vi[0] - 1) > 0.1, "not the optimum of variational inference"


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_tau_of_algorithm_2_with_exact_noise(temperature):
    """α²(dτ² + cHτ^{1.5}) = T; a preconditioner that does not depend on the temperature."""
    loss, w = Quadratic(np.eye(1), np.zeros(1), decay=0.1), chains(1)
    lr, betas = 2.0, (0.1, 1.0)
    c, share = np.sqrt(2.02), 0.9 * lr / 1.01  # α²/T
    grid = np.linspace(0.01, 1.0, 100_000)
    root = grid[np.argmin(np.abs(share * (0.1 * grid**2 + c * grid**1.5) - 1.0))]
    assert 0.4 < root < 0.7
    opt = CVSGHMC(
        [w],
        lr,
        num_data=N,
        temperature=temperature,
        betas=betas,
        tau_lr=0.0,
        weight_decay=0.1,
    )
    rate = N / temperature
    tau = settle(opt, w, loss, [(0.05 * rate, 400), (0.004 * rate, 1000)])
    np.testing.assert_allclose(tau, root, rtol=NEAR)


def test_means_and_back():
    w, other = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))
    opt = CVAdam([w, other], 0.1, num_data=10, alpha=0.3)
    with opt.means():
        assert torch.equal(w, torch.ones(3)), "nothing to do before the first step"
    w.grad = torch.ones(3)
    opt.step()
    draw, mean = w.detach().clone(), opt.state[w]["mean"].clone()
    assert not torch.equal(draw, mean)
    with opt.means():
        assert torch.equal(w, mean)
        with opt.means():
            assert torch.equal(w, mean)
        with pytest.raises(InvalidValue, match=r"step: needs the gradient at a draw; leave means"):
            opt.step()
    assert torch.equal(w, draw)
    assert torch.equal(other, torch.ones(2)), "no gradient, no step, no draw"
    with pytest.raises(RuntimeError, match="inside"), opt.means():
        raise RuntimeError("inside")
    assert torch.equal(w, draw)
    assert torch.equal(opt.state[w]["mean"], mean)
    opt.step()
    assert not torch.equal(w, draw), "and on it goes"
