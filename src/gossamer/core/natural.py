"""One step of natural-gradient variational inference on tensors, the noise passed in.

The posterior is N(μ, σ²) with σ² = T/(N(h + d)): h estimates the diagonal of the Hessian of the
mean negative log-likelihood L, averaged over the posterior; d = δ/N is the decay (δ the prior
precision), T the temperature relative to the posterior's, N the number of examples. Everything that
is learnt beside μ is h, so the posterior lives in the optimiser.

The step on h is that of IVON (Shen et al., ICML 2024), who take it from Lin et al. (ICML 2020): it
follows the natural gradient along a geodesic to second order, so that h + d stays positive whatever
the gradients are. μ moves by IVON's natural gradient or by Adam's rule. Functions whose name ends
in ``_`` change tensors in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core.langevin import Decay, pull_

STABILITY = 1e-8
"""Added to the root in Adam's rule, as torch does."""


@dataclass(frozen=True)
class Rates:
    """The numbers of a step that all weights of a parameter share.

    Attributes:
        lr: Step on μ; under ``natural_`` it is α·(h₀ + d) in IVON's words.
        beta: β₁ of the running average m of the gradients.
        square_beta: Of the running average v of their squares.
        curvature_beta: β₂ of h.
        steps: t, this step included: averages that began at 0 are divided by 1 - βᵗ.
    """

    lr: float
    beta: float
    square_beta: float
    curvature_beta: float
    steps: int


def posterior_std(h: Tensor, *, size: float, decay: Decay) -> Tensor:
    """σ = (size·(h + d))^-½.

    Args:
        h: Curvature, any shape.
        size: N/T.
        decay: d = δ/N.
    """
    return (h + decay).mul_(size).rsqrt_()


def curvature_(
    h: Tensor, product: Tensor, *, size: float, curvature_beta: float, decay: Decay
) -> Tensor:
    """H ← βh + (1-β)ĥ + ½(1-β)²(ĥ - h)²/(h + d) with ĥ = ε·grad/σ, in ``h``.

    The mean of ĥ over ε is that of the diagonal Hessian (Stein's identity). With
    x = (1-β)(ĥ - h)/(h + d) the new h + d is the old one times 1 + x + x²/2 ≥ ½.

    Args:
        h: Curvature.
        product: ε·grad, grad being the gradient of L at μ + σε.
        size: N/T.
        curvature_beta: β.
        decay: d = δ/N.

    Returns:
        The σ that the gradient was taken with.
    """
    std = posterior_std(h, size=size, decay=decay)
    change = (product / std).sub_(h).mul_(1.0 - curvature_beta)
    correction = change.square().div_(h + decay)
    h.add_(change).add_(correction, alpha=0.5)
    return std


def adam_(mean: Tensor, grad: Tensor, m: Tensor, v: Tensor, rates: Rates) -> Tensor:
    """Adam's step: m and v follow ``grad``, then μ ← μ - lr·m̂/(√v̂ + 1e-8)."""
    m.lerp_(grad, 1.0 - rates.beta)
    v.mul_(rates.square_beta).addcmul_(grad, grad, value=1.0 - rates.square_beta)
    first, second = 1.0 - rates.beta**rates.steps, 1.0 - rates.square_beta**rates.steps
    root = v.sqrt().mul_(second**-0.5).add_(STABILITY)
    return mean.addcdiv_(m, root, value=-rates.lr / first)


def natural_(
    mean: Tensor,
    grad: Tensor,
    m: Tensor,
    h: Tensor,
    rates: Rates,
    *,
    decay: Decay,
    limit: Tensor | None = None,
) -> Tensor:
    """IVON's step: m follows ``grad``, then μ ← μ - clip(lr·(m̂ + dμ)/(h + d)).

    Args:
        mean: μ.
        grad: Gradient of L at the draw.
        m: Running average of gradients.
        h: Curvature after its own step.
        rates: The step's numbers.
        decay: d = δ/N.
        limit: The most that any weight may move; ``None`` for no guard.
    """
    m.lerp_(grad, 1.0 - rates.beta)
    corrected = m / (1.0 - rates.beta**rates.steps)
    move = pull_(corrected, mean, decay, 1.0).div_(h + decay).mul_(rates.lr)
    if limit is not None:
        torch.clamp(move, -limit, limit, out=move)
    return mean.sub_(move)
