"""One pass of means and variances through a whole network, whatever its forward method does.

``torch.fx`` records the network's operations; they are carried out one by one, plain on what is
fixed and by ``rules`` on what is random. What has no rule is refused by name.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from gossamer.errors import InvalidValue
from gossamer.nn import NativeBatchNorm, dropout_of, is_stochastic
from gossamer.nn.attention import SplitAttention
from gossamer.nn.split import Split
from gossamer.prediction.moments.attend import function_rule
from gossamer.prediction.moments.form import Moments
from gossamer.prediction.moments.rules import RULES, rule_of

_MODULES: dict[Callable[..., Any], type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    F.dropout: nn.Identity,  # in evaluation
    F.avg_pool1d: nn.AvgPool1d,
    F.avg_pool2d: nn.AvgPool2d,
    F.avg_pool3d: nn.AvgPool3d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    F.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d,
    F.max_pool1d: nn.MaxPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.max_pool3d: nn.MaxPool3d,
}
"""Functions that are modules in another dress; their other arguments are the modules' own."""

_MOVES = {
    "contiguous",
    "flatten",
    "getitem",
    "movedim",
    "pad",
    "permute",
    "reshape",
    "squeeze",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
}
"""Functions and methods that only move elements: the same for mean and variance."""

_CUTS = {"chunk", "split", "unbind"}
"""Those that give several parts."""

_ASKS = {"dim", "getattr", "size"}
"""Those that ask for a shape."""

_SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "iadd": operator.add,
    "sub": operator.sub,
    "isub": operator.sub,
}
_SCALES: dict[str, Callable[[Any, Any], Any]] = {
    "mul": operator.mul,
    "imul": operator.mul,
    "truediv": operator.truediv,
    "div": operator.truediv,
}

_RECORDING = threading.Lock()
"""torch.fx changes ``nn.Module`` for the whole process while it records."""


def record(model: nn.Module) -> fx.GraphModule:
    """The operations of ``model``, its sparse layers and torch's own modules as single ones.

    Raises:
        InvalidValue: What the network does depends on the values that it sees.
    """
    holder = nn.Sequential(model)  # a bare layer then is one operation too
    try:
        with _RECORDING:
            return fx.GraphModule(holder, _Recorder().trace(holder))
    except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
        raise InvalidValue(
            "model",
            type(model).__name__,
            f"cannot be recorded by torch.fx: {error}",
            "use predict, which runs the model as it is",
        ) from error


def propagate(recorded: fx.GraphModule, x: Tensor) -> Moments | Tensor:
    """The output's moments for fixed inputs ``[B, ...]``; a plain tensor if nothing is random."""
    output: Moments | Tensor = _Carrier(recorded).run(x)
    return output


class _Recorder(fx.Tracer):
    """Records what its own thread does; networks that others run meanwhile are left alone."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """As it is in another thread."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """As it is in another thread."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whatever has a rule, torch's own modules, and what a conversion made of those."""
        is_split = isinstance(m, Split)
        return (
            is_split or rule_of(m) is not None or super().is_leaf_module(m, module_qualified_name)
        )


class _Carrier(fx.Interpreter):
    """Carries operations out on moments."""

    def __init__(self, recorded: fx.GraphModule) -> None:
        super().__init__(recorded)
        self.extra_traceback = False

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By the module's rule."""
        module = self.fetch_attr(target)
        # Torch's own modules may hold converted layers: they draw wherever one of those does.
        draws = any(is_stochastic(m) or dropout_of(m) is not None for m in module.modules())
        if not (_is_random(args, kwargs) or draws):
            return module(*args, **kwargs)
        rule = rule_of(module)
        takes_more = isinstance(module, NativeBatchNorm | SplitAttention)
        if rule is None or not (takes_more or (len(args) == 1 and not kwargs)):
            raise _unknown(f"module {target.removeprefix('0.')}", type(module).__name__)
        return rule(module, *args, **kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By the function's rule."""
        if not _is_random(args, kwargs):
            return target(*args, **kwargs)
        name = getattr(target, "__name__", str(target))
        if target in _MODULES:
            return self._as_module(target, *args, **kwargs)
        if target in (torch.cat, torch.concat):
            return _joined(*args, **kwargs)
        if target is F.scaled_dot_product_attention:
            return function_rule(*args, **kwargs)
        if target is operator.getitem and isinstance(args[0], tuple):  # of several outputs
            return args[0][args[1]]
        return _by_name(name, target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """By the method's rule."""
        if not _is_random(args, kwargs):
            return super().call_method(target, args, kwargs)
        if target == "relu":
            return self._as_module(torch.relu, *args)

        def function(first: Tensor, *rest: Any, **options: Any) -> Any:
            return getattr(first, target)(*rest, **options)

        return _by_name(target, function, args, kwargs)

    def _as_module(self, target: Any, x: Any, *args: Any, **kwargs: Any) -> Moments:
        kind = _MODULES[target]
        options = {k: v for k, v in kwargs.items() if k not in ("inplace", "training")}
        module = kind(*args, **options)
        moments: Moments = RULES[kind](module, x)
        return moments


def _by_name(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    first = args[0]
    name = name.strip("_")
    if name in _CUTS and isinstance(first, Moments):
        return _cut(function, *args, **kwargs)
    if name in _MOVES and isinstance(first, Moments) and not kwargs.get("value"):
        return first.each(lambda part: function(part, *args[1:], **kwargs))
    if name in _ASKS and isinstance(first, Moments):
        return function(first.mean, *args[1:], **kwargs)
    if name in _SUMS and len(args) == 2 and not kwargs:
        return _sum(_SUMS[name], *args)
    if name in _SCALES and len(args) == 2 and not kwargs:
        factor, x = (args[0], args[1]) if isinstance(args[1], Moments) else (args[1], args[0])
        is_product = _SCALES[name] is operator.mul or isinstance(args[0], Moments)
        if is_product and not isinstance(factor, Moments):
            scale = _SCALES[name]
            return Moments(scale(x.mean, factor), scale(x.variance, factor * factor))
    if name == "mean" and isinstance(first, Moments):
        mean = function(first.mean, *args[1:], **kwargs)
        count = first.mean.numel() / mean.numel()
        return Moments(mean, function(first.variance, *args[1:], **kwargs) / count)
    raise _unknown("operation", name)


def _cut(
    function: Callable[..., Any], x: Moments, *args: Any, **kwargs: Any
) -> tuple[Moments, ...]:
    parts = (function(part, *args, **kwargs) for part in (x.mean, x.variance))
    return tuple(Moments(mean, variance) for mean, variance in zip(*parts, strict=True))


def _sum(combine: Callable[[Any, Any], Any], a: Any, b: Any) -> Moments:
    """Of independent terms; what is fixed has no variance."""
    means = [part.mean if isinstance(part, Moments) else part for part in (a, b)]
    mean = combine(*means)
    spreads = [part.variance for part in (a, b) if isinstance(part, Moments)]
    return Moments(mean, sum(spreads[1:], spreads[0]).expand_as(mean))


def _joined(tensors: Any, dim: int = 0) -> Moments:
    """A fixed part has variance 0."""
    parts = [t if isinstance(t, Moments) else Moments(t, torch.zeros_like(t)) for t in tensors]
    mean, variance = (torch.cat([getattr(p, k) for p in parts], dim) for k in ("mean", "variance"))
    return Moments(mean, variance)


def _is_random(args: Any, kwargs: Any) -> bool:
    found = False

    def look(value: Any) -> Any:
        nonlocal found
        found = found or isinstance(value, Moments)
        return value

    fx.node.map_aggregate((args, kwargs), look)
    return found


def _unknown(kind: str, name: str) -> InvalidValue:
    modules = sorted(k.__name__ for k in RULES if k.__module__.startswith("torch"))
    functions = ("add", "sub", "mul", "mean", "cat", "scaled_dot_product_attention")
    known = ", ".join(
        ["sparse layers", "MultiheadAttention", *modules, *sorted(_MOVES | _CUTS), *functions]
    )
    return InvalidValue(kind, name, "has no rule for moments", f"use predict; known are {known}")
