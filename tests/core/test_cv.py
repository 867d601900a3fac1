"""Algorithms 1 and 2 against their formulas in plain numpy, and the exact identity of the first."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from gossamer.core.cv import adapt_, cv_adam, cv_sghmc

BETAS = (0.7, 0.4)
T = 0.03
LR = 0.02
ALPHA = 0.4
CLOSE = 1e-14


def tensors(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return list(torch.randn(count, 3, 4, dtype=torch.float64, generator=generator))


def decays() -> list[float | torch.Tensor]:
    return [0.0, 0.3, torch.linspace(0.0, 2.0, 12, dtype=torch.float64).reshape(3, 4)]


def sigmoid(rho: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-rho)))


def rho_by_hand(rho, eps, grad, decay, tau_lr) -> np.ndarray:
    tau = sigmoid(rho)
    return np.asarray(rho + tau_lr * (T / tau - ALPHA**2 * decay * tau - ALPHA * eps * grad))


def arrays(*values) -> list[np.ndarray]:
    return [np.asarray(v) if isinstance(v, float) else v.clone().numpy() for v in values]


@pytest.mark.parametrize("decay", decays(), ids=["none", "number", "tensor"])
@pytest.mark.parametrize("exact_noise", [False, True])
@pytest.mark.parametrize("tau_lr", [0.0, 1.5])
def test_algorithm_2(decay, exact_noise, tau_lr):
    given = tensors(6)
    w, v, rho, previous, grad, eps, prior = arrays(*given, decay)
    got = cv_sghmc(
        *given,
        lr=LR,
        betas=BETAS,
        alpha=ALPHA,
        temperature=T,
        tau_lr=tau_lr,
        decay=decay,
        exact_noise=exact_noise,
    )
    rho = rho_by_hand(rho, previous, grad, prior, tau_lr)
    tau = sigmoid(rho)
    noise = math.sqrt(2 + 2 * 0.7**2) * ALPHA * eps / (np.sqrt(tau) if exact_noise else 1.0)
    v = 0.7 * v - 0.4 * LR * (grad + prior * w) + noise
    np.testing.assert_allclose(got.rho.numpy(), rho, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.v.numpy(), v, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.w.numpy(), w + tau * v, rtol=0, atol=CLOSE)
    for x, y in zip(given, tensors(6), strict=True):
        assert torch.equal(x, y), "arguments stay"


@pytest.mark.parametrize("decay", decays(), ids=["none", "number", "tensor"])
@pytest.mark.parametrize("tau_lr", [0.0, 1.5])
def test_algorithm_1(decay, tau_lr):
    given = tensors(7)
    w, mean, m, rho, previous, grad, eps, prior = arrays(*given, decay)
    got = cv_adam(
        *given, lr=LR, betas=BETAS, alpha=ALPHA, temperature=T, tau_lr=tau_lr, decay=decay
    )
    rho = rho_by_hand(rho, previous, grad, prior, tau_lr)
    tau = sigmoid(rho)
    m = 0.7 * m + 0.4 * (grad + prior * w)
    mean = mean - LR * tau * m
    np.testing.assert_allclose(got.m.numpy(), m, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.rho.numpy(), rho, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.mean.numpy(), mean, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(got.w.numpy(), mean + ALPHA * tau * eps, rtol=0, atol=CLOSE)
    for x, y in zip(given, tensors(7), strict=True):
        assert torch.equal(x, y), "arguments stay"


def test_identity_of_algorithm_1():
    """v_{t+1} = β₁v_t - lβ₂g(w_t) + α[ε_{t+1} - (1+β₁)ε_t + β₁ε_{t-1}], g not even linear."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(40, 6, dtype=torch.float64, generator=generator)
    rho = torch.linspace(-2, 2, 6, dtype=torch.float64)
    tau = torch.sigmoid(rho)
    mean, m, decay = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64), 0.2
    draws = [mean + ALPHA * tau * noise[0]]
    for previous, eps in itertools.pairwise(noise):
        drawn = cv_adam(
            draws[-1],
            mean,
            m,
            rho,
            previous,
            torch.sin(draws[-1]),
            eps,
            lr=0.3,
            betas=BETAS,
            alpha=ALPHA,
            temperature=T,
            tau_lr=0.0,
            decay=decay,
        )
        mean, m = drawn.mean, drawn.m
        draws.append(drawn.w)
    w = torch.stack(draws)
    v = (w[1:] - w[:-1]) / tau
    g = torch.sin(w) + decay * w
    bracket = noise[2:] - 1.7 * noise[1:-1] + 0.7 * noise[:-2]
    right = 0.7 * v[:-1] - 0.3 * 0.4 * g[1:-1] + ALPHA * bracket
    np.testing.assert_allclose(v[1:].numpy(), right.numpy(), rtol=0, atol=2e-14)


def test_a_frozen_tau_leaves_rho_alone():
    rho, eps, grad = tensors(3)
    before = rho.clone()
    tau = adapt_(rho, eps, grad, alpha=ALPHA, temperature=T, tau_lr=0.0, decay=0.3)
    assert torch.equal(rho, before)
    assert torch.equal(tau, torch.sigmoid(before))
