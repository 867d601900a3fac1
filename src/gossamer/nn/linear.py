"""Sparse fully connected layers."""

from __future__ import annotations

from torch import nn

from gossamer.nn.base import BayesianLayer, DeterministicLayer
from gossamer.ops import Layout


class _LinearShape:
    """The attributes of ``nn.Linear`` that other code reads."""

    layout: Layout

    @property
    def in_features(self) -> int:
        """Input units."""
        return self.layout.fan_in

    @property
    def out_features(self) -> int:
        """Output units."""
        return self.layout.fan_out


class BayesianLinear(_LinearShape, BayesianLayer):
    """``[..., in] → [..., out]`` with a Gaussian on every kept weight."""


class SparseLinear(_LinearShape, DeterministicLayer):
    """``[..., in] → [..., out]`` with one value on every kept weight."""


def linear_layout(module: nn.Linear) -> Layout:
    """The layout of a torch linear layer."""
    return Layout("linear", tuple(module.weight.shape))


def dense_linear(layer: BayesianLinear | SparseLinear) -> nn.Linear:
    """An uninitialised torch layer of the same geometry."""
    out_features, in_features = layer.layout.shape
    return nn.Linear(in_features, out_features, bias=layer.bias is not None, device="meta")
