"""Sampler truth: the optimisers' chains on correlated Gaussians against the exact finite-step law.

Thousands of chains side by side are one parameter; each ends with one draw, so that the draws are
independent and their standard errors known. Closed forms are checked against the Lyapunov equation
to rounding, then the chains against it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.core.langevin import noise_scale, sampled_temperature
from gossamer.optim import CVSGHMC, SGHMC, SGLD, CVAdam, Langevin
from reference.linear_law import (
    Quadratic,
    assert_law,
    burn_in,
    correlated,
    draw_chain,
    momentum_chain,
    stationary,
)

N = 400
CHAINS = {2: 10_000, 10: 4_000, 100: 4_000}
SHARES = (0.05, 0.3, 0.8)
"""Step sizes as shares of the stability bound: the stiffest variance is 5, 43, 400 % above T/a."""
GRID = [
    pytest.param(dim, share, marks=[pytest.mark.slow] if dim == 100 and share != 0.3 else [])
    for dim in CHAINS
    for share in SHARES
]
BETAS = (0.6, 0.7)


def run(
    loss: Quadratic,
    build,
    chain,
    *,
    rho: np.ndarray | None = None,
    gradient_std: float = 0.0,
    seed: int = 1,
) -> tuple[np.ndarray, Langevin]:
    """Final draws [chains, d] of the optimiser that ``build`` makes, after the chain's burn-in."""
    dim = len(loss.centre)
    w = torch.nn.Parameter(torch.zeros(CHAINS[dim], dim, dtype=torch.float64))
    hessian, centre = torch.from_numpy(loss.hessian), torch.from_numpy(loss.centre)
    generator = torch.Generator().manual_seed(seed)
    opt = build([w], generator)
    for step in range(burn_in(chain)):
        w.grad = (w.detach() - centre) @ hessian
        if gradient_std:
            w.grad += gradient_std * torch.randn(w.shape, dtype=w.dtype, generator=generator)
        opt.step()
        if step == 0 and rho is not None:
            opt.state[w]["rho"].copy_(torch.from_numpy(rho).expand_as(w))
    return w.detach().numpy(), opt


def shrunk(loss: Quadratic, temperature: float, factor: float, tau: np.ndarray) -> np.ndarray:
    """T[A - factor·A diag(τ) A]⁻¹."""
    a = loss.precision
    return temperature * np.linalg.inv(a - factor * a @ np.diag(tau) @ a)


def assert_closed_form(closed: np.ndarray, chain) -> None:
    """To the rounding of the solver."""
    dim = len(closed)
    np.testing.assert_allclose(closed, stationary(chain)[:dim, :dim], rtol=0, atol=1e-9 / N)


@pytest.mark.parametrize(("dim", "share"), GRID)
def test_sgld(dim, share):
    loss, tau = correlated(dim), np.ones(dim)
    lr = share * 2.0 / loss.largest
    chain = momentum_chain(loss, tau, lr, (0.0, 1.0), np.full(dim, np.sqrt(2 * lr * 1.7 / N)))
    cov = shrunk(loss, 1.7 / N, lr / 2, tau)
    assert_closed_form(cov, chain)
    draws, _ = run(
        loss,
        lambda p, g: SGLD(p, lr, num_data=N, temperature=1.7, weight_decay=loss.decay, generator=g),
        chain,
    )
    assert_law(draws, loss.mode, cov)


@pytest.mark.parametrize(("dim", "share"), GRID)
@pytest.mark.parametrize("betas", [BETAS, pytest.param((0.9, 1.0), marks=pytest.mark.slow)])
def test_sghmc(dim, share, betas):
    loss, tau = correlated(dim), np.ones(dim)
    lr = share * 2 * (1 + betas[0]) / (betas[1] * loss.largest)
    std = np.sqrt(2 * (1 - betas[0]) * betas[1] * lr * 0.8 / N)
    chain = momentum_chain(loss, tau, lr, betas, np.full(dim, std))
    cov = shrunk(loss, 0.8 / N, betas[1] * lr / (2 * (1 + betas[0])), tau)
    assert_closed_form(cov, chain)
    draws, _ = run(
        loss,
        lambda p, g: SGHMC(
            p, lr, num_data=N, temperature=0.8, betas=betas, weight_decay=loss.decay, generator=g
        ),
        chain,
    )
    assert_law(draws, loss.mode, cov)


def printed(lr: float, loss: Quadratic, k: float, **options):
    return lambda p, g: CVSGHMC(
        p,
        lr,
        num_data=N,
        noise_scale=k,
        betas=BETAS,
        tau_lr=0.0,
        weight_decay=loss.decay,
        generator=g,
        **options,
    )


def injected(k: float, lr: float) -> float:
    """√(2+2β₁²)·k·Δt^{1.5}."""
    return float(np.sqrt(2 + 2 * BETAS[0] ** 2) * k * lr**0.75)


def unequal(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """ρ and τ from 0.12 to 0.95, in no order."""
    rho = np.random.default_rng(5).permutation(np.linspace(-2.0, 3.0, dim))
    return rho, 1.0 / (1.0 + np.exp(-rho))


@pytest.mark.parametrize(("dim", "share"), GRID)
def test_algorithm_2_with_one_tau(dim, share):
    """As printed, at the start's τ = ½, with k from the temperature: at that temperature."""
    loss, tau = correlated(dim), np.full(dim, 0.5)
    lr = share * 2 * (1 + BETAS[0]) / (0.5 * BETAS[1] * loss.largest)
    k = noise_scale(1.3 / N, np.sqrt(lr), BETAS, 0.5)
    chain = momentum_chain(loss, tau, lr, BETAS, np.full(dim, injected(k, lr)))
    cov = shrunk(loss, 1.3 / N, BETAS[1] * lr / (2 * (1 + BETAS[0])), tau)
    assert_closed_form(cov, chain)
    draws, _ = run(loss, printed(lr, loss, k), chain)
    assert_law(draws, loss.mode, cov)


@pytest.mark.parametrize(("dim", "share"), GRID)
def test_algorithm_2_with_unequal_tau(dim, share):
    """As printed: the law of the Lyapunov equation, and not the posterior at any k."""
    loss = correlated(dim)
    rho, tau = unequal(dim)
    root = np.sqrt(tau)
    largest = np.linalg.eigvalsh(root[:, None] * loss.precision * root)[-1]
    lr = share * 2 * (1 + BETAS[0]) / (BETAS[1] * largest)
    k = 1 / np.sqrt(N)
    chain = momentum_chain(loss, tau, lr, BETAS, np.full(dim, injected(k, lr)))
    cov = stationary(chain)[:dim, :dim]
    draws, _ = run(loss, printed(lr, loss, k), chain, rho=rho)
    assert_law(draws, loss.mode, cov)
    shape = cov @ loss.precision  # a multiple of 1 for a posterior at a small step
    assert share > 0.1 or np.linalg.norm(shape / np.trace(shape) * dim - np.eye(dim)) > 0.2


@pytest.mark.parametrize("share", SHARES)
def test_algorithm_2_with_unequal_tau_and_independent_weights(share):
    """Each weight has the law of one dimension, at the temperature of its own τ."""
    values = np.geomspace(0.2, 1.0, 10)
    loss = Quadratic(np.diag(values), np.linspace(-1, 1, 10), 0.15)
    rho, tau = unequal(10)
    a = values + 0.15
    lr = share * 2 * (1 + BETAS[0]) / (BETAS[1] * (a * tau).max())
    k = 1 / np.sqrt(N)
    temperature = np.array([sampled_temperature(k, np.sqrt(lr), BETAS, t) for t in tau])
    cov = np.diag(temperature / (a - tau * BETAS[1] * lr / (2 * (1 + BETAS[0])) * a**2))
    chain = momentum_chain(loss, tau, lr, BETAS, np.full(10, injected(k, lr)))
    assert_closed_form(cov, chain)
    draws, _ = run(loss, printed(lr, loss, k), chain, rho=rho)
    assert_law(draws, loss.mode, cov)


@pytest.mark.parametrize(("dim", "share"), GRID)
@pytest.mark.parametrize("by", ["temperature", pytest.param("noise_scale", marks=pytest.mark.slow)])
def test_exact_noise(dim, share, by):
    """For any τ the temperature asked for, whether it is given or a k."""
    loss = correlated(dim)
    rho, tau = unequal(dim)
    root = np.sqrt(tau)
    largest = np.linalg.eigvalsh(root[:, None] * loss.precision * root)[-1]
    lr = share * 2 * (1 + BETAS[0]) / (BETAS[1] * largest)
    k = noise_scale(1.3 / N, np.sqrt(lr), BETAS)
    chain = momentum_chain(loss, tau, lr, BETAS, injected(k, lr) / root)
    cov = shrunk(loss, 1.3 / N, BETAS[1] * lr / (2 * (1 + BETAS[0])), tau)
    assert_closed_form(cov, chain)
    wanted = {"temperature": 1.3} if by == "temperature" else {"noise_scale": k}
    draws, _ = run(
        loss,
        lambda p, g: CVSGHMC(
            p,
            lr,
            num_data=N,
            betas=BETAS,
            tau_lr=0.0,
            weight_decay=loss.decay,
            exact_noise=True,
            generator=g,
            **wanted,
        ),
        chain,
        rho=rho,
    )
    assert_law(draws, loss.mode, cov)


@pytest.mark.parametrize("exact_noise", [False, True])
def test_mini_batch_noise(exact_noise):
    """Gradient noise of variance V: (2+2β₁²)k² becomes (2+2β₁²)k² + β₂²VΔt."""
    loss, tau = correlated(10), np.full(10, 0.5)
    lr = 0.3 * 2 * (1 + BETAS[0]) / (0.5 * BETAS[1] * loss.largest)
    k, variance, kept = 1 / np.sqrt(N), 3.0 / N, 2 + 2 * BETAS[0] ** 2
    own = 0.5 if exact_noise else 1.0
    extra = own * BETAS[1] ** 2 * variance * np.sqrt(lr)
    temperature = sampled_temperature(
        np.sqrt((kept * k**2 + extra) / kept), np.sqrt(lr), BETAS, 1.0 if exact_noise else 0.5
    )
    assert extra > 0.2 * kept * k**2, "too little to be seen"
    cov = shrunk(loss, temperature, BETAS[1] * lr / (2 * (1 + BETAS[0])), tau)
    std = np.sqrt(injected(k, lr) ** 2 / own + (BETAS[1] * lr) ** 2 * variance)
    chain = momentum_chain(loss, tau, lr, BETAS, np.full(10, std))
    assert_closed_form(cov, chain)
    draws, _ = run(
        loss,
        printed(lr, loss, k, exact_noise=exact_noise),
        chain,
        gradient_std=np.sqrt(variance),
    )
    assert_law(draws, loss.mode, cov)


@pytest.mark.parametrize("dim", [2, 10])
def test_algorithm_1_with_frozen_tau(dim):
    """Its draws have the law of the Lyapunov equation: (ατ)² and a little of the gradient's."""
    loss = correlated(dim)
    rho, tau = unequal(dim)
    chain = draw_chain(loss, tau, 0.4, BETAS, 0.3)
    joint = stationary(chain)
    add = np.hstack([np.eye(dim), np.zeros((dim, dim)), np.eye(dim)])
    draws, opt = run(
        loss,
        lambda p, g: CVAdam(
            p,
            0.4,
            num_data=N,
            alpha=0.3,
            betas=BETAS,
            tau_lr=0.0,
            weight_decay=loss.decay,
            generator=g,
        ),
        chain,
        rho=rho,
    )
    assert_law(draws, loss.mode, add @ joint @ add.T)
    (state,) = opt.state.values()
    assert_law(state["mean"].numpy(), loss.mode, joint[:dim, :dim])


@pytest.mark.parametrize("build", ["sgld", "sghmc", "printed"])
def test_stability_bound(build):
    """At 1 % below the bound everything dies out, at 1 % above it grows without limit."""
    loss, ends = correlated(10), []
    for share in (0.99, 1.01):
        if build == "sgld":
            lr = share * 2 / loss.largest
            make = lambda p, lr=lr: SGLD(  # noqa: E731
                p, lr, num_data=N, temperature=0.0, weight_decay=loss.decay
            )
        elif build == "sghmc":
            lr = share * 2 * (1 + BETAS[0]) / (BETAS[1] * loss.largest)
            make = lambda p, lr=lr: SGHMC(  # noqa: E731
                p, lr, num_data=N, temperature=0.0, betas=BETAS, weight_decay=loss.decay
            )
        else:
            lr = share * 2 * (1 + BETAS[0]) / (0.5 * BETAS[1] * loss.largest)
            make = lambda p, lr=lr: printed(lr, loss, 0.0)(p, None)  # noqa: E731
        w = torch.nn.Parameter(torch.ones(10, dtype=torch.float64))
        opt = make([w])
        for _ in range(2000):
            w.grad = torch.from_numpy(loss.hessian) @ (w.detach() - torch.from_numpy(loss.centre))
            opt.step()
        ends.append(np.abs(w.detach().numpy() - loss.mode).max())
    assert ends[0] < 1e-6
    assert ends[1] > 1e6
