"""Stationary laws of linear chains by the discrete Lyapunov equation, and tests of draws from them.

Every sampler on a quadratic loss is x' = Fx + noise of covariance Q. Nothing here knows a closed
form of the papers: F and Q are written down from the update rules alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from scipy.stats import norm

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """L(w) = ½(w-b)ᵀH(w-b) + (decay/2)|w|²: a likelihood part and a prior.

    Attributes:
        hessian: H of the likelihood part [d, d].
        centre: b [d].
        decay: δ/N.
    """

    hessian: Array
    centre: Array
    decay: float

    @property
    def precision(self) -> Array:
        """A, the Hessian of L."""
        return self.hessian + self.decay * np.eye(len(self.centre))

    @property
    def mode(self) -> Array:
        """argmin L."""
        return np.linalg.solve(self.precision, self.hessian @ self.centre)

    @property
    def largest(self) -> float:
        """Largest eigenvalue of A."""
        return float(np.linalg.eigvalsh(self.precision)[-1])


def correlated(dim: int, seed: int = 0, condition: float = 8.0, decay: float = 0.15) -> Quadratic:
    """A random orientation; eigenvalues of H from 1/condition to 1."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((dim, dim)))
    values = np.geomspace(1.0 / condition, 1.0, dim)
    return Quadratic(basis @ np.diag(values) @ basis.T, rng.standard_normal(dim), decay)


def momentum_chain(
    loss: Quadratic, tau: Array, lr: float, betas: tuple[float, float], noise_std: Array
) -> tuple[Array, Array]:
    """F and Q of (w, v): v' = β₁v - β₂·lr·Aw + noise_std⊙ε; w' = w + τ⊙v'.

    Args:
        loss: Its A is used; the chain is centred at the mode.
        tau: [d].
        lr: Δt².
        betas: (β₁, β₂).
        noise_std: Standard deviation of the noise in each v_i, [d].
    """
    kick = np.hstack([-betas[1] * lr * loss.precision, betas[0] * np.eye(len(tau))])
    still = np.hstack([np.eye(len(tau)), np.zeros((len(tau), len(tau)))])
    push = np.vstack([np.diag(tau * noise_std), np.diag(noise_std)])
    return np.vstack([still + tau[:, None] * kick, kick]), push @ push.T


def draw_chain(
    loss: Quadratic, tau: Array, lr: float, betas: tuple[float, float], alpha: float
) -> tuple[Array, Array]:
    """F and Q of Algorithm 1's (μ, m, ατε): the draw is the sum of the first and the last."""
    size = len(tau)
    one, none = np.eye(size), np.zeros((size, size))
    pull = betas[1] * loss.precision
    m = np.hstack([pull, betas[0] * one, pull])
    mean = np.hstack([one, none, none]) - lr * tau[:, None] * m
    noise = np.zeros((3 * size, 3 * size))
    noise[2 * size :, 2 * size :] = np.diag((alpha * tau) ** 2)
    return np.vstack([mean, m, np.zeros((size, 3 * size))]), noise


def stationary(chain: tuple[Array, Array]) -> Array:
    """The covariance C = FCFᵀ + Q."""
    return np.asarray(solve_discrete_lyapunov(*chain))


def burn_in(chain: tuple[Array, Array], rest: float = 1e-5) -> int:
    """Steps after which no more than ``rest`` of the start is left."""
    radius = np.abs(np.linalg.eigvals(chain[0])).max()
    return int(np.ceil(np.log(rest) / np.log(radius))) + 20


def assert_law(draws: Array, mean: Array, cov: Array) -> None:
    """Independent draws [n, d] are those of N(mean, cov).

    In whitened coordinates all first and second moments are uncorrelated with known standard
    errors. The mean of the trace, and the sum of squares of all errors, must lie within 4 standard
    errors. Every single moment must lie within the limit that the largest of so many exceeds as
    rarely as one alone exceeds 4.
    """
    count, dim = draws.shape
    root = np.linalg.cholesky(cov)
    white = np.linalg.solve(root, (draws - mean).T).T
    first = np.sqrt(count) * white.mean(0)
    second = white.T @ white / count - np.eye(dim)
    upper = np.triu_indices(dim, 1)
    errors = np.concatenate(
        [first, np.sqrt(count / 2.0) * np.diag(second), np.sqrt(count) * second[upper]]
    )
    limit = norm.isf(norm.sf(4.0) / len(errors))
    trace = np.sqrt(count / (2.0 * dim)) * np.trace(second)
    total = (np.sum(errors**2) - len(errors)) / np.sqrt(2.0 * len(errors))
    assert abs(trace) < 4.0, f"variance off by {trace:.1f} standard errors"
    assert abs(errors).max() < limit, f"a moment is off by {abs(errors).max():.1f} standard errors"
    assert total < 4.0, f"all moments together off by {total:.1f} standard errors"
