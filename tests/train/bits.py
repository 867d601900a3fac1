"""Equality of nested states, bit for bit."""

from __future__ import annotations

import torch


def same(a: object, b: object) -> bool:
    """Equal in type, order of keys and every bit; NaN equals NaN and -0.0 differs from 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        return (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b))
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple))
        return len(a) == len(b) and all(same(v, w) for v, w in zip(a, b, strict=True))
    return a.hex() == b.hex() if isinstance(a, float) else a == b  # type: ignore[attr-defined]


def bits(tensor: torch.Tensor) -> list[int]:
    return list(tensor.contiguous().view(-1).view(torch.uint8).tolist())
