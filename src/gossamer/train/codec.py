"""Nested state ↔ (named tensors, JSON tree), without pickle and without loss.

A state is any nesting of dicts (keys: str or int), lists, tuples, tensors, numbers, strings, bools
and ``None``. The tree is strict JSON; whatever JSON cannot say is an object with one reserved key::

    tensor                     {"$tensor": "4"}          the tensor's name in the safetensors file
    complex tensor             {"$complex": "4"}         stored as pairs of reals
    tuple                      {"$tuple": [...]}
    nan, inf, -inf             {"$float": "nan"}
    dict with other keys       {"$dict": [[key, value], ...]}   an int, or a str starting with "$"

One tensor object met twice is stored once and comes back as one object; two views of one storage
are stored as two tensors. Tensors come back on the CPU, contiguous and without gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InvalidValue

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(state: object) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors and a JSON tree.

    Args:
        state: The nested state.

    Returns:
        The tensors by name (contiguous, on the CPU, no shared memory) and the tree.

    Raises:
        InvalidValue: An object of another type, named by its place in the state.
    """
    encoder = _Encoder()
    tree = encoder.encode(state, "state")
    return encoder.tensors, tree


def decode(tensors: Mapping[str, Tensor], tree: object) -> Any:
    """Join what :func:`encode` split; the inverse, types and order of keys included.

    Args:
        tensors: The tensors by name. Each is copied: the result owns its memory.
        tree: The JSON tree.

    Raises:
        InvalidValue: The tree is not of this form, or it names a tensor that is not there.
    """
    return _Decoder(tensors).decode(tree)


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, dict[str, str]] = {}
        self._storages: set[int] = set()
        self._alive: list[Tensor] = []

    def encode(self, value: object, where: str) -> Any:
        # numpy's float64 is a float by inheritance, so float is asked by isinstance. The others are
        # compared exactly: a bool is an int, and a named tuple would come back as a plain one.
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": str(float(value))}
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if type(value) is list:
            return [self.encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if type(value) is tuple:
            return {"$tuple": [self.encode(v, f"{where}[{i}]") for i, v in enumerate(value)]}
        if isinstance(value, dict):
            return self._dict(value, where)
        raise InvalidValue(
            where,
            type(value).__name__,
            "a checkpoint holds dict, list, tuple, Tensor, number, str, bool and None only",
            "convert it in state_dict()",
        )

    def _dict(self, value: dict[Any, Any], where: str) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise InvalidValue(
                    f"key of {where}", key, "must be a str or an int", "convert it in state_dict()"
                )
        encoded = [(key, self.encode(v, f"{where}[{key!r}]")) for key, v in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(encoded)
        return {"$dict": [[key, v] for key, v in encoded]}

    def _tensor(self, value: Tensor, where: str) -> dict[str, str]:
        known = self._names.get(id(value))
        if known is not None:
            return known
        if value.layout is not torch.strided or value.is_quantized:
            raise InvalidValue(
                where, str(value.layout), "must be a plain strided tensor", "store its parts"
            )
        stored = value.detach().cpu().resolve_conj().resolve_neg()
        kind = "$tensor"
        if stored.is_complex():  # safetensors knows complex64 only
            kind, stored = "$complex", torch.view_as_real(stored)
        stored = stored.contiguous()
        if (
            stored.untyped_storage().data_ptr() in self._storages
        ):  # safetensors refuses shared memory
            stored = stored.clone()
        self._storages.add(stored.untyped_storage().data_ptr())
        self._alive.append(value)  # an id is only unique while its object lives
        name = str(len(self.tensors))
        self.tensors[name] = stored
        reference = {kind: name}
        self._names[id(value)] = reference
        return reference


class _Decoder:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._decoded: dict[str, Tensor] = {}

    def decode(self, tree: object) -> Any:
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        if isinstance(tree, list):
            return [self.decode(v) for v in tree]
        if isinstance(tree, dict):
            if len(tree) == 1:
                [(key, value)] = tree.items()
                if key.startswith("$"):
                    return self._tagged(key, value)
            return {key: self.decode(v) for key, v in tree.items()}
        raise InvalidValue("state tree", tree, "holds something that JSON does not have")

    def _tagged(self, tag: str, value: Any) -> Any:
        if tag in ("$tensor", "$complex") and isinstance(value, str) and value in self._tensors:
            if value not in self._decoded:
                stored = self._tensors[value].clone()  # out of the memory-mapped file
                self._decoded[value] = (
                    torch.view_as_complex(stored) if tag == "$complex" else stored
                )
            return self._decoded[value]
        if tag == "$tuple" and isinstance(value, list):
            return tuple(self.decode(v) for v in value)
        if tag == "$float" and value in _FLOATS:
            return _FLOATS[value]
        if tag == "$dict" and isinstance(value, list):
            return {key: self.decode(v) for key, v in value}
        raise InvalidValue("state tree", {tag: value}, "is not of the checkpoint's form")
