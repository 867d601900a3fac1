"""Who trains together: one process is a group of one.

A step shows the group its gradients before the optimiser sees them, and a swap shows it every block
of addition scores before they are ranked, so that many ranks take the step and the swap of one
process with the joined batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """The processes that train one model."""

    @property
    def rank(self) -> int:
        """Which of them this one is."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def mean_(self, gradients: Sequence[Tensor]) -> None:
        """Average gradients over the group, in place."""
        ...

    def sum_(self, block: Tensor) -> Tensor:
        """The sum of a block of scores over the group, in place; returned for convenience."""
        ...


class Alone:
    """A group of one: there is nobody to ask."""

    rank = 0
    size = 1

    def mean_(self, gradients: Sequence[Tensor]) -> None:
        """Nothing to average."""

    def sum_(self, block: Tensor) -> Tensor:
        """The block as it is."""
        return block


ALONE = Alone()
