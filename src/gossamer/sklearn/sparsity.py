"""How sparse a network is that was not told: 0.95, or less where that would leave it too little."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Literal

from gossamer.errors import GossamerError, InvalidValue
from gossamer.prediction import Mixture, Posterior
from gossamer.selection import importances

Sparsity = float | Literal["auto"]

USUAL = 0.95
_PER_UNIT = 4


def widths(hidden: Sequence[int] | int) -> tuple[int, ...]:
    """Widths of the hidden layers, one for a number.

    Example:
        >>> widths(64), widths([32, 16])
        ((64,), (32, 16))
    """
    given = list(hidden) if isinstance(hidden, Iterable) else [hidden]
    if not all(_is_width(each) for each in given):
        rule = "must be widths of layers, whole numbers of at least 1"
        raise InvalidValue("hidden", hidden, rule, "write e.g. (256, 256)")
    return tuple(int(each) for each in given)


def _is_width(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def resolved(sparsity: Sparsity, hidden: tuple[int, ...], inputs: int, outputs: int) -> float:
    """The sparsity of a perceptron.

    Of 0.95 a network of 16 units on 3 columns would keep 4 weights, and answer alike whatever the
    columns say.

    Args:
        sparsity: A number is taken as it is. ``"auto"`` is 0.95, or less, so that 4 weights are
            kept for every hidden unit, or all that there are; 0 where there is no hidden unit.
        hidden: Widths of the hidden layers.
        inputs: Features that it reads.
        outputs: Length of its output.

    Example:
        >>> resolved("auto", (256, 256), 3, 1), resolved("auto", (16,), 3, 2)
        (0.95, 0.19999999999999996)
    """
    if sparsity != "auto":
        if isinstance(sparsity, str):
            rule = 'must be a number in [0, 1), or "auto"'
            raise InvalidValue("sparsity", sparsity, rule, "0.95 is usual, 0 is dense")
        return sparsity
    if not hidden:
        return 0.0
    sizes = (inputs, *hidden, outputs)
    weights = sum(a * b for a, b in pairwise(sizes))
    least = min(_PER_UNIT * sum(hidden), weights)
    return USUAL if round((1.0 - USUAL) * weights) >= least else 1.0 - least / weights


def remarks(posterior: Posterior, hidden: tuple[int, ...] | None) -> tuple[str, ...]:
    """What is to be said of networks that keep too few weights.

    Args:
        posterior: Trained.
        hidden: Widths of the hidden layers; ``None`` of a module of one's own.
    """
    members = posterior.members if isinstance(posterior, Mixture) else (posterior,)
    found = []
    kept = min(int(member.size["nnz"]) for member in members)
    if hidden is not None and kept < sum(hidden):
        found.append(
            f"the network keeps {kept} weights for {sum(hidden)} hidden units, which are too few "
            "to learn much; lower sparsity"
        )
    blind = sum(_is_blind(member) for member in members)
    if blind:
        who = "the network" if len(members) == 1 else f"{blind} of {len(members)} networks"
        found.append(
            f"no column has a way to the output of {who}: all rows have the same label or mean "
            "there; lower sparsity, or widen the layers"
        )
    return tuple(found)


def _is_blind(posterior: Posterior) -> bool:
    try:
        return not bool(importances(posterior).any())
    except GossamerError:  # no perceptron
        return False
