"""What a torch module was before its conversion, beyond its geometry: for the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


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
    def of(cls, module: nn.Module, plain: nn.Module) -> Origin | None:
        """What distinguishes a module; ``None`` where nothing does.

        Args:
            module: Before its conversion.
            plain: Torch's own module of its geometry.
        """
        extra = {k: v for k, v in module.__dict__.items() if k not in plain.__dict__}
        if type(module) is type(plain) and not extra:
            return None
        return cls(type(module), extra)

    def restore(self, plain: nn.Module) -> nn.Module:
        """``plain`` as a module of the old class, with the old attributes."""
        module: nn.Module = self.kind.__new__(self.kind)
        module.__dict__.update(plain.__dict__)
        module.__dict__.update(self.attributes)
        return module
