"""One step of the constrained variational samplers (cvadam2023) on tensors, the noise passed in.

Algorithm 1 (CV-Adam) and Algorithm 2 (its SGHMC form), which are not equivalent. Words, signs and
the meaning of ``_`` at the end of a name are those of :mod:`gossamer.core.langevin`.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.langevin import Betas, Decay, Moved, accelerate_, pull_


class Adapted(NamedTuple):
    """Weights, velocity and ρ = logit τ after a step of Algorithm 2."""

    w: Tensor
    v: Tensor
    rho: Tensor


class Drawn(NamedTuple):
    """Draw, mean, momentum and ρ = logit τ after a step of Algorithm 1."""

    w: Tensor
    mean: Tensor
    m: Tensor
    rho: Tensor


def adapt_(
    rho: Tensor,
    eps: Tensor,
    grad: Tensor,
    *,
    alpha: float,
    temperature: float,
    tau_lr: float,
    decay: Decay = 0.0,
) -> Tensor:
    """Mirror-descent step on ρ = logit τ, in ``rho``: ρ ← ρ + η(T/τ - α²dτ - αε⊙grad).

    The gradient is that of the likelihood alone. The printed step takes the whole g, which counts
    the prior twice and would settle at 1/(NH + 2δ) for 1/(NH + δ).

    Args:
        rho: logit τ, any shape; all tensors have it.
        eps: The normals inside the weights at which ``grad`` was taken.
        grad: Gradient of the mean negative log-likelihood.
        alpha: α.
        temperature: T; the paper's 1/N.
        tau_lr: η; 0 freezes τ.
        decay: δ/N.

    Returns:
        The new τ.
    """
    if tau_lr == 0.0:
        return torch.sigmoid(rho)
    tau = torch.sigmoid(rho)
    rho.addcmul_(eps, grad, value=-tau_lr * alpha)
    pull_(rho, tau, decay, -tau_lr * alpha**2)
    rho.add_(tau.reciprocal_(), alpha=tau_lr * temperature)
    return torch.sigmoid(rho)


def cv_sghmc(
    w: Tensor,
    v: Tensor,
    rho: Tensor,
    previous: Tensor,
    grad: Tensor,
    eps: Tensor,
    *,
    lr: float,
    betas: Betas,
    alpha: float,
    temperature: float,
    tau_lr: float,
    decay: Decay = 0.0,
    exact_noise: bool = False,
) -> Adapted:
    """Algorithm 2: :func:`adapt_`, then v ← β₁v - β₂gΔt² + √(2+2β₁²)·α·ε; w ← w + τ⊙v.

    The paper prints w - τ⊙v, against its own Eq. 6. With α = kΔt^{1.5} and one frozen τ,
    Cov = T[A - (τβ₂Δt²/(2(1+β₁)))A²]⁻¹ at T = :func:`sampled_temperature`; stable iff
    τβ₂aΔt² < 2(1+β₁). With unequal τ each weight feels the temperature of its own τ, and no k gives
    the posterior. ``exact_noise`` divides the noise by √τ; then for any frozen τ
    Cov = T[A - (β₂Δt²/(2(1+β₁)))·A diag(τ) A]⁻¹, T that of τ = 1.
    Mini-batch noise of variance V in ``grad`` turns (2+2β₁²)k² into (2+2β₁²)k² + β₂²VΔt (with exact
    noise: + τβ₂²VΔt).

    τ settles at min(1, √(T/(α²(d + cH)))), c = √(2+2β₁²), H a diagonal entry of the likelihood's
    Hessian, which is not the optimum of variational inference. With exact noise it solves
    α²(dτ² + cHτ^{1.5}) = T.

    Args:
        w: Weights, any shape; all tensors have it.
        v: Velocity.
        rho: logit τ.
        previous: The ``eps`` of the step that led to ``w``.
        grad: Gradient of the mean negative log-likelihood at ``w``.
        eps: Fresh standard normals.
        lr: Δt².
        betas: (β₁, β₂).
        alpha: α = kΔt^{1.5}.
        temperature: T of the step on ρ; the paper's 1/N.
        tau_lr: η; 0 freezes τ.
        decay: δ/N.
        exact_noise: Divide the noise by √τ.
    """
    w, v, rho = w.clone(), v.clone(), rho.clone()
    tau = adapt_(
        rho, previous, grad, alpha=alpha, temperature=temperature, tau_lr=tau_lr, decay=decay
    )
    cv_sghmc_move_(
        w, v, tau, grad, eps, lr=lr, betas=betas, alpha=alpha, decay=decay, exact_noise=exact_noise
    )
    return Adapted(w, v, rho)


def cv_sghmc_move_(
    w: Tensor,
    v: Tensor,
    tau: Tensor,
    grad: Tensor,
    eps: Tensor,
    *,
    lr: float,
    betas: Betas,
    alpha: float,
    decay: Decay = 0.0,
    exact_noise: bool = False,
) -> Moved:
    """The part of :func:`cv_sghmc` after τ, in ``w`` and ``v``."""
    accelerate_(v, w, grad, lr, betas, decay)
    scale = sqrt(2.0 + 2.0 * betas[0] ** 2) * alpha
    if exact_noise:
        v.addcmul_(eps, tau.rsqrt(), value=scale)
    else:
        v.add_(eps, alpha=scale)
    return Moved(w.addcmul_(tau, v), v)


def cv_adam(
    w: Tensor,
    mean: Tensor,
    m: Tensor,
    rho: Tensor,
    previous: Tensor,
    grad: Tensor,
    eps: Tensor,
    *,
    lr: float,
    betas: Betas,
    alpha: float,
    temperature: float,
    tau_lr: float,
    decay: Decay = 0.0,
) -> Drawn:
    """Algorithm 1 from one draw to the next.

    m ← β₁m + β₂g(w); :func:`adapt_`; μ ← μ - lτ⊙m; then the next draw, w = μ + ατ⊙ε.

    With τ and l constant and v_t = (w_t - w_{t-1})/τ this is, exactly,
    v_{t+1} = β₁v_t - lβ₂g(w_t) + α[ε_{t+1} - (1+β₁)ε_t + β₁ε_{t-1}]. The bracket has no power at
    frequency 0: unlike Algorithm 2 it does not diffuse. μ tends to the posterior mean and ατ_i to
    √(T/A_ii) where that is below α; else τ_i tends to 1.

    Args:
        w: The present draw, μ + ατ⊙ε of ``previous``; any shape, all tensors have it.
        mean: μ.
        m: Momentum.
        rho: logit τ.
        previous: The normals of the present draw.
        grad: Gradient of the mean negative log-likelihood at ``w``.
        eps: The normals of the next draw.
        lr: l.
        betas: (β₁, β₂).
        alpha: α, the largest standard deviation.
        temperature: T; the paper's 1/N.
        tau_lr: η; 0 freezes τ.
        decay: δ/N.
    """
    w, mean, m, rho = w.clone(), mean.clone(), m.clone(), rho.clone()
    cv_adam_mean_(m, w, grad, betas=betas, decay=decay)
    tau = adapt_(
        rho, previous, grad, alpha=alpha, temperature=temperature, tau_lr=tau_lr, decay=decay
    )
    cv_adam_draw_(w, mean, m, tau, eps, lr=lr, alpha=alpha)
    return Drawn(w, mean, m, rho)


def cv_adam_mean_(
    m: Tensor, w: Tensor, grad: Tensor, *, betas: Betas, decay: Decay = 0.0
) -> Tensor:
    """The first line of :func:`cv_adam`, m ← β₁m + β₂(grad + d·w), in ``m``."""
    m.mul_(betas[0]).add_(grad, alpha=betas[1])
    return pull_(m, w, decay, betas[1])


def cv_adam_draw_(
    w: Tensor, mean: Tensor, m: Tensor, tau: Tensor, eps: Tensor, *, lr: float, alpha: float
) -> Tensor:
    """The last lines of :func:`cv_adam`, μ ← μ - lτ⊙m; w ← μ + ατ⊙ε, in ``mean`` and ``w``."""
    mean.addcmul_(tau, m, value=-lr)
    return torch.addcmul(mean, tau, eps, value=alpha, out=w)
