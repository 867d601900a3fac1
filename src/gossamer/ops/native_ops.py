"""The native engine's operators, registered with torch.

One per kind of output, each with a shape-only twin for tracing and a gradient. Traced code calls
the registered operators; eager code takes the same functions through ``torch.autograd.Function``,
whose calls cost far less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gossamer.ops import library as native
from gossamer.ops.geometry import decode, geometry, output_shape
from gossamer.ops.layout import Layout
from gossamer.ops.pattern import view
from gossamer.ops.posterior import run_variance, run_variance_backward, variance
from gossamer.ops.streaming import catch_streamed


def _plain(x: Tensor, layout: Layout) -> Tensor:
    """The input as the kernels read it: any strides for a linear layer, else contiguous."""
    return x if layout.kind == "linear" else x.contiguous()


def _empty_output(x: Tensor, layout: Layout) -> Tensor:
    """A place for the output, in the order that the layout asks for."""
    shape = output_shape(layout, x.shape)
    return x.new_empty(shape[::-1]).t() if layout.by_feature else x.new_empty(shape)


def _empty_slope(x: Tensor, layout: Layout, saves: bool) -> Tensor:
    """A place for ε/(2√variance); the kernels keep that of a linear layer as ``[out, batch]``."""
    shape = output_shape(layout, x.shape)
    return x.new_empty((shape[::-1] if layout.kind == "linear" else shape) if saves else [0])


def _is_by_feature(x: Tensor) -> bool:
    """Whether ``[batch, features]`` lies in memory as ``[features, batch]``."""
    return x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous()


def _empty_dx(x: Tensor, layout: Layout, needs_dx: bool) -> Tensor:
    """A place for the gradient of a plain input, in the input's order."""
    if not needs_dx:
        return x.new_empty([0])
    if layout.kind == "linear" and _is_by_feature(x):
        return x.new_empty(x.shape[::-1]).t()
    return x.new_empty(x.shape)


def _forward(
    x: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    second: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    layout: Layout,
) -> Tensor:
    x = _plain(x, layout)
    y = _empty_output(x, layout)
    if y.numel() == 0:
        return y
    call = native.Forward(
        x=x.data_ptr(),
        x_batch_stride=x.stride(0),
        x_channel_stride=x.stride(1),
        mean=(mean := mean.contiguous()).data_ptr(),
        variance=None if variance is None else (variance := variance.contiguous()).data_ptr(),
        bias=None if bias is None else (bias := bias.contiguous()).data_ptr(),
        y=y.data_ptr(),
        second=native.address(second),
        has_seed=int(seed is not None),
        seed=0 if seed is None else int(seed),
        y_by_feature=layout.by_feature,
    )
    native.check(
        native.library().gs_forward(
            geometry(layout, tuple(x.shape)),
            view(indices, tuple(derived), layout),
            native.DTYPES[x.dtype],
            call,
            torch.get_num_threads(),
        )
    )
    return y


def _run_product(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> Tensor:
    layout = decode(tuple(spec))
    return _forward(x, values, None, bias, None, None, indices, derived, layout)


def _run_local(
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
    layout = decode(tuple(spec))
    slope = _empty_slope(x, layout, saves)
    second = slope if saves else None
    y = _forward(x, mean, variance, bias, seed, second, indices, derived, layout)
    return y, slope


def _run_moments(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> tuple[Tensor, Tensor]:
    layout = decode(tuple(spec))
    spread = _empty_output(x, layout)
    centre = _forward(x, mean, variance, bias, None, spread, indices, derived, layout)
    return centre, spread


def _run_backward(
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
    layout = decode(tuple(spec))
    x, gradient = _plain(x, layout), _plain(gradient, layout)
    dx = _empty_dx(x, layout, needs_dx)
    dmean = torch.empty(mean.shape, dtype=x.dtype)
    dvariance = torch.empty([0] if variance is None else mean.shape, dtype=x.dtype)
    if gradient.numel() == 0:
        return dx.zero_(), dmean.zero_(), dvariance.zero_()
    call = native.Backward(
        x=x.data_ptr(),
        x_batch_stride=x.stride(0),
        x_channel_stride=x.stride(1),
        mean=(mean := mean.contiguous()).data_ptr(),
        variance=None if variance is None else (variance := variance.contiguous()).data_ptr(),
        gradient=gradient.data_ptr(),
        g_batch_stride=gradient.stride(0),
        g_channel_stride=gradient.stride(1),
        slope=native.address(slope),
        gradient2=None if gradient2 is None else (gradient2 := gradient2.contiguous()).data_ptr(),
        dx=native.address(dx),
        dmean=dmean.data_ptr(),
        dvariance=native.address(dvariance),
        dx_by_feature=_is_by_feature(dx),
    )
    native.check(
        native.library().gs_backward(
            geometry(layout, tuple(x.shape)),
            view(indices, tuple(derived), layout),
            native.DTYPES[x.dtype],
            call,
            torch.get_num_threads(),
        )
    )
    return dx, dmean, dvariance


_product = torch.library.custom_op("gossamer::native_product", _run_product, mutates_args=())
_local = torch.library.custom_op("gossamer::native_local", _run_local, mutates_args=())
_moments = torch.library.custom_op("gossamer::native_moments", _run_moments, mutates_args=())
_backward = torch.library.custom_op("gossamer::native_backward", _run_backward, mutates_args=())


@_product.register_fake
def _(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> Tensor:
    return _empty_output(x, decode(tuple(spec)))


@_local.register_fake
def _(
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
    layout = decode(tuple(spec))
    return _empty_output(x, layout), _empty_slope(x, layout, saves)


@_moments.register_fake
def _(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    indices: Tensor,
    derived: Sequence[Tensor],
    growth: Sequence[Tensor],
    spec: Sequence[int],
) -> tuple[Tensor, Tensor]:
    layout = decode(tuple(spec))
    return _empty_output(x, layout), _empty_output(x, layout)


@_backward.register_fake
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
        _empty_dx(x, decode(tuple(spec)), needs_dx),
        x.new_empty(mean.shape),
        x.new_empty([0] if variance is None else mean.shape),
    )


def _keep(ctx: Any, inputs: Sequence[Any], saved: Sequence[Tensor | None]) -> None:
    """Save a call for its backward: what autograd watches, and the rest beside it."""
    indices, derived, growth, spec = inputs[-4:]
    ctx.save_for_backward(*saved)
    # Not save_for_backward: a backward pass fills the buffers in place. A swap changes the pattern
    # and the saved mean together, and the mean's version check catches it.
    ctx.pattern = (indices, derived)
    ctx.growth, ctx.spec = growth, spec
    ctx.has_bias = inputs[2 if len(inputs) == 7 else 3] is not None
    ctx.set_materialize_grads(False)
    ctx.is_eager = False


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
    indices, derived = ctx.pattern
    needs_dx = ctx.needs_input_grad[0]
    run = _run_backward if ctx.is_eager else _backward
    dx, dmean, dvariance = run(
        gradient, gradient2, slope, x, mean, variance, indices, derived, ctx.spec, needs_dx
    )
    if ctx.growth:
        catch_streamed(x, gradient, dmean, indices, ctx.growth, ctx.spec)
    return dx if needs_dx else None, dmean, None if variance is None else dvariance, dbias


def _no_gradients(ctx: Any) -> tuple[Any, ...]:
    """For indices, derived, growth and spec."""
    return (None, [None] * len(ctx.pattern[1]), [None] * len(ctx.growth), None)


def _setup_product(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _keep(ctx, inputs, inputs[:2])


def _product_gradients(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
    if gradient is None:
        return (None, None, None)
    x, values = ctx.saved_tensors
    dx, dvalues, _, dbias = _gradients(ctx, gradient, None, None, x, values, None)
    return (dx, dvalues, dbias)


def _setup_local(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    _keep(ctx, inputs, (*inputs[:3], output[1]))


def _local_gradients(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if gradient is None:
        return (None,) * 6
    x, mean, variance, slope = ctx.saved_tensors
    return (*_gradients(ctx, gradient, None, slope, x, mean, variance), None, None)


def _setup_moments(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    _keep(ctx, inputs, inputs[:3])


def _moments_gradients(
    ctx: Any, gradient: Tensor | None, gradient2: Tensor | None
) -> tuple[Any, ...]:
    if gradient is None and gradient2 is None:
        return (None,) * 4
    if gradient2 is None:
        assert gradient is not None
        gradient2 = torch.zeros_like(gradient)
    x, mean, variance = ctx.saved_tensors
    return _gradients(ctx, gradient, gradient2, None, x, mean, variance)


_product.register_autograd(
    lambda ctx, g: (*_product_gradients(ctx, g), *_no_gradients(ctx)), setup_context=_setup_product
)
_local.register_autograd(
    lambda ctx, g, _: (*_local_gradients(ctx, g, _), *_no_gradients(ctx)),
    setup_context=_setup_local,
)
_moments.register_autograd(
    lambda ctx, g, h: (*_moments_gradients(ctx, g, h), *_no_gradients(ctx)),
    setup_context=_setup_moments,
)


def _eager(run: Any, setup: Any, gradients: Any) -> Any:
    """The same operator for eager code: its functions called directly."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            setup(ctx, inputs, output)
            ctx.is_eager = True
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Any, ...]:
            return (*gradients(ctx, *given), None, None, None, None)

    return Eager.apply


_eager_product = _eager(_run_product, _setup_product, _product_gradients)
_eager_moments = _eager(_run_moments, _setup_moments, _moments_gradients)


class _EagerLocal(torch.autograd.Function):
    """``gossamer::variance`` and ``gossamer::native_local`` for eager code, in one node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, raw_std: Tensor, *rest: Any) -> Tensor:
        inputs = (x, mean, run_variance(raw_std), *rest)
        y, slope = _run_local(*inputs)
        _keep(ctx, inputs, (*inputs[:3], slope, raw_std))
        ctx.is_eager = True
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * 10
        x, mean, spread, slope, raw_std = ctx.saved_tensors
        dx, dmean, dspread, dbias = _gradients(ctx, gradient, None, slope, x, mean, spread)
        draw = None if dspread is None else run_variance_backward(raw_std, dspread)
        return (dx, dmean, draw, dbias, *(None,) * 6)


def product(x: Tensor, values: Tensor, bias: Tensor | None, *pattern: Any) -> Tensor:
    """W x + b. ``pattern``: indices, derived tensors, growth buffers, encoded layout."""
    run = _product if torch.compiler.is_compiling() else _eager_product
    y: Tensor = run(x, values, bias, *pattern)
    return y


def local(
    x: Tensor, mean: Tensor, raw_std: Tensor, bias: Tensor | None, seed: Tensor, *pattern: Any
) -> Tensor:
    """Local reparameterisation; see ``Backend.local``."""
    needed = (x.requires_grad, mean.requires_grad, raw_std.requires_grad)
    saves = torch.is_grad_enabled() and any(needed)
    if torch.compiler.is_compiling():
        traced: Tensor = _local(x, mean, variance(raw_std), bias, seed, saves, *pattern)[0]
        return traced
    run: Any = _EagerLocal.apply
    y: Tensor = run(x, mean, raw_std, bias, seed, saves, *pattern)
    return y


def moments(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, *pattern: Any
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the output for a fixed input."""
    run = _moments if torch.compiler.is_compiling() else _eager_moments
    centre, spread = run(x, mean, variance, bias, *pattern)
    return centre, spread
