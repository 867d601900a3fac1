"""A support as a backend reads it: the kept positions and what the backend derived from them.

The derived tensors are rebuilt in O(nnz) whenever the support changes, never saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """The kept positions of one weight.

    Attributes:
        indices: Sorted flat positions; ``None`` for a full support.
        derived: What the layer's backend prepared; empty where it prepared nothing.
    """

    indices: Tensor | None
    derived: tuple[Tensor, ...] = ()

    @property
    def bare(self) -> Pattern:
        """Without what another backend derived."""
        return Pattern(self.indices)
