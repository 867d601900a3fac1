"""Dropout as a posterior: a random mask over the inputs of a layer, also in prediction.

A mask over the input units of a layer is a draw of its weight: the columns of units that are
dropped are zero (Gal & Ghahramani, ICML 2016). The mask is drawn by a module that is a child of the
layer and works in a hook before it, so that no name and no tensor of the network changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn.base import SparseLayer
from gossamer.nn.candidates import reads_weight
from gossamer.nn.stochastic import Noise, StochasticModule
from gossamer.nn.walk import Weight, require_weights
from gossamer.ops import Layout, normal_like

Dropped = Literal["hidden", "all"]

_CHILD = "input_dropout"


class UnitDropout(StochasticModule):
    """Drops input units of a layer: features of a linear one, whole channels of a convolution.

    What stays is divided by 1 - rate, so that the mean is the input itself. ``train()`` and local
    noise draw a mask per row, weight noise one for all rows and calls: the draw of one θ.
    ``eval()`` outside of ``gossamer.sampling`` drops nothing. The rows are the first axis.

    Args:
        rate: Probability that a unit is dropped, in (0, 1).
        axis: Of the units, counted from the last: -1 for a linear layer, -3 for images.

    Example:
        >>> drop, x = UnitDropout(0.5).eval(), torch.ones(3, 8)
        >>> with gossamer.sampling(drop, seed=1):
        ...     y = drop(x)
        >>> bool((y == y[0]).all()), sorted(set(y.flatten().tolist())), torch.equal(drop(x), x)
        (True, [0.0, 2.0], True)
    """

    def __init__(self, rate: float, axis: int = -1) -> None:
        super().__init__()
        if not 0.0 < rate < 1.0:
            raise InvalidValue("rate", rate, "must lie between 0 and 1")
        if axis >= 0:
            raise InvalidValue("axis", axis, "must be negative: it is counted from the last")
        self.rate = float(rate)
        self.axis = axis
        self._threshold = NormalDist().inv_cdf(self.rate)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` with the units of this draw dropped; its shape."""
        noise = self.noise()
        if noise is None:
            return x
        like = torch.empty(self._mask_shape(x, noise), dtype=x.dtype, device=x.device)
        # From normals, which every device draws alike: P(ε > Φ⁻¹(rate)) = 1 - rate.
        kept = normal_like(self.seed(), like) > self._threshold
        return x * (kept.to(x.dtype) / (1.0 - self.rate))

    def _mask_shape(self, x: Tensor, noise: Noise) -> list[int]:
        """1 wherever a mask is shared: over positions always, over rows where one θ is drawn."""
        shape = [1] * x.dim()
        shape[self.axis] = x.shape[self.axis]
        if noise == "local" and x.dim() > -self.axis:
            shape[0] = x.shape[0]
        return shape

    def extra_repr(self) -> str:
        """Rate and axis, for ``print(model)``."""
        return f"rate={self.rate:g}, axis={self.axis}"


def drop_inputs(model: nn.Module, rate: float, layers: Dropped = "hidden") -> list[str]:
    """Put dropout before the sparse layers of ``model``, in place.

    Layers that share a weight share the module: under weight noise they have one θ. Left out are
    layers whose parent reads their weight instead of calling them (recurrent networks), and tables,
    whose inputs are numbers of rows.

    Args:
        model: A converted network.
        rate: Probability that an input unit is dropped.
        layers: ``hidden``: all but the first in the order of registration, which sees the data;
            ``all``.

    Returns:
        Names of the weights whose inputs are dropped.

    Raises:
        InvalidValue: No layer is left to drop the inputs of, or one has dropout already.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> sparse = gossamer.to_sparse(net)
        >>> drop_inputs(sparse, 0.1)
        ['2']
    """
    if layers not in get_args(Dropped):
        raise UnknownName("layers", str(layers), get_args(Dropped))
    weights = require_weights(model)
    chosen = [w for w in weights[layers == "hidden" :] if not _is_read(model, w)]
    if not chosen:
        raise InvalidValue(
            "layers",
            layers,
            "leaves no layer whose inputs could be dropped",
            "take layers=all" if layers == "hidden" else "another method fits this network",
        )
    for weight in chosen:
        if dropout_of(weight.layer) is not None:
            raise InvalidValue("model", weight.title, "has dropout before it already")
        attach_dropout(weight.layers, rate)
    return [weight.name for weight in chosen]


def attach_dropout(layers: Sequence[SparseLayer], rate: float) -> None:
    """One ``UnitDropout`` before the layers of one weight."""
    dropout = UnitDropout(rate, unit_axis(layers[0].layout)).train(layers[0].training)
    for layer in layers:
        layer.add_module(_CHILD, dropout)
        layer.register_forward_pre_hook(_drop)


def dropout_of(module: nn.Module) -> UnitDropout | None:
    """The dropout before a layer, if it has one."""
    found = module._modules.get(_CHILD)
    return found if isinstance(found, UnitDropout) else None


def carry_dropout(old: nn.Module, new: nn.Module) -> None:
    """Give the dropout of a layer, whose hooks went along, to the one that takes its place."""
    dropout = dropout_of(old)
    if dropout is not None:
        new.add_module(_CHILD, dropout)


def forget_dropout(layer: nn.Module) -> None:
    """Take the dropout before a layer away: the mean of its masks is the input itself."""
    if dropout_of(layer) is None:
        return
    del layer._modules[_CHILD]
    for key, hook in list(layer._forward_pre_hooks.items()):
        if hook is _drop:
            del layer._forward_pre_hooks[key]


def unit_axis(layout: Layout) -> int:
    """Where the input units of a layer stand, counted from the last axis."""
    return -1 if layout.kind == "linear" else -1 - layout.dims


def _is_read(model: nn.Module, weight: Weight) -> bool:
    names = {id(layer) for layer in weight.layers}
    if any(layer.layout.is_lookup for layer in weight.layers):
        return True
    found = model.named_modules(remove_duplicate=False)
    return any(reads_weight(model, name) for name, m in found if id(m) in names)


def _drop(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    dropout = dropout_of(layer)
    assert dropout is not None
    return (dropout(inputs[0]), *inputs[1:])
