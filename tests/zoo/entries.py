"""What the zoo holds: a network that somebody else wrote, small, and inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A network of the zoo.

    Attributes:
        package: Whose it is.
        name: For the table.
        build: The network with fresh weights, and inputs for it; called under a fixed seed.
        output: Where the tensor lies in what the network gives; ``None`` where it gives one.
        class_dim: The axis of that tensor that holds classes.
        is_row_wise: Whether a row's output depends on that row alone; where not (graphs), draws
            come from ``gossamer.sampling`` instead of ``predict``.
    """

    package: str
    name: str
    build: Callable[[], tuple[nn.Module, Inputs]]
    output: str | None = None
    class_dim: int = 1
    is_row_wise: bool = True

    @property
    def key(self) -> str:
        """Its name among tests."""
        return f"{self.package}: {self.name}"

    def call(self, network: nn.Module, inputs: Inputs) -> Tensor:
        """The tensor that the network gives."""
        found: Any = network(**inputs) if isinstance(inputs, dict) else network(inputs)
        if self.output is not None:
            found = getattr(found, self.output)
        assert isinstance(found, Tensor)
        return found
