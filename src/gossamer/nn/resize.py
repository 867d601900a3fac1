"""Layers whose number of kept weights changes: pruned ones, and those that take saved weights on.

Parameters stay the same objects; their data is replaced, so that it happens between steps and never
inside a compiled graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.support import check_indices
from gossamer.errors import InvalidValue
from gossamer.nn.base import DeterministicLayer
from gossamer.nn.walk import WeightGroup, weight_groups


def resize(group: WeightGroup, indices: Tensor | None, values: Tensor) -> None:
    """Give the layers of one weight another support and the values on it.

    Args:
        group: Deterministic layers that share a weight. Its gradient is dropped.
        indices: Sorted flat positions; ``None`` for a full support.
        values: ``[nnz]``.
    """
    if torch.compiler.is_compiling():
        raise InvalidValue(
            "resize", None, "changes shapes, which a compiled step cannot", "call it between steps"
        )
    if not all(isinstance(layer, DeterministicLayer) for layer in group.layers):
        raise InvalidValue("layer", group.name, "is Bayesian", "only deterministic layers shrink")
    wanted = group.first.layout.numel if indices is None else indices.numel()
    if values.shape != (wanted,):
        raise InvalidValue("values", tuple(values.shape), f"must have the shape ({wanted},)")
    if indices is not None:
        check_indices(indices, group.first.layout.numel, f"indices of {group.name or 'root'}")
    parameter = group.first.leading()
    parameter.grad = None
    parameter.data = values.detach().to(parameter)
    for layer in group.layers:
        layer.indices = indices
        layer.refresh_pattern()


def adopt(model: nn.Module, state: Mapping[str, Any]) -> None:
    """``model.load_state_dict`` for a state whose supports may have other sizes."""
    for group in weight_groups(model):
        prefix = f"{group.name}." if group.name else ""
        values, indices = state.get(f"{prefix}weight_values"), state.get(f"{prefix}indices")
        if values is None or (indices is None) != (values.numel() == group.first.layout.numel):
            continue  # load_state_dict says what is missing
        present = group.first.indices
        if (indices is None) == (present is None) and values.shape == group.first.leading().shape:
            continue  # load_state_dict copies in place
        held = None if indices is None else indices.clone()
        resize(group, held, values.clone())
    model.load_state_dict(dict(state))
