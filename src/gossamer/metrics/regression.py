"""Errors and proper scores of regression predictions.

A predictive distribution is an equally weighted mixture of S Gaussians per row: one per posterior
sample, with the likelihood's noise in its standard deviation. Targets are [B], or [B, D] for D
outputs; members are [S, B] or [S, B, D]. Everything is in the units of the target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.metrics._validation import (
    check_interval,
    check_level,
    check_members,
    check_mixture,
    check_real,
    check_same_shape,
)

# Elements [S, columns] per block: bounds the temporaries of the pairwise sum at some megabytes.
_BLOCK_ELEMENTS = 2**18


def rmse(mean: Tensor, target: Tensor) -> float:
    """Root of the mean squared error over all rows and outputs.

    Args:
        mean: [B] or [B, D], predictive means.
        target: Of the same shape.

    Example:
        >>> rmse(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0])) == 4.5**0.5
        True
    """
    predicted, observed = check_real("mean", mean), check_real("target", target)
    check_same_shape("mean", mean, "target", target)
    return float((predicted - observed).square().mean().sqrt())


def mae(mean: Tensor, target: Tensor) -> float:
    """Mean absolute error over all rows and outputs.

    Args:
        mean: [B] or [B, D], predictive means.
        target: Of the same shape.

    Example:
        >>> mae(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]))
        1.5
    """
    predicted, observed = check_real("mean", mean), check_real("target", target)
    check_same_shape("mean", mean, "target", target)
    return float((predicted - observed).abs().mean())


def r2(mean: Tensor, target: Tensor) -> float | None:
    """Share of the targets' variance that the means explain, averaged over outputs.

    1 − Σ (y − μ)² / Σ (y − ȳ)², with ȳ of the rows measured: 0 is a constant's, below is worse.

    Args:
        mean: [B] or [B, D], predictive means.
        target: Of the same shape.

    Returns:
        ``None`` where the targets of an output are all alike: there is nothing to explain.

    Example:
        >>> r2(torch.tensor([1.0, 2.0, 3.0, 2.0]), torch.tensor([0.0, 2.0, 4.0, 2.0]))
        0.75
    """
    predicted, observed = check_real("mean", mean), check_real("target", target)
    check_same_shape("mean", mean, "target", target)
    centred = observed - observed.mean(dim=0, keepdim=True)
    total = centred.square().sum(dim=0)
    if bool((total == 0.0).any()):
        return None
    return float((1.0 - (predicted - observed).square().sum(dim=0) / total).mean())


def gaussian_mixture_nll(means: Tensor, stds: Tensor, target: Tensor) -> float:
    """Mean over rows of −log (1/S) Σ_s N(y; μ_s, σ_s²), in nats.

    With D outputs a component is the product of its D Gaussians: the members share one draw.

    Args:
        means: [S, B] or [S, B, D].
        stds: Of the same shape, above 0.
        target: [B] or [B, D].

    Example:
        >>> zero = torch.zeros(1, 1)
        >>> round(gaussian_mixture_nll(zero, zero + 1, zero[0]), 4)  # log(2π) / 2
        0.9189
    """
    means, stds, target = check_mixture(means, stds, target)
    z = (target - means) / stds
    log_density = -0.5 * z.square() - stds.log() - 0.5 * math.log(2 * math.pi)
    per_row = log_density.sum(dim=2) if target.dim() == 2 else log_density
    return float(math.log(means.shape[0]) - per_row.logsumexp(dim=0).mean())


def gaussian_mixture_crps(means: Tensor, stds: Tensor, target: Tensor) -> float:
    """Continuous ranked probability score of the mixture, in closed form, averaged.

    Grimit et al. (2006), with A(m, v) = 2 √v φ(m/√v) + m (2 Φ(m/√v) − 1)::

        CRPS = (1/S) Σ_i A(y − μ_i, σ_i²) − 1/(2 S²) Σ_i Σ_j A(μ_i − μ_j, σ_i² + σ_j²)

    Costs S² per row in time; memory is bounded by working through blocks of rows and one distance
    i − j at a time. With D outputs it is the mean over the D marginals.

    Args:
        means: [S, B] or [S, B, D].
        stds: Of the same shape, above 0.
        target: [B] or [B, D].

    Example:
        >>> zero = torch.zeros(1, 1)
        >>> round(gaussian_mixture_crps(zero, zero + 1, zero[0]), 4)  # (√2 − 1) / √π
        0.2337
    """
    means, stds, target = check_mixture(means, stds, target)
    mean, std, y = means.flatten(start_dim=1), stds.flatten(start_dim=1), target.flatten()
    step = max(1, _BLOCK_ELEMENTS // mean.shape[0])
    total = 0.0
    for start in range(0, y.numel(), step):
        rows = slice(start, start + step)
        total += _mixture_crps_sum(mean[:, rows], std[:, rows].square(), y[rows])
    return total / y.numel()


def sample_crps(samples: Tensor, target: Tensor) -> float:
    """CRPS of the empirical distribution of S draws, averaged over rows and outputs.

    (1/S) Σ_i |x_i − y| − 1/(2 S²) Σ_i Σ_j |x_i − x_j|, by sorting. It is the score of the S points
    themselves; as an estimate for the distribution they come from it is too high by O(1/S).

    Args:
        samples: [S, B] or [S, B, D].
        target: [B] or [B, D].

    Example:
        >>> sample_crps(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]))
        0.5
    """
    samples, target = check_members("samples", samples, target)
    offset, num_samples = samples - target, samples.shape[0]
    # Σ_i Σ_j |x_i − x_j| / 2 = Σ_i (2 i − S − 1) x_(i), i = 1..S in increasing order.
    rank = torch.arange(1 - num_samples, num_samples, 2, dtype=torch.float64)
    spread = torch.tensordot(rank, offset.sort(dim=0).values, dims=1) / num_samples**2
    return float((offset.abs().mean(dim=0) - spread).mean())


def gaussian_mixture_cdf(means: Tensor, stds: Tensor, target: Tensor) -> Tensor:
    """Mixture distribution function at the target (the PIT value); uniform if calibrated.

    Args:
        means: [S, B] or [S, B, D].
        stds: Of the same shape, above 0.
        target: [B] or [B, D].

    Returns:
        Float64 tensor of the shape of ``target``.

    Example:
        >>> gaussian_mixture_cdf(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)).item()
        0.5
    """
    means, stds, target = check_mixture(means, stds, target)
    below: Tensor = torch.special.ndtr((target - means) / stds)
    return below.mean(dim=0)


def gaussian_mixture_coverage(
    means: Tensor, stds: Tensor, target: Tensor, level: float = 0.9
) -> float:
    """Share of targets inside the mixture's central interval of probability ``level``.

    The target lies between the two quantiles exactly if its distribution function value does lie
    between (1 − level)/2 and (1 + level)/2, so no quantile has to be solved for.

    Args:
        means: [S, B] or [S, B, D].
        stds: Of the same shape, above 0.
        target: [B] or [B, D].
        level: Nominal probability in (0, 1).

    Example:
        >>> mean, std = torch.zeros(1, 2), torch.ones(1, 2)
        >>> gaussian_mixture_coverage(mean, std, torch.tensor([0.5, 2.0]))
        0.5
    """
    check_level(level)
    distance = (gaussian_mixture_cdf(means, stds, target) - 0.5).abs()
    return float((distance <= level / 2).double().mean())


def interval_coverage(lower: Tensor, upper: Tensor, target: Tensor) -> float:
    """Share of targets in the closed interval [lower, upper].

    Args:
        lower: [B] or [B, D].
        upper: Of the same shape, nowhere below ``lower``.
        target: Of the same shape.

    Example:
        >>> interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 1.5]))
        0.5
    """
    low, high = check_interval(lower, upper)
    observed = check_real("target", target)
    check_same_shape("target", target, "lower", lower)
    return float(((low <= observed) & (observed <= high)).double().mean())


def mean_interval_width(lower: Tensor, upper: Tensor) -> float:
    """Mean of upper − lower: what the coverage costs.

    Args:
        lower: [B] or [B, D].
        upper: Of the same shape, nowhere below ``lower``.

    Example:
        >>> mean_interval_width(torch.zeros(2), torch.tensor([1.0, 2.0]))
        1.5
    """
    low, high = check_interval(lower, upper)
    return float((high - low).mean())


def _mixture_crps_sum(mean: Tensor, var: Tensor, target: Tensor) -> float:
    """Sum of the mixture CRPS over columns: mean and variance [S, n], target [n]."""
    num_members = mean.shape[0]
    to_target = _expected_distance(target - mean, var).sum(dim=0)
    # The diagonal of the double sum is A(0, 2σ²) = 2σ/√π; pairs i < j count twice.
    pairs = (2 / math.sqrt(math.pi)) * var.sqrt().sum(dim=0)
    for gap in range(1, num_members):
        between = _expected_distance(mean[gap:] - mean[:-gap], var[gap:] + var[:-gap])
        pairs = pairs + 2 * between.sum(dim=0)
    return float((to_target / num_members - pairs / (2 * num_members**2)).sum())


def _expected_distance(mean: Tensor, var: Tensor) -> Tensor:
    """A(m, v) = E|X| for X ~ N(m, v), elementwise."""
    std = var.sqrt()
    z = mean / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
