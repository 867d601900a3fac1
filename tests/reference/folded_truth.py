"""Moments of |θ| and e^{λ|θ|} in 50-digit arithmetic, and the grid on which they are the truth.

The closed forms below are the paper's (Eqs. 6, 7, 16), safe in 50 digits; ``by_quadrature`` knows
only the definition of an expectation and vouches for them.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import torch
from torch import Tensor

mp.mp.dps = 50

RATIOS = (0.0, *(10.0**k for k in range(-6, 6)), 0.3, 0.5, 2.0, 3.0, 5.0, 8.0, 20.0, 38.0)
STDS = (*(10.0**k for k in range(-8, 2)), 3e-4, 0.019, 0.021, 0.4, 0.83, 3.0)


def grid() -> tuple[Tensor, Tensor]:
    """Returns float32 means and stds [n] of all RATIOS x STDS; the truth takes them as rounded."""
    pairs = [(r * s, s) for r in RATIOS for s in STDS]
    mean, std = torch.tensor(pairs, dtype=torch.float64).float().unbind(1)
    return mean, std


def mean_abs(mean: float, std: float) -> mp.mpf:
    mu, sigma = mp.mpf(mean), mp.mpf(std)
    r = mu / sigma
    return mu * (2 * mp.ncdf(r) - 1) + 2 * sigma * mp.npdf(r)


def var_abs(mean: float, std: float) -> mp.mpf:
    return mp.mpf(std) ** 2 + mp.mpf(mean) ** 2 - mean_abs(mean, std) ** 2


def snr_abs(mean: float, std: float) -> mp.mpf:
    return mean_abs(mean, std) / mp.sqrt(var_abs(mean, std))


def mean_exp_abs(mean: float, std: float, lam: float) -> mp.mpf:
    mu, sigma, x = mp.mpf(mean), mp.mpf(std), mp.mpf(lam)
    r, a = mu / sigma, x * sigma
    up = mp.ncdf(r + a) * mp.exp(a * a / 2 + x * mu)
    return up + mp.ncdf(a - r) * mp.exp(a * a / 2 - x * mu)


def log_mean_exp_abs(mean: float, std: float, lam: float) -> mp.mpf:
    return mp.log(mean_exp_abs(mean, std, lam))


def log_snr_exp_abs(mean: float, std: float, lam: float) -> mp.mpf:
    # By logs: the moments themselves can be e^(1e8), and 1 digit of them would hide the variance.
    d = log_mean_exp_abs(mean, std, 2 * lam) - 2 * log_mean_exp_abs(mean, std, lam)
    return -mp.log(mp.expm1(d)) / 2


def by_quadrature(function: Callable[[mp.mpf], mp.mpf], mean: float, std: float) -> mp.mpf:
    """Returns E function(|θ|) by adaptive quadrature around the mean, split at the kink at 0."""
    mu, sigma = mp.mpf(mean), mp.mpf(std)
    marks = sorted({mp.mpf(0)} | {mu + k * sigma for k in range(-24, 41, 4)})
    return mp.quad(lambda x: function(abs(x)) * mp.npdf(x, mu, sigma), marks)


def relative_error(got: float, truth: mp.mpf, floor: float = 0.0) -> float:
    """Returns |got - truth| / max(|truth|, floor); 0 where both are 0."""
    gap = abs(mp.mpf(got) - truth)
    return float(gap / max(abs(truth), mp.mpf(floor))) if gap else 0.0
