"""What every kind of layer makes of activations that are independent Gaussians.

A rule takes a module and ``Moments`` and returns ``Moments``. Elements are taken to be independent;
that and the Gaussian shape are the two approximations, everything else is exact, but for
normalisations over features and attention, which are first order (``normalise``, ``attend``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from itertools import product
from math import prod
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.core.rectified import max_moments, relu_moments, smooth_moments
from gossamer.errors import InvalidValue
from gossamer.models import SelectColumns
from gossamer.nn import (
    BayesianEmbedding,
    NativeBatchNorm,
    SparseEmbedding,
    SparseLayer,
    UnitDropout,
    at_mean,
    dropout_of,
    is_stochastic,
)
from gossamer.nn.attention import SplitAttention
from gossamer.prediction.moments import attend
from gossamer.prediction.moments.form import Moments
from gossamer.prediction.moments.normalise import layer_norm_rule, rms_norm_rule


class Rectified(Moments):
    """Moments after a ReLU, computed when they are asked for.

    Max pooling and ReLU may change places, and before the ReLU the elements are nearer to Gaussian:
    pooling asks for ``before`` instead.
    """

    def __init__(self, before: Moments) -> None:
        self.before = before

    @cached_property
    def _pair(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return relu_moments(self.before.mean, self.before.variance)


def sparse_rule(layer: SparseLayer, x: Moments | Tensor) -> Moments | Tensor:
    """W x + b with W and x independent: μ m + b and μ² v + σ² (m² + v), in O(nnz).

    Where absent weights have a variance, theirs times (m² + v) besides.
    """
    dropout = dropout_of(layer)
    x = x if dropout is None else dropout_rule(dropout, x)
    backend, pattern, layout = layer.backend, layer.pattern, layer.layout
    mean = layer.leading()
    spread_of_weights = layer.weight_variance
    if spread_of_weights is None:
        if isinstance(x, Tensor):
            return backend.product(x, mean, pattern, layout, layer.bias, None)
        centre = backend.product(x.mean, mean, pattern, layout, layer.bias, None)
        spread = backend.product(x.variance, mean.square(), pattern, layout, None, None)
        return Moments(centre, spread)
    variance = spread_of_weights.to(mean.dtype)
    fixed = x if isinstance(x, Tensor) else x.mean
    centre, spread = backend.moments(fixed, mean, variance, pattern, layout, layer.bias)
    spread = spread.to(centre.dtype)
    second = fixed.square()
    if isinstance(x, Moments):
        square = mean.square() + variance
        spread = spread + backend.product(x.variance, square, pattern, layout, None, None)
        second = second + x.variance
    absent = layer.absent_variance(second)
    return Moments(centre, spread if absent is None else spread + absent.to(spread.dtype))


def table_rule(layer: BayesianEmbedding | SparseEmbedding, x: Moments | Tensor) -> Moments | Tensor:
    """A row's own means and variances, exact; the padding row is fixed."""
    if isinstance(x, Moments):
        raise InvalidValue(
            "input of a table", None, "is random, and rows are looked up by number", "use predict"
        )
    with at_mean(layer):
        centre: Tensor = layer(x)
    spread_of_weights = layer.weight_variance
    if spread_of_weights is None:
        return centre
    backend, rows = layer.backend, layer.rows_of(x)
    variance = spread_of_weights.to(centre.dtype)
    spread = backend.product(rows, variance, layer.pattern, layer.layout, None, None)
    if layer.padding_idx is not None:
        spread = spread.masked_fill((x == layer.padding_idx).unsqueeze(-1), 0.0)
    return Moments(centre, spread)


def dropout_rule(module: UnitDropout, x: Moments | Tensor) -> Moments:
    """Of x b/(1-p) with b ~ Bernoulli(1-p): m and (v + p m²)/(1-p), exact for a unit."""
    if module.axis != -1:
        raise InvalidValue(
            "dropout",
            None,
            "of channels makes all pixels of one random together, for which there is no rule",
            "use predict",
        )
    y = _random(x)
    spread = (y.variance + module.rate * y.mean.square()) / (1.0 - module.rate)
    return Moments(y.mean, spread)


def dense_rule(module: nn.Module, x: Moments) -> Moments:
    """A deterministic torch layer: W m + b and W² v."""
    squared = {"weight": module.weight.square()}  # type: ignore[operator]
    if module.bias is not None:
        squared["bias"] = torch.zeros_like(module.bias)  # type: ignore[arg-type]
    spread = torch.func.functional_call(module, squared, (x.variance,))
    return Moments(module(x.mean), spread)


def batch_norm_rule(module: nn.modules.batchnorm._BatchNorm, x: Moments) -> Moments:
    """An affine map per channel, by the running statistics."""
    if module.running_var is None:
        raise InvalidValue(
            "BatchNorm",
            None,
            "has no running statistics, so that its rows depend on each other",
            "use predict, or track_running_stats=True",
        )
    factor = (module.running_var + module.eps).reciprocal()
    if module.weight is not None:
        factor = factor * module.weight.square()
    shape = (1, -1) + (1,) * (x.mean.dim() - 2)
    return Moments(module(x.mean), x.variance * factor.view(shape).to(x.variance.dtype))


def native_batch_norm_rule(
    module: NativeBatchNorm,
    x: Moments | Tensor,
    residual: Moments | Tensor | None = None,
    *,
    relu: bool = False,
) -> Moments:
    """BatchNorm, and the sum and the ReLU that it may do too, one after the other."""
    y = batch_norm_rule(module, _random(x))
    if residual is not None:
        other = _random(residual)
        y = Moments(y.mean + other.mean, y.variance + other.variance)
    return Rectified(y) if relu else y


def _random(x: Moments | Tensor) -> Moments:
    """What is fixed has no variance."""
    return x if isinstance(x, Moments) else Moments(x, torch.zeros_like(x))


def relu_rule(module: nn.Module, x: Moments) -> Moments:
    """Exact for a Gaussian."""
    return Rectified(x)


def smooth_rule(module: nn.Module, x: Moments) -> Moments:
    """By quadrature."""
    return Moments(*smooth_moments(module, x.mean, x.variance))


def average_pool_rule(module: nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d, x: Moments) -> Moments:
    """The mean of n elements has the mean of their variances over n."""
    if module.ceil_mode:
        raise InvalidValue("average pooling", None, "with ceil_mode is not known", "use predict")
    whole = float(prod(_each(module.kernel_size, _pool_dims(module))))
    count: Tensor | float = float(getattr(module, "divisor_override", None) or whole)
    if not module.count_include_pad and count == whole:
        # The share of every window that lies inside: where padding counts, as a zero.
        inside = type(module)(module.kernel_size, module.stride, module.padding)  # type: ignore[arg-type]
        count = whole * inside(torch.ones_like(x.mean[:1, :1]))
    return Moments(module(x.mean), module(x.variance) / count)


def adaptive_average_rule(module: nn.Module, x: Moments) -> Moments:
    """As ``average_pool_rule``; windows differ in size."""
    mean = module(x.mean)
    dims = _pool_dims(module)
    sizes = []
    for d in range(-dims, 0):
        n_in, n_out = x.mean.shape[d], mean.shape[d]
        # torch's own rule: from floor(i · in / out) to ceil((i + 1) · in / out).
        sizes.append([-(-(i + 1) * n_in // n_out) - i * n_in // n_out for i in range(n_out)])
    counts = [reduce(mul, choice) for choice in product(*sizes)]
    count = torch.tensor(counts, dtype=mean.dtype, device=mean.device).view(mean.shape[-dims:])
    return Moments(mean, module(x.variance) / count)


def max_pool_rule(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, x: Moments) -> Moments:
    """Clark's formula for two, in a tree over the window, each maximum taken to be Gaussian."""
    if module.ceil_mode or module.return_indices:
        raise InvalidValue(
            "max pooling", None, "with ceil_mode or return_indices is not known", "use predict"
        )
    if isinstance(x, Rectified):
        return Rectified(max_pool_rule(module, x.before))
    dims = _pool_dims(module)
    kernel, stride, padding, dilation = (
        _each(value, dims)
        for value in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    sides = [side for p in reversed(padding) for side in (p, p)]
    # So low that it never counts, and finite: no ∞ - ∞.
    lowest = -(torch.finfo(x.mean.dtype).max ** 0.5)
    mean, variance = F.pad(x.mean, sides, value=lowest), F.pad(x.variance, sides)
    size = [
        (mean.shape[d - dims] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in range(dims)
    ]
    parts = []
    for offset in product(*(range(k) for k in kernel)):
        window = [slice(None)] * (mean.dim() - dims)
        for d, o in enumerate(offset):
            first = o * dilation[d]
            window.append(slice(first, first + (size[d] - 1) * stride[d] + 1, stride[d]))
        parts.append(Moments(mean[tuple(window)], variance[tuple(window)]))
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        larger = [Moments(*max_moments(a.mean, a.variance, b.mean, b.variance)) for a, b in pairs]
        parts = larger + parts[len(parts) - len(parts) % 2 :]
    return parts[0]


def attention_rule(module: SplitAttention, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Softmax attention and its projections."""
    return attend.module_rule(module, _through, *args, **kwargs)


def _through(layer: nn.Module, x: Moments | Tensor) -> Moments | Tensor:
    """By the layer's rule, or as it is where nothing is random."""
    found: Moments | Tensor
    if isinstance(x, Tensor) and not is_stochastic(layer):
        found = layer(x)
        return found
    rule, kind = rule_of(layer), type(layer).__name__
    if rule is None:
        raise InvalidValue("projection", kind, "has no rule for moments", "use predict")
    found = rule(layer, x)
    return found


def same_rule(module: nn.Module, x: Moments) -> Moments:
    """Nothing happens, or the same to mean and variance: they are only moved."""
    return x.each(module)


RULES: dict[type[nn.Module], Callable[..., Any]] = {
    BayesianEmbedding: table_rule,
    SparseEmbedding: table_rule,
    SparseLayer: sparse_rule,
    nn.Linear: dense_rule,
    nn.Conv1d: dense_rule,
    nn.Conv2d: dense_rule,
    nn.Conv3d: dense_rule,
    nn.ConvTranspose1d: dense_rule,
    nn.ConvTranspose2d: dense_rule,
    nn.ConvTranspose3d: dense_rule,
    nn.BatchNorm1d: batch_norm_rule,
    nn.BatchNorm2d: batch_norm_rule,
    nn.BatchNorm3d: batch_norm_rule,
    NativeBatchNorm: native_batch_norm_rule,
    SplitAttention: attention_rule,
    nn.LayerNorm: layer_norm_rule,
    nn.RMSNorm: rms_norm_rule,
    UnitDropout: dropout_rule,
    nn.ReLU: relu_rule,
    nn.GELU: smooth_rule,
    nn.SiLU: smooth_rule,
    nn.Tanh: smooth_rule,
    nn.Sigmoid: smooth_rule,
    nn.Softplus: smooth_rule,
    nn.AvgPool1d: average_pool_rule,
    nn.AvgPool2d: average_pool_rule,
    nn.AvgPool3d: average_pool_rule,
    nn.AdaptiveAvgPool1d: adaptive_average_rule,
    nn.AdaptiveAvgPool2d: adaptive_average_rule,
    nn.AdaptiveAvgPool3d: adaptive_average_rule,
    nn.MaxPool1d: max_pool_rule,
    nn.MaxPool2d: max_pool_rule,
    nn.MaxPool3d: max_pool_rule,
    SelectColumns: same_rule,
    nn.Flatten: same_rule,
    nn.Unflatten: same_rule,
    nn.Identity: same_rule,
    nn.Dropout: same_rule,
    nn.Dropout1d: same_rule,
    nn.Dropout2d: same_rule,
    nn.Dropout3d: same_rule,
}
"""What a module makes of moments, by its class; a subclass only if it keeps the forward."""


def rule_of(module: nn.Module) -> Callable[..., Any] | None:
    """The rule of a module, or ``None``."""
    for kind in type(module).__mro__:
        if kind in RULES:
            keeps = kind is SparseLayer or type(module).forward is kind.forward
            return RULES[kind] if keeps else None
    return None


def _pool_dims(module: nn.Module) -> int:
    return int(type(module).__name__[-2])


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """A pooling argument per dimension."""
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))
