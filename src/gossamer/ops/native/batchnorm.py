"""Batch normalisation on the native engine, with the residual and the ReLU that may follow it.

torch's own reads every value several times from memory in training, in one thread, and the sum and
the ReLU read and write all of them again: dear beside sparse products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.ops.native import checks, library
from gossamer.ops.native.once import once_differentiable
from gossamer.ops.torch_private import (
    is_forward_differentiated,
    is_recorded,
    is_transformed,
)


def runs_batchnorm(x: Tensor, residual: Tensor | None, *parameters: Tensor) -> bool:
    """Whether the engine takes these: on the CPU, contiguous, of one dtype, of fitting shapes.

    Args:
        x: ``[B, C, ...]``.
        residual: As ``x``, or ``None``.
        parameters: ``[C]`` each.
    """
    given = [x] if residual is None else [x, residual]
    if not torch.compiler.is_compiling() and (_is_watched() or any(t.is_neg() for t in given)):
        return False
    return (
        library.is_available()
        and x.dtype in library.DTYPES
        and x.numel() > 0
        and x.dim() >= 2
        and not torch.is_autocast_enabled("cpu")
        and all(t.device.type == "cpu" and t.dtype == x.dtype for t in given)
        and all(t.shape == x.shape and t.is_contiguous() for t in given)
        and all(p.dtype == x.dtype and p.device == x.device for p in parameters)
        and all(p.shape == x.shape[1:2] for p in parameters)
    )


def _is_watched() -> bool:
    """Whether torch records or transforms operators: it would not see the engine's work."""
    return is_transformed() or is_recorded() or is_forward_differentiated()


def batchnorm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The input normalised by its own statistics, and those: mean and biased variance ``[C]``.

    The statistics are not differentiable.

    Args:
        x: ``[B, C, ...]``, contiguous.
        weight: ``[C]``.
        bias: ``[C]``.
        eps: Added to the variance.
        residual: As ``x``; added to the result.
        relu: Whether the sum is rectified.
    """
    run: Any = _batchnorm if torch.compiler.is_compiling() else _BatchNorm.apply
    y, mean, variance, _ = run(x, weight, bias, residual, eps, relu)
    return y, mean, variance


def batchnorm_relu_by(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    residual: Tensor | None,
) -> Tensor:
    """relu(normalised x + residual) by given statistics ``[C]``; has no gradient."""
    y = torch.empty_like(x)
    parts = {"mean": mean, "variance": variance, "weight": weight, "bias": bias}
    contiguous = {name: tensor.contiguous() for name, tensor in parts.items()}
    _call(x, eps=eps, relu=True, evaluates=True, residual=residual, y=y, **contiguous)
    return y


def _call(
    x: Tensor,
    *,
    eps: float = 0.0,
    relu: bool = False,
    evaluates: bool = False,
    **tensors: Tensor | None,
) -> None:
    batch, channels = x.shape[:2]
    call = library.BatchNorm(
        batch=batch,
        channels=channels,
        size=x.numel() // (batch * channels),
        relu=relu,
        evaluates=evaluates,
        eps=eps,
        x=x.data_ptr(),
        **{name: library.address(tensor) for name, tensor in tensors.items()},
    )
    library.check(
        library.loaded().gs_batchnorm(library.DTYPES[x.dtype], call, torch.get_num_threads())
    )


def _run(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    y = torch.empty_like(x)
    mean, variance, inverse = (x.new_empty(x.shape[1]) for _ in range(3))
    _call(
        x,
        eps=eps,
        relu=relu,
        weight=weight,
        bias=bias,
        residual=None if residual is None else (residual := residual.contiguous()),
        y=y,
        mean=mean,
        variance=variance,
        inverse=inverse,
    )
    return y, mean, variance, inverse


def _run_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse: Tensor,
    y: Tensor | None,
    needs_dx: bool,
    needs_dresidual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, gradient = x.contiguous(), weight.contiguous(), gradient.contiguous()
    mean, inverse = mean.contiguous(), inverse.contiguous()
    dx = torch.empty(x.shape if needs_dx else [0], dtype=x.dtype)
    dresidual = torch.empty(x.shape if needs_dresidual else [0], dtype=x.dtype)
    dweight, dbias = torch.empty_like(mean), torch.empty_like(mean)
    _call(
        x,
        relu=y is not None,
        weight=weight,
        gradient=gradient,
        y=None if y is None else (y := y.contiguous()),
        mean=mean,
        inverse=inverse,
        dx=dx,
        dweight=dweight,
        dbias=dbias,
        dresidual=dresidual,
    )
    return dx, dweight, dbias, dresidual


def _require(x: Tensor, vectors: dict[str, Tensor], others: dict[str, Tensor | None]) -> None:
    """Raise unless these are a batch ``[B, C, ...]``, vectors ``[C]``, and tensors like it."""
    dtype = checks.require_float("x", x)
    if x.dim() < 2 or x.numel() == 0:
        raise InvalidData("x", tuple(x.shape), "must have rows and channels")
    for name, vector in vectors.items():
        checks.require(name, vector, x.shape[1:2], dtype)
    for name, tensor in others.items():
        if tensor is not None:
            checks.require(name, tensor, x.shape, dtype)


@torch.library.custom_op("gossamer::batchnorm", mutates_args=())
def _batchnorm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _require(x, {"weight": weight, "bias": bias}, {"residual": residual})
    return _run(x, weight, bias, residual, eps, relu)


@torch.library.custom_op("gossamer::batchnorm_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse: Tensor,
    y: Tensor | None,
    needs_dx: bool,
    needs_dresidual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vectors = {"weight": weight, "mean": mean, "inverse": inverse}
    _require(x, vectors, {"gradient": gradient, "y": y})
    return _run_backward(gradient, x, weight, mean, inverse, y, needs_dx, needs_dresidual)


@_batchnorm.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, variance, inverse = (x.new_empty(x.shape[1]) for _ in range(3))
    return torch.empty_like(x, memory_format=torch.contiguous_format), mean, variance, inverse


@_backward.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse: Tensor,
    y: Tensor | None,
    needs_dx: bool,
    needs_dresidual: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, dresidual = (x.new_empty(x.shape if n else [0]) for n in (needs_dx, needs_dresidual))
    return dx, torch.empty_like(mean), torch.empty_like(mean), dresidual


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, _, _, relu = inputs
    y, mean, variance, inverse = output
    # The next layer keeps y too: where it is positive costs no memory.
    ctx.save_for_backward(x, weight, mean, inverse, y if relu else None)
    ctx.mark_non_differentiable(mean, variance, inverse)


def _gradients(ctx: Any, run: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    needs_dx, needs_dresidual = ctx.needs_input_grad[0], ctx.needs_input_grad[3]
    dx, dweight, dbias, dresidual = run(gradient, *ctx.saved_tensors, needs_dx, needs_dresidual)
    return (
        dx if needs_dx else None,
        dweight,
        dbias,
        dresidual if needs_dresidual else None,
        None,
        None,
    )


_batchnorm.register_autograd(
    lambda ctx, gradient, *_: _gradients(ctx, _backward, gradient), setup_context=_keep
)


class _BatchNorm(torch.autograd.Function):
    """``gossamer::batchnorm`` for eager code, without the dispatcher's cost."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        output = _run(x, weight, bias, residual, eps, relu)
        _keep(ctx, (x, weight, bias, residual, eps, relu), output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, _run_backward, gradient)
