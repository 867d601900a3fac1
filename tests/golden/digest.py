"""Nested values as flat paths, and each value as a short text that has all its bits in a hash."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

STEP = "step "
"""How the labels of steps begin: what they record is the whole state, of which most stays."""

HEX_DIGITS = 24
"""Of the sha256 that are kept: 96 bits."""


def digest(value: object) -> str:
    """Type, shape, hash of the bytes, sum and largest absolute value; of a number the number."""
    if isinstance(value, Tensor):
        return _of_tensor(value.detach())
    if isinstance(value, float):
        return f"float {value.hex()} = {value!r}"
    return f"{type(value).__name__} {value!r}"


def _of_tensor(tensor: Tensor) -> str:
    tensor = tensor.cpu().contiguous()
    data = tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    kind = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
    text = f"{kind} sha256={hashlib.sha256(data).hexdigest()[:HEX_DIGITS]}"
    if tensor.numel() == 0:
        return text
    if text not in _summaries:  # most tensors are met again and again: summed up once
        wide = tensor.double()
        _summaries[text] = f"sum={float(wide.sum())!r} max={float(wide.abs().max())!r}"
    return f"{text} {_summaries[text]}"


_summaries: dict[str, str] = {}


def form(text: str) -> str:
    """Type and shape in the digest of a tensor."""
    return text.split(maxsplit=1)[0]


def flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf with its path, parts joined by ``/``; an empty container is a leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(str(number), part) for number, part in enumerate(value)]
    else:
        yield path, value
        return
    if not parts:
        yield path, "empty"
    for key, part in parts:
        yield from flatten(part, f"{path}/{key}" if path else key)


def flat_digests(value: object) -> dict[str, str]:
    """The digest of every leaf, by path."""
    return {path: digest(leaf) for path, leaf in flatten(value)}
