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
        read: Of a linear layer with a full support: int64, the inputs whose weights are not all 0
            for now (``reading``); ``None`` where nobody has looked.
    """

    indices: Tensor | None
    derived: tuple[Tensor, ...] = ()
    read: Tensor | None = None

    @property
    def bare(self) -> Pattern:
        """Without what another backend derived."""
        return Pattern(self.indices, read=self.read)
