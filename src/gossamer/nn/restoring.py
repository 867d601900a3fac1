"""The way back: from sparse layers to the torch modules that they were."""

from __future__ import annotations

import copy

import torch
from torch import nn

from gossamer.nn.base import SparseLayer
from gossamer.nn.batchnorm import use_torch_batchnorm
from gossamer.nn.dropout import forget_dropout
from gossamer.nn.hooks import forget_shared_draws, move_hooks
from gossamer.nn.measure import forget_measurement
from gossamer.nn.split import put
from gossamer.nn.splitting import join_modules
from gossamer.nn.twins import dense_twin_of


def to_deterministic(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """The way back: plain torch layers with the means on the support and zeros elsewhere."""
    model = model if inplace else copy.deepcopy(model)
    made: dict[int, nn.Module] = {}
    weights: dict[int, nn.Parameter] = {}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, SparseLayer):
            continue
        if id(layer) not in made:
            made[id(layer)] = _dense_twin(layer, weights)
        model = put(model, name, made[id(layer)])
    model = join_modules(model)
    forget_shared_draws(model)
    use_torch_batchnorm(model)
    return model


def _dense_twin(layer: SparseLayer, weights: dict[int, nn.Parameter]) -> nn.Module:
    """A torch layer with the means as weight.

    Layers that shared parameters share the dense weight.
    """
    dense = layer.origin.restore(dense_twin_of(layer)) if layer.origin else dense_twin_of(layer)
    leading = layer.leading()
    if id(leading) not in weights:
        mean = layer.backend.weight(leading.detach(), layer.pattern, layer.layout, None)
        dense_mean = layer.as_stored(mean).clone(memory_format=torch.contiguous_format)
        weights[id(leading)] = nn.Parameter(dense_mean, requires_grad=leading.requires_grad)
    dense.register_parameter("weight", weights[id(leading)])
    if not layer.layout.is_lookup:  # which has none, not even an empty one
        dense.register_parameter("bias", layer.bias)
    forget_measurement(layer)
    forget_dropout(layer)
    move_hooks(layer, dense)
    return dense.train(layer.training)
