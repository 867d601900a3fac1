"""The one way to another support: a weight with its gradients and optimiser state.

Swaps, pruning, growing, snapshots and loading all come here. Parameters stay the same objects.
Where the number of kept weights stays the same everything is written in place, so that compiled
graphs hold; where it changes, data is replaced, between steps and never inside a compiled graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.sigma_init import SigmaRule, mean_of_survivors
from gossamer.core.support import Support, check_indices, index_dtype
from gossamer.core.swap import follow
from gossamer.errors import InvalidValue
from gossamer.nn.base import FreshMoment, fresh_moment
from gossamer.nn.state_kinds import NamesFreshState, kind_of, require_known_state
from gossamer.nn.walk import Weight, weights_of

Optimizers = Optimizer | Sequence[Optimizer] | None
"""One that holds the state of what moves, several, or none."""


def require_movable(
    optimizer: Optimizer | Sequence[Optimizer], weights: Iterable[Weight], *, grows: bool = False
) -> None:
    """Raise, before anything moves, where state of an optimiser could not follow.

    Args:
        optimizer: Any, or several.
        weights: Those that are about to move.
        grows: Whether fresh weights will enter: every state must then be known.
    """
    weights = list(weights)
    for each in _each(optimizer):
        _require_movable(each, weights, grows)


def _require_movable(optimizer: Optimizer, weights: list[Weight], grows: bool) -> None:
    for group in optimizer.param_groups:
        for name, value in group.items():
            # One flat vector over all parameters of a group, as IVON's package keeps it.
            if isinstance(value, Tensor) and value.dim() > 0:
                raise _immovable(optimizer, name, tuple(value.shape), "a parameter's shape")
    for state in optimizer.state.values():
        for name, value in state.items():
            held = list(value.values()) if isinstance(value, dict) else value
            if isinstance(held, list | tuple) and any(isinstance(v, Tensor) for v in held):
                raise _immovable(optimizer, name, f"{len(held)} tensors", "its parameter's shape")
    _require_elementwise(optimizer, weights, grows)


def _require_elementwise(optimizer: Optimizer, weights: list[Weight], grows: bool) -> None:
    for weight in weights:
        for vector in weight.layer.vectors:
            shape = vector.parameter.shape
            for name, value in optimizer.state.get(vector.parameter, {}).items():
                if not isinstance(value, Tensor) or value.dim() == 0:
                    continue
                if value.shape != shape:
                    wanted = f"the shape {tuple(shape)}"
                    raise _immovable(optimizer, name, tuple(value.shape), wanted)
                if grows:
                    require_known_state(optimizer, vector.parameter, name)


@torch.no_grad()
def move(
    weight: Weight,
    support: Support,
    source: Tensor,
    *,
    sigma: SigmaRule = mean_of_survivors,
    optimizer: Optimizers = None,
    followers: Iterable[Weight] = (),
) -> None:
    """Give a weight another support: of the same size, smaller or larger.

    Every vector over the support, its gradient and the optimiser's state of it follow. What a fresh
    weight starts with is the layer's to say (``fresh_values``, ``fresh_moment``).

    Args:
        weight: The weight, with all layers that use it.
        support: Where it lives from now on.
        source: int64 ``[support.nnz]``: for each new slot the old slot whose value it takes, or -1
            for a fresh weight.
        sigma: Standard deviation of fresh weights, from that of those that stay.
        optimizer: One that passed ``require_movable``, or several; their scalars stay.
        followers: The same weight in copies of the model, such as an average of it. They have the
            support of ``weight``, and fresh values of their own: σ is by rule from their own.

    Example:
        >>> net = gossamer.to_sparse(nn.Linear(3, 1), sparsity=0.0)
        >>> (weight,) = weights_of(net)
        >>> kept = Support.from_positions(torch.tensor([0, 2]), (1, 3))
        >>> move(weight, kept, torch.tensor([0, 2]))
        >>> net.nnz
        2
    """
    _check(weight, support, source)
    layer = weight.layer
    source = source.to(weight.values.device)
    stayed = source[source >= 0]
    grows = stayed.numel() < source.numel()
    for each in _each(optimizer):  # before the first change
        _require_elementwise(each, [weight], grows)
    for follower in followers:
        move(follower, support, source, sigma=sigma)
    fresh = layer.fresh_values(stayed, sigma) if grows else {}
    for vector in layer.vectors:
        move_parameter(
            vector.parameter,
            source,
            fresh.get(vector.name, 0.0),
            fresh_moment=layer.fresh_moment,
            optimizer=optimizer,
        )
    _place(weight, support)


@torch.no_grad()
def move_parameter(
    parameter: nn.Parameter,
    source: Tensor,
    fresh: Tensor | float = 0.0,
    *,
    fresh_moment: FreshMoment = fresh_moment,
    optimizer: Optimizers = None,
) -> None:
    """Carry one vector, its gradient and the optimiser's state of it to other slots.

    For what lives on no support, such as a gate per unit; a weight moves as a whole, by ``move``.

    Args:
        parameter: ``[n]``.
        source: int64 ``[m]``: for each new slot the old one whose value it takes, or -1.
        fresh: Value of a slot without an old one.
        fresh_moment: The optimiser's moments of such a slot.
        optimizer: One, or several, whose state of the parameter is scalar or elementwise; scalars
            stay.
    """
    source = source.to(parameter.device)
    for each in _each(optimizer):
        _move_state(parameter, source, fresh, fresh_moment, each)
    grad = parameter.grad
    moved = follow(parameter.detach(), source, fresh)
    moved_grad = None if grad is None else follow(grad, source, 0.0)
    if moved.shape == parameter.shape:
        parameter.copy_(moved)
        if grad is not None and moved_grad is not None:
            grad.copy_(moved_grad)
    else:
        parameter.grad = None  # of the old shape, which the new data would contradict
        # While a graph of the last step is alive, a parameter's gradient accumulator remembers the
        # old length and refuses the next gradient. torch renews it where the dtype changes.
        other = torch.float32 if parameter.dtype == torch.float64 else torch.float64
        parameter.data = moved.new_empty(0, dtype=other)
        parameter.data = moved
        parameter.grad = moved_grad


def adopt(model: nn.Module, state: Mapping[str, Any]) -> None:
    """``model.load_state_dict`` for a state whose supports may have other sizes."""
    for weight in weights_of(model):
        prefix = f"{weight.name}." if weight.name else ""
        layer = weight.layer
        values = state.get(prefix + layer.vectors[0].name)
        indices = state.get(prefix + "indices")
        if values is None or (indices is None) != (values.numel() == layer.layout.numel):
            continue  # load_state_dict says what is missing
        if (indices is None) == (layer.indices is None) and values.shape == weight.values.shape:
            continue  # load_state_dict copies in place
        held = None if indices is None else indices.to(weight.values.device, copy=True)
        support = Support(layer.layout.shape, held)
        move(weight, support, torch.full((support.nnz,), -1, dtype=torch.int64))
    model.load_state_dict(dict(state))


def state_on(model: nn.Module, keep: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a model as it would be with some weights gone; the model stays as it is.

    Args:
        model: Sparse layers.
        keep: By the name of a weight, bool ``[nnz]``: which of it stay.
    """
    state = dict(model.state_dict())
    for weight in weights_of(model):
        mask = keep.get(weight.name)
        if mask is None or bool(mask.all()):
            continue
        layer = weight.layer
        # A full support has its positions on the CPU, wherever the weights are.
        positions = layer.support.positions().to(mask.device)[mask]
        # Under all its names: the state of a layer that has two is saved twice.
        for name, module in model.named_modules(remove_duplicate=False):
            if module in weight.layers:
                prefix = f"{name}." if name else ""
                state[prefix + "indices"] = positions.to(index_dtype(layer.layout.numel))
                for vector in layer.vectors:
                    state[prefix + vector.name] = vector.parameter.detach()[mask]
    return state


def _check(weight: Weight, support: Support, source: Tensor) -> None:
    layer = weight.layer
    if support.shape != layer.layout.shape:
        raise InvalidValue("support shape", support.shape, f"must equal {layer.layout.shape}")
    if source.shape != (support.nnz,):
        raise InvalidValue("source", tuple(source.shape), f"must have the shape ({support.nnz},)")
    if source.numel() and not -1 <= int(source.min()) <= int(source.max()) < layer.nnz:
        raise InvalidValue("source", None, f"must name slots in [0, {layer.nnz}), or -1")
    if support.nnz == layer.nnz:
        return
    if torch.compiler.is_compiling():
        raise InvalidValue(
            "move", None, "changes shapes, which a compiled step cannot", "call it between steps"
        )
    if support.indices is not None:
        check_indices(support.indices, layer.layout.numel, f"indices of {weight.title}")


def _place(weight: Weight, support: Support) -> None:
    """The index buffers of all layers that use the weight, and what their backends derive."""
    indices = support.indices
    # A copy for all layers of this weight: a support is a value, and other weights may move to it.
    own = None if indices is None else indices.to(weight.values.device, copy=True)
    for layer in weight.layers:
        held = layer.indices
        if held is not None and own is not None and held.shape == own.shape:
            held.copy_(own)
        else:
            layer.indices = own
        layer.note_support()
        layer.refresh_pattern()


def _each(optimizer: Optimizers) -> Sequence[Optimizer]:
    if optimizer is None:
        return ()
    return optimizer if isinstance(optimizer, Sequence) else (optimizer,)


def _move_state(
    parameter: nn.Parameter,
    source: Tensor,
    fresh_value: Tensor | float,
    fresh_moment: FreshMoment,
    optimizer: Optimizer,
) -> None:
    stayed = source[source >= 0]
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            continue
        fresh: Tensor | float = 0.0
        if stayed.numel() < source.numel():
            kept = value[stayed] if stayed.numel() else value
            fresh = _fresh_state(parameter, name, kept, fresh_value, fresh_moment, optimizer)
        moved = follow(value, source, fresh)
        if moved.shape == value.shape:
            value.copy_(moved)
        else:
            state[name] = moved


def _fresh_state(
    parameter: nn.Parameter,
    name: str,
    kept: Tensor,
    fresh_value: Tensor | float,
    fresh_moment: FreshMoment,
    optimizer: Optimizer,
) -> Tensor | float:
    if isinstance(optimizer, NamesFreshState):
        known = optimizer.fresh_state(parameter, name)
        if known is not None:
            return known
    require_known_state(optimizer, parameter, name)
    kind = kind_of(optimizer, name)
    if kind == "tracks":
        return fresh_value
    return fresh_moment(2 if kind == "second" else 1, kept)


def _immovable(optimizer: Optimizer, name: str, value: object, wanted: str) -> InvalidValue:
    return InvalidValue(
        f"state {name!r} of {type(optimizer).__name__}",
        value,
        f"must be scalar or of {wanted} to follow a swap",
        "use an optimiser with elementwise state, such as SGD, Adam or RMSprop",
    )
