"""Which columns a network reads: its first layer, by column of the table."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.data.prepare import TableInput
from gossamer.errors import GossamerError
from gossamer.prediction import Mixture, Posterior
from gossamer.selection import Selection
from gossamer.selection import importances as path_importances


def first_weights(posterior: Posterior) -> list[Tensor] | None:
    """Weights [units, features] of the first layer of every network, 0 where there is none.

    ``None`` where no layer reads the features of the table.
    """
    members = posterior.members if isinstance(posterior, Mixture) else (posterior,)
    found = []
    for member in members:
        assert posterior.preparation is not None
        (features,) = posterior.preparation.input_shape
        weight = _first(member.network().eval(), features)
        if weight is None:
            return None
        found.append(weight)
    return found


def importances(posterior: Posterior) -> NDArray[np.float64] | None:
    """Share of every column, [columns]: along all paths; of other networks, in a first layer."""
    try:
        size = path_importances(posterior).double()
    except GossamerError:  # no perceptron
        weights = first_weights(posterior)
        if weights is None:
            return None
        size = torch.stack([weight.abs().double().sum(0) for weight in weights]).mean(0)
    by_column = _summed(posterior, size.numpy())
    total = by_column.sum()
    return by_column / total if total > 0.0 else by_column


def selected(posterior: Posterior, selection: Selection | None) -> NDArray[np.bool_] | None:
    """Which columns were found to matter, or have a weight in the first layer of any network."""
    if selection is not None:
        matters = np.zeros(selection.num_columns)
        matters[list(selection.columns)] = 1.0
        return _summed(posterior, matters) > 0.0
    weights = first_weights(posterior)
    if weights is None:
        return None
    kept = torch.stack([(weight != 0).sum(0) for weight in weights]).sum(0)
    return _summed(posterior, kept.double().numpy()) > 0.0


def _first(network: nn.Module, features: int) -> Tensor | None:
    for layer in network.modules():
        weight = getattr(layer, "weight", None)
        if getattr(layer, "in_features", None) == features and isinstance(weight, Tensor):
            return weight.detach()
    return None


def _summed(posterior: Posterior, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of features summed over the features of each column."""
    assert posterior.preparation is not None
    inputs = posterior.preparation.inputs
    assert isinstance(inputs, TableInput)
    widths = [len(column.features) for column in inputs.columns]
    starts = np.cumsum([0, *widths[:-1]])
    return np.asarray(np.add.reduceat(values, starts))
