"""Backward functions that may be differentiated no further."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InvalidValue


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses second derivatives, at no cost unless a graph of the backward pass is wanted.

    Torch's decorator of that name asks the incoming gradients only whether a graph is needed. Where
    they are constants, as in the last layer of a network, it would leave the weights out of a
    second derivative without a word.
    """

    @wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        with torch.no_grad():
            found = backward(ctx, *gradients)
        sources = [*ctx.saved_tensors, *gradients]
        sources = [t for t in sources if isinstance(t, Tensor) and t.requires_grad]
        if not sources:
            return found
        several = found if isinstance(found, tuple) else (found,)
        places = [place for place, value in enumerate(several) if value is not None]
        apply: Any = _Refusing.apply
        refusing = apply(len(places), *(several[place] for place in places), *sources)
        outcome = list(several)
        for place, value in zip(places, refusing, strict=True):
            outcome[place] = value
        return tuple(outcome) if isinstance(found, tuple) else outcome[0]

    return run


class _Refusing(torch.autograd.Function):
    """Gradients that depend on what follows them, and cannot be differentiated by it."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise InvalidValue(
            "second derivative",
            None,
            "is not known to the native engine, whose gradients are differentiable once",
            'convert with backend="masked", or layer.use_backend("masked")',
        )
