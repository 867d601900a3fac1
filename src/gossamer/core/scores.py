"""How good a position off the support looks: a score of its gradient. Highest enter.

A score is a row of ``SCORES``, a function of gradient and positions. It sees the gradient in blocks
and must judge each position by itself, so that blocks do not matter.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gossamer.errors import UnknownName

Score = Callable[[Tensor, range | Tensor], Tensor]
"""From a gradient ``[n]`` and its n flat positions (consecutive ones as a ``range``) to n scores.

Scores are 0 or more. The gradient belongs to the function, which may write into it.
"""


def size(gradient: Tensor, positions: range | Tensor) -> Tensor:
    """|gradient| ``[n]``: how fast the loss changes there (Sec. 3.3.2 of li2024ssvi, Eq. 9)."""
    return gradient.abs_()


SCORES: dict[str, Score] = {"abs": size}


def score_named(name: str) -> Score:
    """The score of that name, or a plain error."""
    if name not in SCORES:
        raise UnknownName("score", name, list(SCORES))
    return SCORES[name]
