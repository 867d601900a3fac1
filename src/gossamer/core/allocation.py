"""How a budget of kept weights is shared among layers: exact integers that sum to the budget.

The budget is round((1 - sparsity) · all convertible weights). Every layer keeps at least one weight
and at most all of them; what is fractional is settled by largest remainders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, prod

from gossamer.core.naming import places_by_pattern
from gossamer.errors import InvalidValue, UnknownName

_BISECTIONS = 200


@dataclass(frozen=True)
class LayerSize:
    """What allocation needs to know of a layer.

    Args:
        name: For messages.
        fan_in: Input units or channels *per group*.
        fan_out: Output units or channels.
        kernel: Kernel size per dimension; empty for a linear layer.
    """

    name: str
    fan_in: int
    fan_out: int
    kernel: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Number of weights."""
        return self.fan_in * self.fan_out * prod(self.kernel)

    @property
    def erk_density(self) -> float:
        """Erdős-Rényi-Kernel density up to a common factor: (n_in/groups + n_out + Σk) / numel."""
        return (self.fan_in + self.fan_out + sum(self.kernel)) / self.numel


Sparsity = float | Mapping[str, float]
"""A share removed of all weights; or shares by name: see ``allocate``."""


def allocate(
    layers: Sequence[LayerSize], sparsity: Sparsity, distribution: str = "erk"
) -> list[int]:
    """Kept weights per layer; they sum to ``budget(layers, sparsity)`` exactly.

    Args:
        layers: In the order in which the model registers them.
        sparsity: Share removed overall, in [0, 1). Or such shares by patterns of names (shell
            style): a layer belongs to the first pattern that it matches, the layers of a pattern
            share its budget, and every layer must have one.
        distribution: A key of ``DISTRIBUTION``; over the layers of a pattern.

    Example:
        >>> layers = [LayerSize("a", 10, 10), LayerSize("b", 10, 5)]
        >>> allocate(layers, 0.9, "uniform"), allocate(layers, {"b": 0.0, "*": 0.9}, "uniform")
        ([10, 5], [10, 50])
    """
    if distribution not in DISTRIBUTION:
        raise UnknownName("sparsity_distribution", distribution, list(DISTRIBUTION))
    if not isinstance(sparsity, Mapping):
        return DISTRIBUTION[distribution](layers, budget(layers, sparsity))
    counts: dict[int, int] = {}
    names = [layer.name for layer in layers]
    for pattern, places in places_by_pattern("sparsity", names, sparsity).items():
        group = [layers[place] for place in places]
        kept = DISTRIBUTION[distribution](group, budget(group, sparsity[pattern]))
        counts |= dict(zip(places, kept, strict=True))
    return [counts[place] for place in range(len(layers))]


def budget(layers: Sequence[LayerSize], sparsity: float) -> int:
    """round((1 - sparsity) · weights), checked: every layer must be able to keep one."""
    if not 0.0 <= sparsity < 1.0:
        raise InvalidValue(
            "sparsity", sparsity, "must lie in [0, 1)", "it is the share of weights removed"
        )
    weights = sum(layer.numel for layer in layers)
    total = round((1.0 - sparsity) * weights)
    if total < len(layers):
        raise InvalidValue(
            "sparsity",
            sparsity,
            f"keeps {total} of {weights} weights in {len(layers)} layers: one would be empty",
            f"use at most {floor(1e9 * (1.0 - len(layers) / weights)) / 1e9}",
        )
    return total


def erk(layers: Sequence[LayerSize], total: int) -> list[int]:
    """Density ∝ (n_in/groups + n_out + Σk) / numel, capped at 1 and redistributed."""
    return _share(layers, [layer.erk_density for layer in layers], total)


def uniform(layers: Sequence[LayerSize], total: int) -> list[int]:
    """The same density everywhere."""
    return _share(layers, [1.0] * len(layers), total)


def uniform_dense_first(layers: Sequence[LayerSize], total: int) -> list[int]:
    """The authors' rule: the first layer keeps all its weights, the others give way uniformly."""
    first, rest = layers[0], layers[1:]
    left = total - first.numel
    if left < len(rest):
        raise InvalidValue(
            "sparsity_distribution",
            "uniform_dense_first",
            f"layer {first.name} alone has {first.numel} of the {total} weights to keep",
            "lower the sparsity, or use 'uniform' or 'erk'",
        )
    return [first.numel, *(uniform(rest, left) if rest else [])]


DISTRIBUTION: dict[str, Callable[[Sequence[LayerSize], int], list[int]]] = {
    "erk": erk,
    "uniform": uniform,
    "uniform_dense_first": uniform_dense_first,
}


def _share(layers: Sequence[LayerSize], density: Sequence[float], total: int) -> list[int]:
    """Integers in [1, numel], near c·density·numel for one common c, that sum to ``total``."""
    sizes = [layer.numel for layer in layers]

    def clipped(scale: float) -> list[float]:
        return [min(max(scale * d * n, 1.0), float(n)) for d, n in zip(density, sizes, strict=True)]

    # The sum is continuous and rising in the scale, from len(layers) to all weights: bisection
    # finds it.
    low, high = 0.0, max(1.0 / d for d in density)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if sum(clipped(middle)) < total:
            low = middle
        else:
            high = middle
    exact = clipped(high)
    counts = [floor(t) for t in exact]
    by_remainder = sorted(range(len(layers)), key=lambda i: (counts[i] - exact[i], i))
    while sum(counts) < total:
        for i in by_remainder:
            if sum(counts) < total and counts[i] < sizes[i]:
                counts[i] += 1
    return counts
