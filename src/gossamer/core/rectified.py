"""Mean and variance of a rectified Gaussian, of the larger of two, and of smooth functions of one.

Everything is built from t = |μ|/σ and r(t) = E max(Z - t, 0) = φ(t) - t Φ(-t), Z standard normal:
the textbook forms subtract numbers of the size of μ² and lose a small variance beside a large mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from math import pi, sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_NEGLIGIBLE = {torch.float32: 1e-9, torch.float64: 1e-30}
"""Tails below this share of σ or σ² are taken to be 0: at 6 σ, or 11 in float64.

In deep networks they would become subnormal numbers, with which products take ten times as long.
"""

_FAR = 12.0
"""In standard deviations; farther out nothing is left, and e^(-t²/2) would be subnormal too."""

_NODES = 32

_BLOCK = 1 << 16
"""Elements at a time: the dozen intermediate tensors then stay in the cache."""

Pair = tuple[Tensor, Tensor]


def _in_blocks(formula: Callable[..., Pair]) -> Callable[..., Pair]:
    """The same elementwise formula of tensors of one shape, block by block."""

    @wraps(formula)
    def blocked(*given: Tensor) -> Pair:
        shape, count = given[0].shape, given[0].numel()
        if count <= _BLOCK:
            return formula(*given)
        first, second = given[0].new_empty(count), given[0].new_empty(count)
        blocks = zip(*(torch.split(tensor.reshape(-1), _BLOCK) for tensor in given), strict=True)
        for number, block in enumerate(blocks):
            here = slice(number * _BLOCK, (number + 1) * _BLOCK)
            first[here], second[here] = formula(*block)
        return first.view(shape), second.view(shape)

    return blocked


@_in_blocks
def relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(X, 0) for X ~ N(mean, variance), elementwise.

    E = max(μ, 0) + σ r and Var = σ² (P(X > 0) - r (t + r)). Errors stay below 2e-7 of σ and σ² in
    float32; variance 0 gives max(μ, 0) and 0.

    Example:
        >>> m, v = relu_moments(torch.zeros(1), torch.ones(1))
        >>> round(float(m), 4), round(float(v), 4)  # 1/√(2π), ½ - 1/(2π)
        (0.3989, 0.3408)
    """
    std = _root(variance)
    z = _quotient(mean, std)
    t, _, excess = _tail(z.abs())
    spread = _upper(-z) - excess * (t + excess)
    return mean.clamp(min=0.0) + std * excess, variance.clamp(min=0.0) * spread.clamp(min=0.0)


@_in_blocks
def max_moments(
    mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(X, Y) for independent Gaussians (Clark, Operations Research 1961).

    With X the one of the larger mean, max(X, Y) = X + max(Y - X, 0), and by Stein's lemma
    Cov(X, max(Y - X, 0)) = -Var(X) P(Y > X): both are small corrections to the moments of X.

    Example:
        >>> one, zero = torch.ones(1), torch.zeros(1)
        >>> m, v = max_moments(zero, one, zero, one)
        >>> round(float(m), 4), round(float(v), 4)  # 1/√π, 1 - 1/π
        (0.5642, 0.6817)
    """
    first = mean >= other_mean
    top_mean = torch.where(first, mean, other_mean)
    top_variance = torch.where(first, variance, other_variance)
    total = variance + other_variance
    std = _root(total)
    t, upper, excess = _tail(_quotient(mean - other_mean, std).abs())
    gain = total * (upper - excess * (t + excess)).clamp(min=0.0)
    spread = top_variance * (1.0 - 2.0 * upper) + gain
    return top_mean + std * excess, spread.clamp(min=0.0)


def smooth_moments(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f(X) for a smooth elementwise f, by Gauss-Hermite quadrature.

    Example:
        >>> m, v = smooth_moments(torch.exp, torch.zeros(1), torch.ones(1))
        >>> round(float(m), 4)  # √e
        1.6487
    """
    std = _root(variance)
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    centre = function(mean)
    for node, weight in _hermite():
        # Around f(μ), so that a small variance is not the difference of two large squares.
        value = function(mean + node * std) - centre
        first += weight * value
        second += weight * value.square()
    return centre + first, (second - first.square()).clamp(min=0.0)


def _root(variance: Tensor) -> Tensor:
    """A convolution algorithm may return -1e-12 for a sum of squares."""
    return variance.clamp(min=0.0).sqrt()


def _quotient(distance: Tensor, std: Tensor) -> Tensor:
    """Their ratio, at most ``_FAR``; without any std far out, or 0."""
    smallest = float(torch.finfo(std.dtype).tiny)
    return (distance / std.clamp(min=smallest)).clamp(-_FAR, _FAR)


def _tail(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """t, Φ(-t) and r(t) for t ≥ 0."""
    upper = _upper(t)
    density = torch.exp(-0.5 * t.square()) / sqrt(2.0 * pi)
    return t, upper, _without_dust(density - t * upper)


def _upper(z: Tensor) -> Tensor:
    """Φ(-z)."""
    return _without_dust(0.5 * torch.erfc(sqrt(0.5) * z))


def _without_dust(share: Tensor) -> Tensor:
    return F.threshold(share, _NEGLIGIBLE.get(share.dtype, 1e-9), 0.0)


@lru_cache(maxsize=1)
def _hermite() -> list[tuple[float, float]]:
    """Nodes and weights of the standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return [(float(x), float(w / sqrt(2.0 * pi))) for x, w in zip(nodes, weights, strict=True)]
