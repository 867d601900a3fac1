"""Natural-gradient steps on vectors of weights, one pass each.

As torch operations a step is some twenty passes over every vector, dearer than Adam's; here it is
one. ``core.natural`` has the same formulas for other devices and dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.langevin import Decay
from gossamer.core.natural import Rates
from gossamer.ops.native import library

_DRAW, _ADAM, _IVON, _PLAIN = range(4)


def is_fused(*tensors: Tensor) -> bool:
    """Whether the functions of this module run on these tensors."""
    first = tensors[0]
    return library.is_available() and all(
        t.device.type == "cpu"
        and t.layout == torch.strided
        and t.dtype in library.DTYPES
        and t.dtype == first.dtype
        and t.shape == first.shape
        and t.is_contiguous()
        for t in tensors
    )


def draw_(
    theta: Tensor, h: Tensor, *, seed: int, first: int, size: float, decay: Decay
) -> tuple[Tensor, Tensor]:
    """Turn μ into a draw; μ and ε are returned."""
    mean, eps = torch.empty_like(theta), torch.empty_like(theta)
    _call(
        _DRAW,
        theta,
        decay,
        seed=seed,
        first=first,
        size=size,
        mean=mean.data_ptr(),
        eps=eps.data_ptr(),
        curvature=h.data_ptr(),
    )
    return mean, eps


def step_(
    theta: Tensor,
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
    """The step of curvature and mean."""
    first = 1.0 - rates.beta**rates.steps
    square = {"square": state["exp_avg_sq"].data_ptr()} if uses_adam else {}
    _call(
        _ADAM if uses_adam else _IVON,
        theta,
        decay,
        size=size,
        lr=rates.lr / first if uses_adam else rates.lr,
        new_gradient=1.0 - rates.beta,
        new_square=1.0 - rates.square_beta,
        new_curvature=1.0 - rates.curvature_beta,
        scale=_root_scale(rates) if uses_adam else 1.0 / first,
        max_step=max_step,
        curvature=state["curvature"].data_ptr(),
        momentum=state["exp_avg"].data_ptr(),
        gradient=grad.data_ptr(),
        product=library.address(product),
        eps=library.address(eps),
        **square,
    )


def adam_(theta: Tensor, grad: Tensor, m: Tensor, v: Tensor, rates: Rates) -> None:
    """Adam's step without posterior and prior."""
    _call(
        _PLAIN,
        theta,
        0.0,
        lr=rates.lr / (1.0 - rates.beta**rates.steps),
        new_gradient=1.0 - rates.beta,
        new_square=1.0 - rates.square_beta,
        scale=_root_scale(rates),
        momentum=m.data_ptr(),
        square=v.data_ptr(),
        gradient=grad.data_ptr(),
    )


def _root_scale(rates: Rates) -> float:
    return float((1.0 - rates.square_beta**rates.steps) ** -0.5)


def _call(task: int, theta: Tensor, decay: Decay, **fields: Any) -> None:
    if isinstance(decay, Tensor):
        fields["decays"] = decay.data_ptr()
    else:
        fields["decay"] = decay
    call = library.Natural(task=task, count=theta.numel(), theta=theta.data_ptr(), **fields)
    dtype = library.DTYPES[theta.dtype]
    library.check(library.loaded().gs_natural(dtype, call, torch.get_num_threads()))
    # The engine writes past torch's knowledge: graphs that saved the old values must not be used.
    torch.autograd.graph.increment_version([theta])
