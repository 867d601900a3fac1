"""How far two criteria agree: the intersection over union (IoU) of the sets that they remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gossamer.core.removal import Criterion
from gossamer.errors import InvalidValue, NonFinite

Matrix = dict[str, dict[str, float]]


def removed_set(scores: Tensor, count: int) -> Tensor:
    """Returns the positions of the ``count`` lowest scores; of equal scores the first leave.

    Args:
        scores: Any shape, n elements, read flat; infinite values are allowed, NaN is not.
        count: How many leave, in [0, n].

    Returns:
        int64 tensor [count] of flat positions, ascending.

    Raises:
        InvalidValue: If ``count`` is outside its range.
        NonFinite: If a score is NaN.
    """
    flat = scores.detach().reshape(-1)
    if not 0 <= count <= flat.numel():
        raise InvalidValue("count", count, f"must lie in [0, {flat.numel()}]", "remove fewer")
    if bool(torch.isnan(flat).any()):
        raise NonFinite("scores", None, "must not be NaN", "look at the means and stds")
    order = torch.sort(flat, stable=True).indices
    return torch.sort(order[:count]).values


def iou(a: Tensor, b: Tensor) -> float:
    """Returns |a ∩ b| / |a ∪ b| of two sets of positions; 1 where both are empty.

    Args:
        a: Integer tensor [n_a].
        b: Integer tensor [n_b].
    """
    first, second = torch.unique(a), torch.unique(b)
    shared = int(torch.isin(first, second, assume_unique=True).sum())
    union = first.numel() + second.numel() - shared
    return shared / union if union else 1.0


def iou_matrix(
    layers: Sequence[tuple[Tensor, Tensor]], fraction: float, table: Mapping[str, Criterion]
) -> Matrix:
    """Returns the IoU of the removed sets for each pair of criteria, pooled over the layers.

    Args:
        layers: ``(mean, std)`` of each layer, of one shape; each gives up its own share.
        fraction: Share removed, in (0, 1]; int(fraction · n) of a layer's n weights leave, of all
            layers together at least one.
        table: Criteria by name.

    Returns:
        ``matrix[row][column]``, symmetric, 1 on the diagonal.

    Raises:
        InvalidValue: If the fraction is outside its range or removes nothing.
    """
    sizes = [mean.numel() for mean, _ in layers]
    if not 0.0 < fraction <= 1.0 or not any(int(fraction * size) for size in sizes):
        rule = f"must lie in (0, 1] and remove at least one of {sum(sizes)} weights"
        raise InvalidValue("fraction", fraction, rule, "raise it or join the layers")
    removed: dict[str, Tensor] = {}
    for name, score in table.items():
        sets, first = [], 0
        for (mean, std), size in zip(layers, sizes, strict=True):
            sets.append(first + removed_set(score(mean, std), int(fraction * size)))
            first += size
        removed[name] = torch.cat(sets)
    return {row: {col: iou(removed[row], removed[col]) for col in removed} for row in removed}
