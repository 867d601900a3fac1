"""Sparse fully connected layers."""

from __future__ import annotations

from torch import Tensor, nn

from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
from gossamer.nn.grouped import GroupedLinear
from gossamer.ops import Layout


class _LinearShape(SparseLayer):
    """The attributes of ``nn.Linear``, or of a registered class, that other code reads."""

    @property
    def in_features(self) -> int:
        """Input units of all groups."""
        return self.layout.channels

    @property
    def out_features(self) -> int:
        """Output units."""
        return self.layout.fan_out

    def as_stored(self, weight: Tensor) -> Tensor:
        """With the axes in the order that the module's own class has."""
        return weight.t() if self.origin is not None and self.origin.transposed else weight


class BayesianLinear(_LinearShape, BayesianLayer):
    """``[..., in] → [..., out]`` with a Gaussian on every kept weight."""


class SparseLinear(_LinearShape, DeterministicLayer):
    """``[..., in] → [..., out]`` with one value on every kept weight."""


def linear_layout(module: nn.Linear) -> Layout:
    """The layout of a torch linear layer."""
    return Layout("linear", tuple(module.weight.shape))


def dense_linear(layer: BayesianLinear | SparseLinear) -> nn.Linear | GroupedLinear:
    """An uninitialised torch layer of the same geometry."""
    sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
    if layer.layout.groups > 1:
        return GroupedLinear(*sizes, layer.layout.groups, bias, device="meta")
    return nn.Linear(*sizes, bias=bias, device="meta")
