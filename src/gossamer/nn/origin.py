"""What a torch module was before its conversion, beyond its geometry: for the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


def blank_table(rows: int, columns: int, padding_idx: int | None = None) -> nn.Embedding:
    """An uninitialised table on the ``meta`` device.

    Its constructor would draw random numbers there, for which torch imports its compiler.
    """
    blank = torch.empty(rows, columns, device="meta")
    found: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        blank, freeze=False, padding_idx=padding_idx
    )
    return found


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
        blank_table(1, 1),
    )
}
"""By class of torch: what stands on every instance of it."""


_EVERY = frozenset(vars(nn.Module()))
"""What stands on every module."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Class and attributes of a module that torch's own of its geometry has not.

    Attributes:
        kind: A subclass that keeps torch's forward, or a registered class.
        attributes: What stood on the instance besides.
        transposed: Whether it had the axes of its weight the other way round.
    """

    kind: type[nn.Module]
    attributes: Mapping[str, Any]
    transposed: bool = False

    @classmethod
    def of(cls, module: nn.Module, *, transposed: bool = False) -> Origin | None:
        """What distinguishes a module from torch's own; ``None`` where nothing does.

        Args:
            module: Before its conversion.
            transposed: Whether the sparse layer has the axes of its weight the other way round.
        """
        known = _TORCH.get(_torch_class(type(module)), _EVERY | {"weight", "bias"})
        extra = {k: v for k, v in module.__dict__.items() if k not in known}
        if type(module) in _TORCH and not extra:
            return None
        return cls(type(module), extra, transposed)

    def restore(self, plain: nn.Module) -> nn.Module:
        """``plain`` as a module of the old class, with the old attributes."""
        module: nn.Module = self.kind.__new__(self.kind)
        like = nn.Module() if _torch_class(self.kind) is nn.Module else plain
        module.__dict__.update(like.__dict__)
        module.__dict__.update(self.attributes)
        return module

    def lend(self, layer: nn.Module) -> None:
        """Give a sparse layer the attributes that other code may read, such as ``nf``."""
        for name, value in self.attributes.items():
            if not hasattr(layer, name):
                layer.__dict__[name] = value


def _torch_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The torch class that a class derives from; ``nn.Module`` if it is none of the table."""
    return next((base for base in kind.__mro__ if base in _TORCH), nn.Module)
