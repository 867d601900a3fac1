"""Backward functions that may be differentiated no further."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd import function


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's decorator of that name, at no cost unless a graph of the backward pass is wanted.

    Second derivatives are refused with torch's own error.
    """
    refusing: Callable[..., Any] = function.once_differentiable(backward)

    @wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        return (refusing if torch.is_grad_enabled() else backward)(ctx, *gradients)

    return run
