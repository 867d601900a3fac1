"""Draws and steps of natural-gradient inference: by the native engine, or the same in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core import natural as reference
from gossamer.core.langevin import Decay, pull_
from gossamer.core.natural import Rates
from gossamer.ops.native import natural as native
from gossamer.ops.noise import normal


def draw_(
    theta: Tensor, h: Tensor, *, seed: int, first: int, size: float, decay: Decay
) -> tuple[Tensor, Tensor]:
    """θ = μ + σε in place of μ.

    Args:
        theta: μ; the draw afterwards.
        h: Curvature, of its shape.
        seed: Of the noise.
        first: Counter of the first element's noise.
        size: N/T.
        decay: d = δ/N.

    Returns:
        A copy of μ, and ε.
    """
    if native.is_fused(theta, h, *_tensors(decay)):
        return native.draw_(theta, h, seed=seed, first=first, size=size, decay=decay)
    mean = theta.detach().clone()
    counters = torch.arange(first, first + theta.numel(), device=theta.device)
    eps = normal(torch.tensor(seed), counters, _noise_dtype(theta)).view(theta.shape).to(theta)
    theta.addcmul_(reference.posterior_std(h, size=size, decay=decay), eps)
    return mean, eps


def step_(
    mean: Tensor,
    grad: Tensor,
    product: Tensor | None,
    state: dict[str, Any],
    rates: Rates,
    *,
    size: float,
    decay: Decay,
    max_step: float,
    uses_adam: bool,
    eps: Tensor | None = None,
) -> None:
    """One step of curvature, moments and mean, all in place.

    Args:
        mean: μ.
        grad: Gradient of the mean negative log-likelihood at the draw.
        product: ε⊙grad, summed over draws; ``None`` where it is ``eps`` times ``grad``.
        state: ``curvature``, ``exp_avg`` and, under Adam's rule, ``exp_avg_sq``.
        rates: The step's numbers.
        size: N/T.
        decay: d = δ/N.
        max_step: The most that a weight moves under IVON's rule, in σ; may be infinite.
        uses_adam: Whether μ moves by Adam's rule on grad + dμ, or by IVON's.
        eps: ε, where there is no ``product``: the engine then needs no pass for it.
    """
    noise = eps if product is None else product
    assert noise is not None
    held = [state["curvature"], state["exp_avg"], noise, *_tensors(decay)]
    if uses_adam:
        held.append(state["exp_avg_sq"])
    if native.is_fused(mean, grad, *held):
        native.step_(
            mean,
            grad,
            product,
            state,
            rates,
            size=size,
            decay=decay,
            max_step=max_step,
            uses_adam=uses_adam,
            eps=eps,
        )
        return
    if product is None:
        product = noise * grad
    h = state["curvature"]
    std = reference.curvature_(
        h, product, size=size, curvature_beta=rates.curvature_beta, decay=decay
    )
    if uses_adam:
        total = pull_(grad.clone(), mean, decay, 1.0)
        reference.adam_(mean, total, state["exp_avg"], state["exp_avg_sq"], rates)
        return
    limit = std.mul_(max_step)
    reference.natural_(mean, grad, state["exp_avg"], h, rates, decay=decay, limit=limit)


def adam_(mean: Tensor, grad: Tensor, m: Tensor, v: Tensor, rates: Rates) -> None:
    """Adam's step without posterior and prior, in place."""
    if native.is_fused(mean, grad, m, v):
        native.adam_(mean, grad, m, v, rates)
    else:
        reference.adam_(mean, grad, m, v, rates)


def _tensors(decay: Decay) -> tuple[Tensor, ...]:
    return (decay,) if isinstance(decay, Tensor) else ()


def _noise_dtype(theta: Tensor) -> torch.dtype:
    return torch.float64 if theta.dtype == torch.float64 else torch.float32
