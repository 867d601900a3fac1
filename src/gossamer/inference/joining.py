"""Networks of one architecture as one network, and that one in its parts again.

Every layer of the joined network holds the layers of all parts, one group of outputs for each: the
first reads the inputs that all share, the others read their own group (``GroupedLinear``). So a
flat position of part k lies k · (weights of the layer) further on, and a part is a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gossamer.core.support import index_dtype
from gossamer.errors import InvalidValue
from gossamer.models.columns import LinearSkip, SelectColumns
from gossamer.nn import GroupedLinear, SparseLayer, is_stochastic, sparse_layers
from gossamer.nn.adjacent import ELEMENTWISE
from gossamer.nn.dropout import dropout_of
from gossamer.nn.replica import replicate
from gossamer.nn.skeleton import backends, describe, skeleton
from gossamer.nn.walk import restore_backends


def joined(networks: Sequence[nn.Module]) -> nn.Module:
    """One network ``[B, ...] → [B, M · D]`` of M perceptrons ``[B, ...] → [B, D]``.

    Its modules have the names of theirs. Parameters are new: nobody else's are trained with it.

    Args:
        networks: Of one architecture: ``nn.Sequential`` and ``LinearSkip`` of ``nn.Linear``, of
            element-wise modules, and in front of these of ``nn.Flatten`` and ``SelectColumns``.

    Raises:
        InvalidValue: A module of another kind, which may mix the parts; it is named.

    Example:
        >>> nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)]
        >>> joined(nets)(torch.randn(5, 4)).shape
        torch.Size([5, 3])
    """
    whole, _ = _join("", list(networks), is_shared=True)
    return whole


def _join(name: str, parts: Sequence[nn.Module], is_shared: bool) -> tuple[nn.Module, bool]:
    """The parts as one module, and whether what comes out is still the same for all of them."""
    first = parts[0]
    kind = type(first)
    if any(type(part) is not kind for part in parts):
        raise _no_part(name, first, "must be of one kind in all members")
    if isinstance(first, nn.Sequential):
        whole = nn.Sequential()
        for child in first._modules:
            found, is_shared = _join(
                f"{name}{child}.", [part.get_submodule(child) for part in parts], is_shared
            )
            whole.add_module(child, found)
        return whole, is_shared
    if isinstance(first, LinearSkip):
        body, _ = _join(f"{name}body.", [part.get_submodule("body") for part in parts], is_shared)
        linear, _ = _join(
            f"{name}linear.", [part.get_submodule("linear") for part in parts], is_shared
        )
        assert isinstance(linear, nn.Linear | GroupedLinear)
        skip = LinearSkip(body, linear.in_features, linear.out_features)
        skip.add_module("linear", linear)
        return skip, False
    if kind is nn.Linear:
        return _join_linear(name, parts, is_shared), False
    if is_shared and (kind is nn.Flatten or kind is SelectColumns):
        if any(not _are_equal(a, b) for a, b in pairwise(parts)):
            raise _no_part(name, first, "must be the same in all members")
        return replicate(first), True
    if kind in ELEMENTWISE and kind is not nn.Dropout and not first._parameters:
        return replicate(first), is_shared
    raise _no_part(name, first, "may mix what belongs to different members")


def _join_linear(name: str, parts: Sequence[nn.Module], is_shared: bool) -> nn.Module:
    weights, biases = [], []
    for part in parts:
        assert isinstance(part, nn.Linear)
        weights.append(part.weight.detach())
        biases.append(None if part.bias is None else part.bias.detach())
    if any(weight.shape != weights[0].shape for weight in weights):
        raise _no_part(name, parts[0], "must have one size in all members")
    out, inputs = weights[0].shape
    count, has_bias = len(parts), biases[0] is not None
    whole: nn.Linear | GroupedLinear
    if is_shared:
        whole = nn.Linear(inputs, count * out, has_bias)
    else:
        whole = GroupedLinear(count * inputs, count * out, count, has_bias)
    whole = whole.to(weights[0])
    with torch.no_grad():
        whole.weight.copy_(torch.cat(weights))
        if whole.bias is not None:
            whole.bias.copy_(torch.cat([bias for bias in biases if bias is not None]))
    return whole


def joined_state(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The state of the joined network from those of converted parts, supports included.

    Args:
        networks: ``to_sparse`` of what :func:`joined` was given.
    """
    states = [dict(network.state_dict()) for network in networks]
    found = dict(states[0])
    for name, layer in sparse_layers(networks[0]).items():
        prefix = f"{name}." if name else ""
        own = [sparse_layers(network)[name] for network in networks]
        numel = layer.layout.numel
        for key in [vector.name for vector in layer.vectors] + (
            ["bias"] if layer.bias is not None else []
        ):
            found[prefix + key] = torch.cat([state[prefix + key] for state in states])
        found.pop(prefix + "indices", None)
        if any(each.indices is not None for each in own):
            positions = [
                each.support.positions().to(each.leading().device) + number * numel
                for number, each in enumerate(own)
            ]
            whole = torch.cat(positions).to(index_dtype(numel * len(networks)))
            found[prefix + "indices"] = whole
    return found


def parted(whole: nn.Module, plain: nn.Module, count: int) -> list[nn.Module]:
    """The parts of a joined and converted network, over slices of its tensors.

    Args:
        whole: ``to_sparse`` of a joined network.
        plain: The torch architecture of a part; not written to.
        count: How many there are.
    """
    about = describe(whole)
    for layer in about["layers"]:
        layer["shape"][0] //= count
    template = skeleton(plain, about)
    cuts = {name: _cuts(layer, count) for name, layer in sparse_layers(whole).items()}
    names = backends(about)
    found = []
    for number in range(count):
        state = {name: t.detach() for name, t in whole.state_dict().items()}
        for name, layer in sparse_layers(whole).items():
            prefix = f"{name}." if name else ""
            state.pop(prefix + "indices", None)
            state.update(_slice(prefix, layer, count, number, cuts[name]))
        part = replicate(template, state)
        restore_backends(part, names)
        found.append(part)
    return found


def require_parts(converted: nn.Module) -> None:
    """Raise unless the parts of a converted network are slices of it.

    Raises:
        InvalidValue: It draws noise, or has dropout; the layer is named.
    """
    for name, layer in sparse_layers(converted).items():
        if is_stochastic(layer) or dropout_of(layer) is not None:
            raise InvalidValue(
                "harvest",
                "abreast",
                f"is for networks without noise, and layer {name or 'root'} has some",
                "use harvest='runs'",
            )


def _cuts(layer: SparseLayer, count: int) -> list[int]:
    """Where the kept weights of each part begin and the last ends."""
    support = layer.support
    size = support.numel // count
    if support.indices is None:
        return [number * size for number in range(count + 1)]
    edges = torch.arange(count + 1, device=support.indices.device) * size
    return [int(at) for at in torch.searchsorted(support.indices.long(), edges)]


def _slice(
    prefix: str, layer: SparseLayer, count: int, number: int, cuts: list[int]
) -> dict[str, Tensor]:
    first, last = cuts[number], cuts[number + 1]
    found = {prefix + v.name: v.parameter.detach()[first:last] for v in layer.vectors}
    size = layer.layout.numel // count
    if layer.indices is not None and last - first < size:
        own = layer.indices[first:last] - number * size
        found[prefix + "indices"] = own.to(index_dtype(size))
    if layer.bias is not None:
        out = layer.layout.fan_out // count
        found[prefix + "bias"] = layer.bias.detach()[number * out : (number + 1) * out]
    return found


def _are_equal(first: nn.Module, second: nn.Module) -> bool:
    states = first.state_dict(), second.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


def _no_part(name: str, module: nn.Module, rule: str) -> InvalidValue:
    return InvalidValue(
        f"module {name.rstrip('.') or 'root'}",
        type(module).__name__,
        f"{rule}: members abreast are perceptrons of linear and element-wise modules",
        "use harvest='runs'",
    )
