"""BatchNorm with running statistics, computed by the convolution before it.

In evaluation such a layer is y · scale + shift per channel. Scaled weights and another bias give
the same without a pass over the activations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from torch import Tensor, fx, nn

from gossamer.nn.base import BayesianLayer, Scaling, SparseLayer
from gossamer.nn.batchnorm import NativeBatchNorm


def foldable(model: nn.Module) -> dict[str, str]:
    """Names of the convolutions of ``model`` whose one reader is a BatchNorm, with its name.

    ``torch.fx`` records what the network does, on a copy that shares its tensors. Nothing is found
    where it cannot, or where hooks would see what is recorded.

    Args:
        model: In evaluation mode.
    """
    if not any(isinstance(module, NativeBatchNorm) for module in model.modules()):
        return {}
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        return {}
    try:
        held = {id(t): t for t in chain(model.parameters(), model.buffers())}
        graph = _Recorder().trace(nn.Sequential(copy.deepcopy(model, held)))
    except Exception:  # a forward method may do anything on what is no tensor
        return {}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    names = [str(node.target).removeprefix("0.") for node in calls]
    name_of = dict(zip(calls, names, strict=True))
    found = {}
    for node in calls:
        if len(node.users) != 1 or len(node.args) != 1 or node.kwargs:
            continue
        reader = next(iter(node.users))
        layer, norm = name_of[node], name_of.get(reader)
        if norm is None or names.count(layer) > 1 or names.count(norm) > 1:
            continue
        if reader.args == (node,) and not reader.kwargs and _is_pair(model, layer, norm):
            found[layer] = norm
    return found


class _Recorder(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers that may be folded, and torch's own."""
        is_ours = isinstance(m, SparseLayer | NativeBatchNorm)
        return is_ours or super().is_leaf_module(m, module_qualified_name)


def _is_pair(model: nn.Module, layer: str, norm: str) -> bool:
    first, second = model.get_submodule(layer), model.get_submodule(norm)
    return (
        isinstance(first, SparseLayer)
        and first.layout.kind == "conv"
        and isinstance(second, NativeBatchNorm)
        and not second.training
        and second.running_mean is not None
        and second.num_features == first.layout.fan_out
        and second.running_mean.dtype == first.leading().dtype
    )


@contextmanager
def folded(model: nn.Module, pairs: Mapping[str, str]) -> Iterator[None]:
    """Within the context the convolutions compute what the layers after them would.

    Neither weights nor statistics may change inside, nor may gradients be wanted. Local noise is
    left alone where a scale is negative: its sign would change.

    Args:
        model: As ``foldable`` saw it, or a copy.
        pairs: What that found.
    """
    changed: list[tuple[SparseLayer, NativeBatchNorm]] = []
    try:
        for one, other in pairs.items():
            layer, norm = model.get_submodule(one), model.get_submodule(other)
            assert isinstance(layer, SparseLayer)
            assert isinstance(norm, NativeBatchNorm)
            scale, shift = _affine(norm)
            is_local = isinstance(layer, BayesianLayer) and layer.noise() == "local"
            if is_local and bool((scale < 0.0).any()):
                continue
            changed.append((layer, norm))
            layer.scaling, norm.is_folded = Scaling.of(layer, scale, shift), True
        yield
    finally:
        for layer, norm in changed:
            layer.scaling, norm.is_folded = None, False


def _affine(norm: NativeBatchNorm) -> tuple[Tensor, Tensor]:
    """Scale and shift [C] in float64."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.double()
