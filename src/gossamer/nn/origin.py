"""What a torch module was before its conversion, beyond its geometry: for the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

_TORCH: dict[type[nn.Module], frozenset[str]] = {
    type(plain): frozenset(vars(plain))
    for plain in (
        nn.Linear(1, 1, device="meta"),
        nn.Conv1d(1, 1, 1, device="meta"),
        nn.Conv2d(1, 1, 1, device="meta"),
        nn.Conv3d(1, 1, 1, device="meta"),
        nn.ConvTranspose1d(1, 1, 1, device="meta"),
        nn.ConvTranspose2d(1, 1, 1, device="meta"),
        nn.ConvTranspose3d(1, 1, 1, device="meta"),
    )
}
"""By class of torch: what stands on every instance of it."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Class and attributes of a module that torch's own of its geometry has not.

    Attributes:
        kind: A subclass that keeps torch's forward.
        attributes: What stood on the instance besides.
    """

    kind: type[nn.Module]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> Origin | None:
        """What distinguishes a module from torch's own; ``None`` where nothing does.

        Args:
            module: Before its conversion; of a class of ``_TORCH`` or of a subclass.
        """
        torchs = next(kind for kind in type(module).__mro__ if kind in _TORCH)
        extra = {k: v for k, v in module.__dict__.items() if k not in _TORCH[torchs]}
        if type(module) is torchs and not extra:
            return None
        return cls(type(module), extra)

    def restore(self, plain: nn.Module) -> nn.Module:
        """``plain`` as a module of the old class, with the old attributes."""
        module: nn.Module = self.kind.__new__(self.kind)
        module.__dict__.update(plain.__dict__)
        module.__dict__.update(self.attributes)
        return module
