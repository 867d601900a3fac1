"""The native engine's operators, registered with torch.

One per kind of output, each with a shape-only twin for tracing and a gradient. Traced code calls
the registered operators, which check all they are given; eager code takes the same kernels through
``torch.autograd.Function``, whose calls cost far less and whose arguments the backend has checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.ops.native import kernels
from gossamer.ops.native.checks import (
    checked_call,
    require_backward,
    require_product,
    require_seed,
)
from gossamer.ops.native.geometry import decode, encode
from gossamer.ops.native.kernels import Call
from gossamer.ops.native.once import once_differentiable
from gossamer.ops.native.streaming import catch_streamed
from gossamer.ops.torch_private import is_recorded


def _call_of(
    indices: Tensor, derived: Sequence[Tensor], growth: Sequence[Tensor], spec: Sequence[int]
) -> Call:
    """The call that an operator's last arguments stand for."""
    return Call(indices, derived, growth, decode(tuple(spec)))


def _product(x: Tensor, values: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    y = kernels.empty_output(x, call.layout)
    kernels.forward(x, values, None, bias, None, y, None, call)
    return y


def _local(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    saves: bool,
    call: Call,
) -> tuple[Tensor, Tensor]:
    y = kernels.empty_output(x, call.layout)
    slope = kernels.empty_slope(y, call.layout, saves)
    kernels.forward(x, mean, variance, bias, seed, y, slope if saves else None, call)
    return y, slope


def _moments(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    centre, spread = (kernels.empty_output(x, call.layout) for _ in range(2))
    kernels.forward(x, mean, variance, bias, None, centre, spread, call)
    return centre, spread


@torch.library.custom_op("gossamer::native_product", mutates_args=())
def _product_op(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> Tensor:
    call = checked_call(indices, derived, growth, spec)
    require_product(x, values, None, bias, call)
    return _product(x, values, bias, call)


@torch.library.custom_op("gossamer::native_local", mutates_args=())
def _local_op(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    saves: bool,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> tuple[Tensor, Tensor]:
    call = checked_call(indices, derived, growth, spec)
    require_product(x, mean, variance, bias, call)
    require_seed(seed)
    return _local(x, mean, variance, bias, seed, saves, call)


@torch.library.custom_op("gossamer::native_moments", mutates_args=())
def _moments_op(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> tuple[Tensor, Tensor]:
    call = checked_call(indices, derived, growth, spec)
    require_product(x, mean, variance, bias, call)
    return _moments(x, mean, variance, bias, call)


@torch.library.custom_op("gossamer::native_backward", mutates_args=())
def _backward_op(
    gradient: Tensor,
    gradient2: Tensor | None,
    slope: Tensor | None,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    spec: Sequence[int],
    needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    call = checked_call(indices, derived, (), spec)
    require_backward(gradient, gradient2, slope, x, mean, variance, call)
    return kernels.backward(gradient, gradient2, slope, x, mean, variance, call, needs_dx)


@_product_op.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return kernels.empty_output(x, decode(tuple(rest[-1])))


@_local_op.register_fake
def _(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    saves: bool,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    layout = decode(tuple(rest[-1]))
    y = kernels.empty_output(x, layout)
    return y, kernels.empty_slope(y, layout, saves)


@_moments_op.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    layout = decode(tuple(rest[-1]))
    return kernels.empty_output(x, layout), kernels.empty_output(x, layout)


@_backward_op.register_fake
def _(
    gradient: Tensor,
    gradient2: Tensor | None,
    slope: Tensor | None,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    spec: Sequence[int],
    needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        kernels.empty_dx(x, decode(tuple(spec)), needs_dx),
        x.new_empty(mean.shape),
        x.new_empty([0] if variance is None else mean.shape),
    )


def _keep(
    ctx: Any, saved: Sequence[Tensor], bias: Tensor | None, call: Call, *, is_eager: bool
) -> None:
    """Save a call for its backward: what autograd watches, and the rest beside it."""
    ctx.save_for_backward(*saved)
    # Not save_for_backward: a backward pass fills the buffers in place. A swap changes the pattern
    # and the saved mean together, and the mean's version check catches it.
    ctx.call = call
    ctx.has_bias = bias is not None
    ctx.is_eager = is_eager
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any,
    gradient: Tensor | None,
    gradient2: Tensor | None,
    slope: Tensor | None,
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, mean, variance and bias; fills the buffers of an armed layer on the way."""
    if gradient is None:
        assert gradient2 is not None
        gradient = torch.zeros_like(gradient2)
    dbias = gradient.sum([d for d in range(gradient.dim()) if d != 1]) if ctx.has_bias else None
    if not any(ctx.needs_input_grad[: 2 if variance is None else 3]):
        return None, None, None, dbias  # the bias alone is trained: no slope was kept
    call, needs_dx = ctx.call, ctx.needs_input_grad[0]
    given = (gradient, gradient2, slope, x, mean, variance)
    if ctx.is_eager:
        dx, dmean, dvariance = kernels.backward(*given, call, needs_dx)
    else:
        pattern = (call.indices, call.derived, encode(call.layout))
        dx, dmean, dvariance = _backward_op(*given, *pattern, needs_dx)
    if call.growth:
        catch_streamed(x, gradient, dmean, call.indices, call.growth, encode(call.layout))
    return dx if needs_dx else None, dmean, None if variance is None else dvariance, dbias


def _product_gradients(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
    """Of x, values and bias."""
    if gradient is None:
        return (None, None, None)
    x, values = ctx.saved_tensors
    dx, dvalues, _, dbias = _gradients(ctx, gradient, None, None, x, values, None)
    return (dx, dvalues, dbias)


def _local_gradients(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
    """Of x, mean, variance, bias, seed and saves."""
    if gradient is None:
        return (None,) * 6
    x, mean, variance, slope = ctx.saved_tensors
    return (*_gradients(ctx, gradient, None, slope, x, mean, variance), None, None)


def _moments_gradients(
    ctx: Any, gradient: Tensor | None, gradient2: Tensor | None
) -> tuple[Any, ...]:
    """Of x, mean, variance and bias."""
    if gradient is None and gradient2 is None:
        return (None,) * 4
    if gradient2 is None:
        assert gradient is not None
        gradient2 = torch.zeros_like(gradient)
    x, mean, variance = ctx.saved_tensors
    return _gradients(ctx, gradient, gradient2, None, x, mean, variance)


def _setup_product(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _keep(ctx, inputs[:2], inputs[2], _call_of(*inputs[-4:]), is_eager=False)


def _setup_local(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    saved = (*inputs[:3], output[1])
    _keep(ctx, saved, inputs[3], _call_of(*inputs[-4:]), is_eager=False)


def _setup_moments(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    _keep(ctx, inputs[:3], inputs[3], _call_of(*inputs[-4:]), is_eager=False)


def _none_for_pattern(ctx: Any) -> tuple[Any, ...]:
    """No gradients of indices, derived, growth and spec."""
    return (None, [None] * len(ctx.call.derived), [None] * len(ctx.call.growth), None)


_product_op.register_autograd(
    lambda ctx, g: (*_product_gradients(ctx, g), *_none_for_pattern(ctx)),
    setup_context=_setup_product,
)
_local_op.register_autograd(
    lambda ctx, g, _: (*_local_gradients(ctx, g), *_none_for_pattern(ctx)),
    setup_context=_setup_local,
)
_moments_op.register_autograd(
    lambda ctx, g, h: (*_moments_gradients(ctx, g, h), *_none_for_pattern(ctx)),
    setup_context=_setup_moments,
)


class _Product(torch.autograd.Function):
    """``gossamer::native_product`` for eager code."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        y = _product(x, values, bias, call)
        _keep(ctx, (x, values), bias, call, is_eager=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
        return (*_product_gradients(ctx, gradient), None)


class _Local(torch.autograd.Function):
    """``gossamer::native_local`` for eager code."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        bias: Tensor | None,
        seed: Tensor,
        saves: bool,
        call: Call,
    ) -> Tensor:
        y, slope = _local(x, mean, variance, bias, seed, saves, call)
        _keep(ctx, (x, mean, variance, slope), bias, call, is_eager=True)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
        return (*_local_gradients(ctx, gradient), None)


class _Moments(torch.autograd.Function):
    """``gossamer::native_moments`` for eager code."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, call: Call
    ) -> tuple[Tensor, Tensor]:
        output = _moments(x, mean, variance, bias, call)
        _keep(ctx, (x, mean, variance), bias, call, is_eager=True)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
        return (*_moments_gradients(ctx, *given), None)


def _arguments(call: Call) -> tuple[Any, ...]:
    """A call as registered operators take it."""
    return (call.indices, call.derived, call.growth, encode(call.layout))


def product(x: Tensor, values: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    """W x + b."""
    if torch.compiler.is_compiling() or is_recorded():
        traced: Tensor = _product_op(x, values, bias, *_arguments(call))
        return traced
    run: Any = _Product.apply
    y: Tensor = run(x, values, bias, call)
    return y


def local(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, seed: Tensor, call: Call
) -> Tensor:
    """Local reparameterisation; see ``Backend.local``."""
    needed = (x.requires_grad, mean.requires_grad, variance.requires_grad)
    saves = torch.is_grad_enabled() and any(needed)
    if torch.compiler.is_compiling() or is_recorded():
        traced: Tensor = _local_op(x, mean, variance, bias, seed, saves, *_arguments(call))[0]
        return traced
    run: Any = _Local.apply
    y: Tensor = run(x, mean, variance, bias, seed, saves, call)
    return y


def moments(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, call: Call
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the output for a fixed input."""
    if torch.compiler.is_compiling() or is_recorded():
        centre, spread = _moments_op(x, mean, variance, bias, *_arguments(call))
        return centre, spread
    run: Any = _Moments.apply
    centre, spread = run(x, mean, variance, bias, call)
    return centre, spread
