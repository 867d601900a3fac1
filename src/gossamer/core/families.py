"""Distributions of a target around the answer of one sample: densities, distribution functions.

All take float64 tensors that broadcast. Means and standard deviations describe every one of them;
``shape`` is the one number more that two of them need: degrees of freedom ν > 2 of Student's t,
dispersion α > 0 of the negative binomial, whose variance is μ + α μ².
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_NODES = 40
_SPREAD = 14.0
"""Where a component's tails are cut: sinh(14) of its scales. What lies beyond adds less than 1e-5
of a scale to a CRPS even at ν = 2."""
_MOST_NODES = 320
_LEGENDRE = ((-(0.6**0.5), 5 / 9), (0.0, 8 / 9), (0.6**0.5, 5 / 9))
"""Places in [-1, 1] and weights: exact for polynomials of degree 5."""


def normal_log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of N(mean, std²)."""
    z = (value - mean) / std
    return -0.5 * z.square() - std.log() - 0.5 * math.log(2.0 * math.pi)


def normal_cdf(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Distribution function of N(mean, std²)."""
    found: Tensor = torch.special.ndtr((value - mean) / std)
    return found


def student_scale(std: Tensor, df: Tensor) -> Tensor:
    """The scale of the t that has this standard deviation: s = σ √((ν − 2)/ν)."""
    return std * ((df - 2.0) / df).sqrt()


def student_log_prob(value: Tensor, mean: Tensor, std: Tensor, df: Tensor) -> Tensor:
    """Log-density of Student's t with a mean and a standard deviation."""
    return student_log_density((value - mean) / student_scale(std, df), df) - (
        student_scale(std, df).log()
    )


def student_log_density(z: Tensor, df: Tensor) -> Tensor:
    """Log-density of the standard t: Γ((ν+1)/2)/(Γ(ν/2) √(νπ)) (1 + z²/ν)^(−(ν+1)/2)."""
    constant = torch.lgamma(0.5 * (df + 1.0)) - torch.lgamma(0.5 * df) - 0.5 * (math.pi * df).log()
    return constant - 0.5 * (df + 1.0) * torch.log1p(z.square() / df)


def student_cdf(value: Tensor, mean: Tensor, std: Tensor, df: Tensor) -> Tensor:
    """Distribution function of Student's t with a mean and a standard deviation."""
    return _special("stdtr", df, (value - mean) / student_scale(std, df))


def poisson_log_prob(value: Tensor, rate: Tensor) -> Tensor:
    """Log-probability of a count."""
    found: Tensor = torch.special.xlogy(value, rate) - rate - torch.lgamma(value + 1.0)
    return found


def poisson_cdf(value: Tensor, rate: Tensor) -> Tensor:
    """P(count ≤ value), 0 below 0."""
    whole = value.floor().clamp(min=0.0)
    inside: Tensor = torch.special.gammaincc(whole + 1.0, rate)
    return torch.where(value < 0.0, 0.0, inside)


def negative_binomial_log_prob(value: Tensor, log_mean: Tensor, alpha: Tensor) -> Tensor:
    """Log-probability of a count with mean μ and variance μ + α μ², from log μ.

    With r = 1/α: Γ(y+r)/(Γ(r) y!) · (r/(r+μ))^r · (μ/(r+μ))^y.
    """
    size = 1.0 / alpha
    odds = log_mean + alpha.log()  # log μ/r
    choose = torch.lgamma(value + size) - torch.lgamma(size) - torch.lgamma(value + 1.0)
    below = torch.nn.functional.logsigmoid(-odds)
    return choose + size * below + value * torch.nn.functional.logsigmoid(odds)


def negative_binomial_cdf(value: Tensor, mean: Tensor, alpha: Tensor) -> Tensor:
    """P(count ≤ value) = I_{r/(r+μ)}(r, ⌊value⌋ + 1), 0 below 0."""
    whole = value.floor().clamp(min=0.0)
    inside = _special("betainc", 1.0 / alpha, whole + 1.0, 1.0 / (1.0 + alpha * mean))
    return torch.where(value < 0.0, 0.0, inside)


def normal_mixture_crps(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """CRPS of even mixtures of normals ``[S, n]`` at values ``[n]``, in closed form: ``[n]``.

    Grimit et al. (2006): mean of A(y − μ_i, σ_i²) less half the mean of A(μ_i − μ_j, σ_i² + σ_j²),
    where A(m, v) = E|X| of N(m, v).
    """
    variance = std.square()
    to_value = _expected_distance(value - mean, variance).mean(0)
    pairs = torch.zeros_like(value)
    for m, v in zip(mean, variance, strict=True):
        pairs += _expected_distance(mean - m, variance + v).sum(0)
    return to_value - 0.5 * pairs / len(mean) ** 2


def _expected_distance(mean: Tensor, variance: Tensor) -> Tensor:
    std = variance.sqrt()
    z = mean / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return 2.0 * std * density + mean * torch.erf(z / math.sqrt(2.0))


def student_mixture_crps(value: Tensor, mean: Tensor, std: Tensor, df: Tensor) -> Tensor:
    """CRPS of even mixtures of t's: mean of E|X_s − y| less ∫ F (1 − F) dx.

    The first part is closed: E|T| of a standard t about z is z (2 F(z) − 1) + 2 f(z) (ν + z²)/(ν −
    1). The second, half the mean distance of two draws, is not; F is smooth, and three points of
    Gauss-Legendre between the nodes of all components are exact to about 1e-6 of a scale.

    Args:
        value: ``[n]``.
        mean: ``[S, n]``.
        std: ``[S, n]``.
        df: ``[S, n]``.

    Returns:
        ``[n]``.
    """
    scale = student_scale(std, df)
    z = (value - mean) / scale
    density = student_log_density(z, df).exp()
    inner = z * (2.0 * _special("stdtr", df, z) - 1.0)
    to_value = (scale * (inner + 2.0 * density * (df + z.square()) / (df - 1.0))).mean(0)
    grid = torch.linspace(-_SPREAD, _SPREAD, _NODES, dtype=z.dtype, device=z.device).sinh()
    nodes = (mean[:, None] + scale[:, None] * grid[:, None]).flatten(0, 1).sort(0).values
    if len(nodes) > _MOST_NODES:
        kept = torch.linspace(0, len(nodes) - 1, _MOST_NODES, device=z.device).round().long()
        nodes = nodes[kept]
    half = 0.5 * (nodes[1:] - nodes[:-1])
    middle = nodes[:-1] + half
    spread = torch.zeros_like(value)
    for place, weight in _LEGENDRE:
        x = middle + place * half
        below = torch.zeros_like(x)
        for m, s, v in zip(mean, scale, df, strict=True):
            below += _special("stdtr", v, (x - m) / s)
        below /= len(mean)
        spread += weight * (half * below * (1.0 - below)).sum(0)
    return to_value - spread


def _special(name: str, *given: Tensor) -> Tensor:
    """A function of scipy, which torch lacks, on tensors of any device."""
    from scipy import special  # slow to import, and only two families need it

    arrays: list[Any] = [tensor.detach().cpu().double().numpy() for tensor in given]
    found: Any = getattr(special, name)(*arrays)  # a number, not an array, where all are 0-d
    return torch.as_tensor(found, dtype=torch.float64).to(given[0].device)
