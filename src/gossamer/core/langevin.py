"""One step of SGLD and of SGHMC on tensors, the noise passed in; temperatures of Algorithm 2.

L(w) is the mean negative log-likelihood plus (d/2)|w|², d = δ/N the decay (δ the prior precision),
``grad`` the gradient of the likelihood part alone. Temperatures here are those of exp(-L/T): the
posterior of N data points is T = 1/N. A is the Hessian of L. For constant A and full-batch
gradients the stationary law is a Gaussian around argmin L whose covariance is known at every step
size; each function states it. Functions whose name ends in ``_`` change their first tensors in
place; the others leave all arguments alone.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import NamedTuple

from torch import Tensor

from gossamer.errors import InvalidValue

Betas = tuple[float, float]
"""(β₁, β₂): what is kept of the velocity, and the weight of the gradient."""

Decay = float | Tensor
"""δ/N: one number, or a tensor of the weights' shape."""


class Moved(NamedTuple):
    """Weights and velocity after a step."""

    w: Tensor
    v: Tensor


def check_betas(betas: Betas) -> None:
    """Raise unless 0 ≤ β₁ < 1 and β₂ > 0: without friction no temperature holds."""
    beta1, beta2 = betas
    if not (0.0 <= beta1 < 1.0 and beta2 > 0.0 and isfinite(beta2)):
        raise InvalidValue("betas", betas, "need 0 <= beta1 < 1 and beta2 > 0")


def sampled_temperature(noise_scale: float, dt: float, betas: Betas, tau: float = 1.0) -> float:
    """T = (1+β₁²)k²τ/(hβ₂), h = (1-β₁)/Δt: where Algorithm 2 with noise scale k really samples.

    Args:
        noise_scale: k.
        dt: Δt, the root of the optimisers' ``lr``.
        betas: (β₁, β₂).
        tau: The common τ of the printed form; 1 for the exact-noise variant, whatever its τ.

    Returns:
        T; times N it is the temperature relative to the posterior's.
    """
    beta1, beta2 = _checked(noise_scale, dt, betas, tau)
    return (1.0 + beta1**2) * noise_scale**2 * tau * dt / ((1.0 - beta1) * beta2)


def noise_scale(temperature: float, dt: float, betas: Betas, tau: float = 1.0) -> float:
    """The k at which Algorithm 2 samples at T: the inverse of :func:`sampled_temperature`.

    Args:
        temperature: T, 1/N for the posterior.
        dt: Δt, the root of the optimisers' ``lr``.
        betas: (β₁, β₂).
        tau: The common τ of the printed form; 1 for the exact-noise variant.

    Returns:
        k.
    """
    beta1, beta2 = _checked(temperature, dt, betas, tau, "temperature")
    return sqrt((1.0 - beta1) * beta2 * temperature / ((1.0 + beta1**2) * tau * dt))


def spread_of_noise_scale(noise_scale: float, lr: float) -> float:
    """α = kΔt^{1.5} of Algorithm 2, with ``lr`` = Δt²."""
    return float(noise_scale * lr**0.75)


def spread_at_temperature(temperature: float, lr: float, betas: Betas) -> float:
    """α of Algorithm 2 with exact noise at T, with ``lr`` = Δt².

    kΔt^{1.5} with k from :func:`noise_scale`, but 0 instead of 0/0 where a schedule ends at Δt = 0.
    """
    beta1, beta2 = betas
    return sqrt((1.0 - beta1) * beta2 * temperature * lr / (1.0 + beta1**2))


def sgld(
    w: Tensor, grad: Tensor, eps: Tensor, *, lr: float, temperature: float, decay: Decay = 0.0
) -> Tensor:
    """Langevin step, w - lr·g + √(2·lr·T)·ε with g = grad + d·w.

    Cov = T[A - (lr/2)A²]⁻¹; stable iff lr·a < 2 for the largest eigenvalue a of A.

    Args:
        w: Weights, any shape; all tensors have it.
        grad: Gradient of the mean negative log-likelihood.
        eps: Standard normals.
        lr: Step size.
        temperature: T.
        decay: δ/N.
    """
    return sgld_(w.clone(), grad, eps, lr=lr, temperature=temperature, decay=decay)


def sgld_(
    w: Tensor, grad: Tensor, eps: Tensor, *, lr: float, temperature: float, decay: Decay = 0.0
) -> Tensor:
    """:func:`sgld`, in ``w``."""
    pull_(w, w, decay, -lr)
    return w.add_(grad, alpha=-lr).add_(eps, alpha=sqrt(2.0 * lr * temperature))


def momentum_(w: Tensor, v: Tensor, grad: Tensor, *, lr: float, betas: Betas) -> Moved:
    """Descent without noise or prior, v ← β₁v - β₂·lr·grad; w ← w + v, in ``w`` and ``v``."""
    accelerate_(v, w, grad, lr, betas, 0.0)
    return Moved(w.add_(v), v)


def sghmc(
    w: Tensor,
    v: Tensor,
    grad: Tensor,
    eps: Tensor,
    *,
    lr: float,
    betas: Betas,
    temperature: float,
    decay: Decay = 0.0,
) -> Moved:
    """Euler step, v ← β₁v - β₂gΔt² + √(2(1-β₁)β₂T)·Δt·ε; w ← w + v, with g = grad + d·w.

    Along an eigenvector of A this is the autoregression w'' = (1+β₁-γ)w' - β₁w + sε, γ = β₂aΔt²,
    of variance s²/(2(1-β₁)γ(1 - γ/(2(1+β₁)))). This s makes it T over a, up to the last factor:
    Cov = T[A - (β₂Δt²/(2(1+β₁)))A²]⁻¹; stable iff β₂aΔt² < 2(1+β₁). It is Algorithm 2 at τ = 1,
    and at β = (0, 1) SGLD.

    Args:
        w: Weights, any shape; all tensors have it.
        v: Velocity.
        grad: Gradient of the mean negative log-likelihood.
        eps: Standard normals.
        lr: Δt².
        betas: (β₁, β₂).
        temperature: T.
        decay: δ/N.
    """
    return sghmc_(
        w.clone(), v.clone(), grad, eps, lr=lr, betas=betas, temperature=temperature, decay=decay
    )


def sghmc_(
    w: Tensor,
    v: Tensor,
    grad: Tensor,
    eps: Tensor,
    *,
    lr: float,
    betas: Betas,
    temperature: float,
    decay: Decay = 0.0,
) -> Moved:
    """:func:`sghmc`, in ``w`` and ``v``."""
    beta1, beta2 = betas
    accelerate_(v, w, grad, lr, betas, decay)
    v.add_(eps, alpha=sqrt(2.0 * (1.0 - beta1) * beta2 * temperature * lr))
    return Moved(w.add_(v), v)


def accelerate_(
    v: Tensor, w: Tensor, grad: Tensor, lr: float, betas: Betas, decay: Decay
) -> Tensor:
    """Velocity without noise, v ← β₁v - β₂Δt²(grad + d·w), in ``v``; ``lr`` = Δt²."""
    v.mul_(betas[0]).add_(grad, alpha=-betas[1] * lr)
    return pull_(v, w, decay, -betas[1] * lr)


def pull_(target: Tensor, w: Tensor, decay: Decay, scale: float) -> Tensor:
    """``target`` += scale·decay·w, in place; nothing to do without a prior."""
    if isinstance(decay, Tensor):
        return target.addcmul_(w, decay, value=scale)
    return target.add_(w, alpha=scale * decay) if decay != 0.0 else target


def _checked(
    amount: float, dt: float, betas: Betas, tau: float, name: str = "noise_scale"
) -> Betas:
    """The betas, once all four are known to make sense."""
    if not (amount >= 0.0 and isfinite(amount)):
        raise InvalidValue(name, amount, "must be finite and not negative")
    if not (dt > 0.0 and isfinite(dt)):
        raise InvalidValue("dt", dt, "must be finite and > 0")
    if not 0.0 < tau <= 1.0:
        raise InvalidValue("tau", tau, "must lie in (0, 1]")
    check_betas(betas)
    return betas
