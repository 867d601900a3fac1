"""Variances and the KL of a layer's Gaussian weights, one pass over them each.

As torch operations they are some forty small ones per layer and step, dearer than the product of a
sparse layer. ``core.gaussian`` has the same formulas for everything that does not run here: other
devices and dtypes, torch.func transforms.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gossamer.core.gaussian import std_from_raw
from gossamer.errors import InvalidData, InvalidValue
from gossamer.ops.native import checks, library
from gossamer.ops.torch_private import has_memory, is_recorded

_VARIANCE, _VARIANCE_BACKWARD, _KL = range(3)


def is_fused(*parameters: Tensor) -> bool:
    """Whether ``variance`` and ``kl_sum`` run on these parameters."""
    return library.is_available() and all(
        has_memory(p)
        and (p.is_cpu and p.dtype in library.DTYPES and p.dtype == parameters[0].dtype)
        for p in parameters
    )


def variance(raw: Tensor) -> Tensor:
    """softplus(raw)² ``[nnz]``."""
    traced = torch.compiler.is_compiling() or is_recorded()
    run: Any = _variance if traced else _Variance.apply
    found: Tensor = run(raw)
    return found


def variance_of(raw: Tensor) -> Tensor:
    """``variance`` where it runs, else the same of torch operations; in float32 at least."""
    return variance(raw) if is_fused(raw) else std_from_raw(at_least_float32(raw)).square()


def at_least_float32(x: Tensor) -> Tensor:
    """``x``, half precision made single."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def kl_sum(mean: Tensor, raw: Tensor, prior_std: float) -> Tensor:
    """Σ KL(N(mean, softplus(raw)²) || N(0, prior_std²)), 0-d, summed in double."""
    run: Any = _kl if torch.compiler.is_compiling() or is_recorded() else _KlSum.apply
    saves = torch.is_grad_enabled() and raw.requires_grad
    found: Tensor = run(mean, raw, prior_std, saves)[0]
    return found


def second_moment(mean: Tensor, raw: Tensor) -> float:
    """Σ (mean² + softplus(raw)²), summed in double and in one order for any number of threads."""
    if mean.numel() != raw.numel():
        raise InvalidData(
            "deviations of the weights",
            tuple(raw.shape),
            f"must have the shape of the means, {mean.shape}",
        )
    mean, raw, total = mean.detach().contiguous(), raw.detach().contiguous(), ctypes.c_double()
    library.check(
        library.loaded().gs_second_moment(
            library.DTYPES[raw.dtype],
            raw.numel(),
            mean.data_ptr(),
            raw.data_ptr(),
            total,
            torch.get_num_threads(),
        )
    )
    return total.value


def _call(raw: Tensor, **fields: Any) -> float:
    total = ctypes.c_double()
    call = library.Posterior(count=raw.numel(), raw=raw.data_ptr(), **fields)
    library.check(
        library.loaded().gs_posterior(
            library.DTYPES[raw.dtype], call, total, torch.get_num_threads()
        )
    )
    return total.value


def run_variance(raw: Tensor) -> Tensor:
    """``variance`` without autograd."""
    raw = raw.contiguous()
    out = torch.empty_like(raw)
    _call(raw, task=_VARIANCE, variance=out.data_ptr())
    return out


def run_variance_backward(raw: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of ``raw`` from that of its variance."""
    raw, gradient = raw.contiguous(), gradient.contiguous()
    raw_grad = torch.empty_like(raw)
    _call(raw, task=_VARIANCE_BACKWARD, dvariance=gradient.data_ptr(), raw_grad=raw_grad.data_ptr())
    return raw_grad


def _run_kl(mean: Tensor, raw: Tensor, prior_std: float, saves: bool) -> tuple[Tensor, Tensor]:
    """The sum and, if it is kept, the gradient of ``raw``: one logarithm and softplus for both."""
    if mean.numel() != raw.numel():
        raise InvalidData(
            "deviations of the weights",
            tuple(raw.shape),
            f"must have the shape of the means, {mean.shape}",
        )
    mean, raw = mean.contiguous(), raw.contiguous()
    raw_grad = raw.new_empty(raw.shape if saves else [0])
    address = library.address(raw_grad)
    total = _call(raw, task=_KL, mean=mean.data_ptr(), prior=prior_std, raw_grad=address)
    return raw.new_tensor(total), raw_grad


@torch.library.custom_op("gossamer::variance", mutates_args=())
def _variance(raw: Tensor) -> Tensor:
    checks.require_float("raw", raw)
    return run_variance(raw)


@torch.library.custom_op("gossamer::variance_backward", mutates_args=())
def _variance_backward(raw: Tensor, gradient: Tensor) -> Tensor:
    checks.require("gradient", gradient, raw.shape, checks.require_float("raw", raw))
    return run_variance_backward(raw, gradient)


@torch.library.custom_op("gossamer::kl", mutates_args=())
def _kl(mean: Tensor, raw: Tensor, prior_std: float, saves: bool) -> tuple[Tensor, Tensor]:
    checks.require("mean", mean, raw.shape, checks.require_float("raw", raw))
    if not prior_std > 0.0:
        raise InvalidValue("prior_std", prior_std, "must be positive")
    return _run_kl(mean, raw, prior_std, saves)


@_variance.register_fake
def _(raw: Tensor) -> Tensor:
    return torch.empty_like(raw, memory_format=torch.contiguous_format)


@_variance_backward.register_fake
def _(raw: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(raw, memory_format=torch.contiguous_format)


@_kl.register_fake
def _(mean: Tensor, raw: Tensor, prior_std: float, saves: bool) -> tuple[Tensor, Tensor]:
    return raw.new_empty(()), raw.new_empty(raw.shape if saves else [0])


def _keep_variance(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _keep_kl(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    mean, raw, prior_std, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(mean, raw, output[1])
    ctx.precision = prior_std**-2


def _kl_gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    mean, raw, raw_grad = ctx.saved_tensors
    if torch.is_grad_enabled():  # to be differentiated again
        std = std_from_raw(raw)
        raw_grad = (std * ctx.precision - 1.0 / std) * torch.sigmoid(raw)
    needs_mean, needs_raw = ctx.needs_input_grad[:2]
    return (
        mean * (gradient * ctx.precision) if needs_mean else None,
        raw_grad * gradient if needs_raw else None,
        None,
        None,
    )


_variance.register_autograd(
    lambda ctx, gradient: _variance_backward(*ctx.saved_tensors, gradient),
    setup_context=_keep_variance,
)
_kl.register_autograd(_kl_gradients, setup_context=_keep_kl)


class _Variance(torch.autograd.Function):
    """``gossamer::variance`` for eager code, without the dispatcher's cost."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        _keep_variance(ctx, (raw,), raw)
        return run_variance(raw)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (raw,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            return 2.0 * gradient * std_from_raw(raw) * torch.sigmoid(raw)
        return run_variance_backward(raw, gradient)


class _KlSum(torch.autograd.Function):
    """``gossamer::kl`` for eager code."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, raw: Tensor, prior_std: float, saves: bool
    ) -> tuple[Tensor, Tensor]:
        output = _run_kl(mean, raw, prior_std, saves)
        _keep_kl(ctx, (mean, raw, prior_std, saves), output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return _kl_gradients(ctx, gradient, _)
