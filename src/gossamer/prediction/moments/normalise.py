"""Moments after a normalisation over features: of independent Gaussians, to first order.

With z the normalised means, D features and s² the mean square that is divided by,

    LayerNorm   ∂y_i/∂x_j = (δ_ij - (1 + z_i z_j)/D) / s,   RMSNorm   (δ_ij - z_i z_j/D) / s

so the variance of an output sums over all inputs in O(D). s² is taken at its expectation, which
counts the variances in: a feature that is uncertain makes the others smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossamer.prediction.moments.form import Moments


def layer_norm_rule(module: nn.LayerNorm, x: Moments) -> Moments:
    """Centred and scaled over the last axes."""
    axes = tuple(range(-len(module.normalized_shape), 0))
    spread = x.variance.mean(axes, keepdim=True)
    share = 1.0 / _count(x.mean, axes)
    centred = x.mean - x.mean.mean(axes, keepdim=True)
    size = centred.square().mean(axes, keepdim=True) + (1.0 - share) * spread + module.eps
    return _scaled(module, x, centred, size, axes, centring=1.0)


def rms_norm_rule(module: nn.RMSNorm, x: Moments) -> Moments:
    """Scaled over the last axes."""
    axes = tuple(range(-len(module.normalized_shape), 0))
    eps = torch.finfo(x.mean.dtype).eps if module.eps is None else module.eps
    size = (x.mean.square() + x.variance).mean(axes, keepdim=True) + eps
    return _scaled(module, x, x.mean, size, axes, centring=0.0)


def _scaled(
    module: nn.LayerNorm | nn.RMSNorm,
    x: Moments,
    centred: Tensor,
    size: Tensor,
    axes: tuple[int, ...],
    *,
    centring: float,
) -> Moments:
    share = 1.0 / _count(centred, axes)
    z, v = centred * size.rsqrt(), x.variance
    # Σ_j v_j (c + z_i z_j)²/D² - 2 v_i (c + z_i²)/D + v_i, with c = 1 where the mean is taken off.
    crossed = centring * v.mean(axes, keepdim=True)
    crossed = crossed + 2.0 * centring * z * (v * z).mean(axes, keepdim=True)
    crossed = crossed + z.square() * (v * z.square()).mean(axes, keepdim=True)
    own = v * (1.0 - 2.0 * share * (centring + z.square()))
    variance = ((own + share * crossed) / size).clamp(min=0.0)
    bias = getattr(module, "bias", None)
    if module.weight is not None:
        z, variance = z * module.weight, variance * module.weight.square()
    return Moments(z if bias is None else z + bias, variance)


def _count(x: Tensor, axes: tuple[int, ...]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count
