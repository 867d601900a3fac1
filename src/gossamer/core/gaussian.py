"""Gaussian posteriors of one weight each: the std behind its raw parameter, and the KL to a prior.

Everything is elementwise, differentiable and keeps the dtype of its input.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.errors import InvalidValue

# torch's softplus returns its input above the threshold. At its default, 20, that is wrong in the
# tenth digit in float64; at 40 the two sides agree to the last bit, and exp(40) fits in float32.
_SOFTPLUS_THRESHOLD = 40.0

# Up to here in |t - 1| the KL uses a series; beyond, t - 1 - log t loses a factor of 30 at most.
_SERIES_BELOW = 0.1


def std_from_raw(raw: Tensor) -> Tensor:
    """Returns the standard deviation, softplus(raw) = log(1 + e^raw).

    Args:
        raw: Softplus pre-image, any shape.

    Returns:
        Positive tensor of the same shape and dtype.
    """
    return F.softplus(raw, threshold=_SOFTPLUS_THRESHOLD)


def raw_from_std(std: Tensor) -> Tensor:
    """Returns the raw parameter whose softplus is ``std``: the inverse of :func:`std_from_raw`.

    log(e^std - 1) would overflow for a large std and cancel for a small one; written as
    std + log(1 - e^-std) it does neither. In float32 the raw value of a tiny std is only known to
    half an ulp of its own size, so that 1e-12 returns with a relative error up to 2e-6.

    Args:
        std: Standard deviations, any shape, all > 0.

    Returns:
        Tensor of the same shape and dtype.

    Raises:
        InvalidValue: Where a std is 0, negative, infinite or NaN.
    """
    wrong = ~((std > 0) & torch.isfinite(std))
    if bool(wrong.any()):
        first = float(std.detach()[wrong][0])
        raise InvalidValue("std", first, "must be finite and > 0", "no raw_std has this softplus")
    return std + torch.log(-torch.expm1(-std))


def kl_to_prior(
    mean: Tensor,
    std: Tensor,
    prior_std: float | Tensor,
    prior_mean: float | Tensor = 0.0,
) -> Tensor:
    """Returns KL(N(mean, std²) || N(prior_mean, prior_std²)) of each element, in nats.

    With t = (std / prior_std)² and d = (mean - prior_mean) / prior_std it is
    ½ (t - 1 - log t) + ½ d².

    Args:
        mean: Posterior means, any shape.
        std: Posterior standard deviations, > 0, the shape of ``mean``.
        prior_std: Prior standard deviation, > 0; a number, or a tensor that broadcasts.
        prior_mean: Prior mean; a number, or a tensor that broadcasts.

    Returns:
        Tensor of the shape and dtype of ``mean``, never negative.
    """
    # expand_as: a prior larger than the weights is an error, not a KL counted several times.
    prior = _tensor_like(prior_std, mean).expand_as(mean)
    shift = (mean - _tensor_like(prior_mean, mean)) / prior
    spread: Tensor = _Spread.apply(std, prior)  # type: ignore[no-untyped-call]
    return spread + 0.5 * shift * shift


def _tensor_like(value: float | Tensor, like: Tensor) -> Tensor:
    """Returns ``value`` in the dtype and on the device of ``like``."""
    return value.to(like) if isinstance(value, Tensor) else like.new_full((), value)


class _Spread(torch.autograd.Function):
    """½ (t - 1 - log t) with t = (std / prior)², both of one shape.

    Near t = 1 this is the small rest of large terms, so it needs three cases to be right to the
    last digits everywhere. Its derivatives need none: they are (t - 1) / std and -(t - 1) / prior.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(std: Tensor, prior: Tensor) -> Tensor:
        excess = (std - prior) / prior  # exact difference: nothing is lost near t = 1
        u = excess * (2.0 + excess)  # t - 1
        log_ratio = torch.where(excess > -0.5, torch.log1p(excess), torch.log(std / prior))
        near = 0.5 * _u_minus_log1p(u)
        return torch.where(u.abs() < _SERIES_BELOW, near, 0.5 * u - log_ratio)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        std, prior = ctx.saved_tensors
        excess = (std - prior) / prior
        flow = grad * excess * (2.0 + excess)
        to_std = flow / std if ctx.needs_input_grad[0] else None
        to_prior = -flow / prior if ctx.needs_input_grad[1] else None
        return to_std, to_prior


def _u_minus_log1p(u: Tensor) -> Tensor:
    """Returns u - log(1 + u) for |u| < 0.1 to full relative accuracy.

    With w = u / (2 + u), log(1 + u) = 2 artanh w = 2w + 2w³/3 + 2w⁵/5 + … and u - 2w = u w exactly,
    which leaves nothing to cancel. The first term left out is 7e-16 of the sum.
    """
    w = u / (2.0 + u)
    s = w * w
    tail = 1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11))))
    return w * (u - 2.0 * s * tail)
