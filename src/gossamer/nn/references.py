"""References to the modules of a network, turned to other modules wherever they stand."""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue

ATOMS = frozenset(
    (str, int, float, bool, complex, bytes, type(None), type, Tensor, torch.dtype, torch.device)
)
"""Types whose values refer to nothing."""

_DEPTH = 4
"""So many plain objects, functions and methods are followed in search of a module."""


class References:
    """Turns references to some modules into references to others.

    Args:
        turned: By the id of a module, what stands for it.
    """

    def __init__(self, turned: Mapping[int, nn.Module]) -> None:
        self._turned = turned
        self._ways: dict[type, Callable[[Any, str, int], Any]] = {
            dict: self._mapping,
            OrderedDict: self._mapping,
            list: self._sequence,
            tuple: self._sequence,
            set: self._sequence,
            frozenset: self._sequence,
            types.MethodType: self._method,
            types.FunctionType: self._function,
            partial: self._partial,
            weakref.ref: self._weak,
        }

    def turn(self, value: Any, name: str, depth: int = _DEPTH) -> Any:
        """``value`` itself if it refers to none of the modules, else one that refers to the others.

        Args:
            value: An attribute of a module.
            name: What errors call it.
            depth: How much further to look.

        Raises:
            InvalidValue: It refers to a module in a way that cannot be turned.
        """
        if type(value) in ATOMS or isinstance(value, Tensor) or depth == 0:
            return value
        if isinstance(value, nn.Module):
            return self._module(value, name)
        return self._ways.get(type(value), self._object)(value, name, depth)

    def _module(self, module: nn.Module, name: str) -> nn.Module:
        if id(module) in self._turned:
            return self._turned[id(module)]
        if any(id(part) in self._turned for part in module.modules()):
            raise InvalidValue(
                name,
                type(module).__name__,
                "is not registered in the model, but holds modules that are",
                "register it as a submodule, or predict from the outermost module",
            )
        return module  # a stranger: neither seeded nor put into evaluation, as ever

    def _mapping(self, value: Any, name: str, depth: int) -> Any:
        if not value:
            return value
        parts = {k: self.turn(v, name, depth) for k, v in value.items()}
        return value if all_same(parts.values(), value.values()) else type(value)(parts)

    def _sequence(self, value: Any, name: str, depth: int) -> Any:
        parts = [self.turn(v, name, depth) for v in value]
        return value if all_same(parts, value) else type(value)(parts)

    def _method(self, value: types.MethodType, name: str, depth: int) -> Any:
        owner = self.turn(value.__self__, name, depth - 1)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)

    def _partial(self, value: Any, name: str, depth: int) -> Any:
        before = (value.func, value.args, value.keywords)
        function, args, keywords = (self.turn(part, name, depth - 1) for part in before)
        if all_same((function, args, keywords), before):
            return value
        return partial(function, *args, **keywords)

    def _weak(self, value: Any, name: str, depth: int) -> Any:
        found = self._turned.get(id(value()))
        return value if found is None else weakref.ref(found)

    def _function(self, value: types.FunctionType, name: str, depth: int) -> Any:
        cells = value.__closure__
        if not cells:
            return value
        held = [_content(cell) for cell in cells]
        turned = [self.turn(part, name, depth - 1) for part in held]
        if all_same(turned, held):
            return value
        fresh = tuple(
            cell if new is old else types.CellType(new)
            for cell, old, new in zip(cells, held, turned, strict=True)
        )
        copied = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, fresh
        )
        copied.__kwdefaults__ = value.__kwdefaults__
        copied.__dict__.update(value.__dict__)
        return copied

    def _object(self, value: Any, name: str, depth: int) -> Any:
        """A plain object that holds a module in one of its attributes."""
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or isinstance(value, types.ModuleType):
            return value
        turned = {k: self.turn(v, name, depth - 1) for k, v in attributes.items()}
        if all_same(turned.values(), attributes.values()):
            return value
        try:
            copied = object.__new__(type(value))
            copied.__dict__.update(turned)
        except (TypeError, AttributeError) as error:
            raise InvalidValue(
                name,
                type(value).__name__,
                "refers to a module of the model and cannot be made twice",
                "keep the module in an attribute of its own",
            ) from error
        return copied


def all_same(one: Any, two: Any) -> bool:
    """Whether two collections hold the very same objects in the same order."""
    return len(one) == len(two) and all(map(is_, one, two))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty: a function that was not defined yet
        return None
