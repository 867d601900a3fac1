"""A network must answer for a row whatever its place in a batch: rows are cut and repeated.

A module that holds tensors for all rows, such as the masks of a batch, and reads them by place
would give the second block the masks of the first. Whether one does is found out by a pass, but
only where a network holds a tensor that could be such: one that is neither a parameter nor of a
layer of torch or Gossamer, with as many rows as the inputs, or more.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.ops import version_of
from gossamer.prediction.draws import Draws, NoiseDraws
from gossamer.prediction.inputs import InputRows, chosen_rows
from gossamer.prediction.outputs import Call

MOST_PLACES = 1024
"""Places of a held tensor that are looked at: the pass takes as many rows."""

_FEWEST_PLACES = 8
"""Rows of the pass if the tensor differs so early: more of them to compare, and still no cost."""

_DEPTH = 4
"""Containers, objects and functions inside one another that are looked into."""

_WIDTH = 64
"""Entries of a container that are looked at: one may be a vocabulary."""

_OWN = ("torch.", "gossamer.")
"""Whose layers hold no rows."""

_WITHOUT = frozenset(
    (str, int, float, bool, complex, bytes, type(None), type, torch.dtype, torch.device)
)
_CONTAINERS = frozenset((dict, OrderedDict, set, list, tuple))

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Of the largest output: the same row rounds differently at another place of a product."""


class RowWise:
    """Whether networks answer row by row, as far as it was found out.

    Threads may find out the same at once; nothing that they note depends on the other.
    """

    def __init__(self) -> None:
        self._fewest: int | None = None
        self._cleared: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def require(self, draws: Draws, rows: InputRows, call: Call) -> None:
        """Raise if a network reads tensors of its own by the place of a row.

        A pass is made once for every tensor that it may hold for the rows.

        Args:
            draws: The networks; one of them is looked at, at its means where it has any.
            rows: Inputs that are about to be cut, or were repeated.
            call: Runs a network.

        Raises:
            InvalidValue: It does; the message names the tensor.
        """
        held = [
            (name, tensor)
            for name, tensor in tensors_by_row(draws.network, len(rows))
            if not self._is_cleared(tensor)
        ]
        if held:
            with _network(draws) as network:
                _require_one_answer(network, held, rows, call)
            for _, tensor in held:
                self._cleared[id(tensor)] = (weakref.ref(tensor), version_of(tensor))

    def require_once(self, draws: Draws, rows: InputRows, call: Call) -> None:
        """The same for few rows, of which there may be many calls: only the first one looks."""
        if self._fewest is None or len(rows) < self._fewest:
            self.require(draws, rows, call)
            self._fewest = len(rows)

    def _is_cleared(self, tensor: Tensor) -> bool:
        found = self._cleared.get(id(tensor))
        return found is not None and found[0]() is tensor and found[1] == version_of(tensor)


def tensors_by_row(network: nn.Module, rows: int) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a network that may hold something for each of ``rows`` rows."""
    seen: set[int] = set()
    for name, tensor in _held(network, seen):
        if tensor.dim() and len(tensor) >= max(rows, 2) and not tensor.is_meta:
            yield name, tensor


def _network(draws: Draws) -> AbstractContextManager[nn.Module]:
    if isinstance(draws, NoiseDraws):
        return draws.borrow()
    return draws.sample(0, seed=0, noise="weight")


def _require_one_answer(
    network: nn.Module, held: list[tuple[str, Tensor]], rows: InputRows, call: Call
) -> None:
    """Compare the answers for equal rows at places where a held tensor differs."""
    tried: set[int] = set()
    for name, tensor in held:
        last = _place_unlike_the_first(tensor)
        if last is None or last in tried:
            continue
        tried.add(last)
        # Row 0 at both ends, and another in between: what one does not show the other may.
        index = torch.full((last + 1,), len(rows) // 2)
        index[0] = index[last] = 0
        chosen = chosen_rows(rows, index)
        found = _answers(network, chosen, call)
        if found is None or _is_one_answer(found):
            continue
        again = _answers(network, chosen, call)
        if again is None or not _alike(found, again):
            continue  # the network is random by itself: nothing can be told
        raise InvalidValue(
            "network",
            type(network).__name__,
            f"answers by the place of a row: it reads {name} {tuple(tensor.shape)} row by row, but "
            "rows are predicted in blocks",
            'give it with the rows: predict(model, {"x": x, "mask": mask})',
        )


def _place_unlike_the_first(tensor: Tensor) -> int | None:
    """The first of ``_FEWEST_PLACES`` or more where it differs from place 0, else an earlier."""
    looked = tensor.detach()[:MOST_PLACES]
    differs = (looked != looked[:1]).flatten(1).any(1) if looked.dim() > 1 else looked != looked[0]
    places = differs.nonzero().flatten().tolist()
    late = [place for place in places if place >= _FEWEST_PLACES - 1]
    return late[0] if late else places[-1] if places else None


def _answers(network: nn.Module, rows: InputRows, call: Call) -> Tensor | None:
    """Outputs; ``None`` where the network draws from torch's generator, or cannot run so."""
    before = torch.get_rng_state()
    try:
        found = call(network, rows)
    except (RuntimeError, IndexError):
        return None  # the prediction itself will say so
    if not torch.equal(torch.get_rng_state(), before):
        torch.set_rng_state(before)
        return None
    return found if found.dim() and len(found) == len(rows) else None


def _is_one_answer(found: Tensor) -> bool:
    inside = found[1:-1]
    same = _alike(found[:1], found[-1:])
    return same and (len(inside) < 2 or _alike(inside, inside[:1].expand_as(inside)))


def _alike(one: Tensor, two: Tensor) -> bool:
    first, second = one.double(), two.double()
    both = first.isfinite() & second.isfinite()
    alike = (first == second) | (first.isnan() & second.isnan())  # infinities rule classes out
    scale = float(torch.where(both, first.abs(), 0.0).amax()) if both.numel() else 0.0
    near = (first - second).abs() <= _TOLERANCE.get(one.dtype, 5e-2) * scale
    return bool((alike | (both & near)).all())


def _held(network: nn.Module, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in network.named_modules():
        kind = type(module)
        place = f"{prefix}." if prefix else ""
        foreign = not kind.__module__.startswith(_OWN)
        if foreign:
            yield from _inside(kind.forward, f"{place}forward", seen, _DEPTH)
        elif kind.__module__.startswith("gossamer."):
            continue
        for key, value in module.__dict__.items():
            # Most of what a module has are numbers and empty dictionaries of hooks.
            if type(value) in _WITHOUT or (type(value) in _CONTAINERS and not value):
                continue
            if key in ("_parameters", "_modules") or (key == "_buffers" and not foreign):
                continue
            if key == "_buffers":
                for name, each in value.items():
                    yield from _inside(each, f"{place}{name}", seen, _DEPTH)
            else:
                yield from _inside(value, f"{place}{key}", seen, _DEPTH)


def _inside(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors in a value: of containers, objects, and what a function closes over or reads."""
    if isinstance(value, Tensor):
        if not isinstance(value, nn.Parameter):
            yield name, value
        return
    if type(value) in _WITHOUT or isinstance(value, nn.Module) or depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    for key, each in islice(_parts(value), _WIDTH):
        if type(each) not in _WITHOUT:
            yield from _inside(each, name + key, seen, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        # Only names are shown: what else a key may be could take long to write.
        yield from ((f"[{key!r}]" if type(key) is str else "[...]", v) for key, v in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", each) for number, each in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from ((f".{key}", each) for key, each in _of_function(value).items())
    elif isinstance(value, MethodType):
        yield from (("", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, partial):
        yield from (("", value.func), (".args", value.args), (".keywords", value.keywords))
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from ((f".{key}", each) for key, each in vars(value).items())


def _of_function(function: FunctionType) -> dict[str, Any]:
    code = function.__code__
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet filled
            continue
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, Tensor):  # of all that a module has around it
            found[name] = value
    return found
