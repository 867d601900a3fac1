"""What a network is asked about: one tensor of rows, or several that are cut alike.

A plain tensor stays what it is. Everything else becomes ``Several``: its tensors of rows in a list,
and how a call is made from them, so that cutting and repeating never looks at names again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidData


class DataclassLike(Protocol):
    """Any instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Inputs = Tensor | Mapping[str, Any] | Sequence[Any] | DataclassLike
"""Inputs of B rows: a tensor ``[B, ...]``; a mapping or a dataclass of keyword arguments; a tuple
or a list of positional arguments."""


@dataclass(frozen=True, eq=False)
class Shared:
    """An input that all rows share, handed to the network as it is.

    Every other tensor has one row per example, and is cut and repeated with the others.

    Attributes:
        value: A tensor without rows, such as a causal mask ``[T, T]``, or any object.

    Example:
        >>> class Scaled(nn.Linear):
        ...     def forward(self, x, factor):
        ...         return super().forward(x * factor)
        >>> inputs = {"x": torch.randn(300, 4), "factor": Shared(torch.ones(4))}
        >>> gossamer.predict(Scaled(4, 3), inputs).probs.shape
        torch.Size([300, 3])
    """

    value: Any


_PLAIN = (type(None), int, float, complex, str, bytes, torch.dtype, torch.device, Enum, Shared)
"""What has no rows."""


@dataclass(frozen=True)
class _Row:
    """The place of a tensor of rows in the list of them."""

    number: int


class Several:
    """Several tensors of rows, and the call that they belong to.

    Args:
        tensors: Each ``[B, ...]``.
        positional: Positional arguments, in which a ``_Row`` stands for a tensor.
        keyword: Keyword arguments, likewise.
    """

    def __init__(
        self, tensors: Sequence[Tensor], positional: Sequence[Any], keyword: Mapping[str, Any]
    ) -> None:
        self.tensors = tuple(tensors)
        self._positional, self._keyword = positional, keyword

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def each(self, change: Callable[[Tensor], Tensor]) -> Several:
        """The same call over other tensors."""
        return self._over([change(tensor) for tensor in self.tensors])

    def split(self, size: int) -> tuple[Several, ...]:
        """Cut into parts of ``size`` rows, the last one of what is left."""
        parts = [torch.split(tensor, size) for tensor in self.tensors]
        return tuple(self._over(one) for one in zip(*parts, strict=True))

    def call(self, network: nn.Module) -> Any:
        """What the network gives for the rows; containers are new ones in every call."""
        positional = [self._filled(value) for value in self._positional]
        return network(*positional, **{n: self._filled(v) for n, v in self._keyword.items()})

    def _over(self, tensors: Sequence[Tensor]) -> Several:
        return Several(tensors, self._positional, self._keyword)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, _Row):
            return self.tensors[value.number]
        if isinstance(value, Shared):
            return value.value
        if isinstance(value, dict):
            return {key: self._filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return _like(value, [self._filled(each) for each in value])
        return value


InputRows = Tensor | Several
"""Inputs in the form that passes cut."""


def input_rows(x: Inputs) -> InputRows:
    """Inputs in the form that passes cut; a tensor as it is.

    Raises:
        InvalidData: There is no row, tensors have different rows, or something might have rows and
            cannot be cut.
    """
    if isinstance(x, Tensor):
        if x.dim() < 1 or x.shape[0] == 0:
            raise InvalidData("x", tuple(x.shape), "must have at least one row")
        return x
    found: dict[str, Tensor] = {}
    positional: Sequence[Any] = ()
    keyword: dict[str, Any] = {}
    if isinstance(x, Mapping):
        keyword = {_name(key): _marked(value, str(key), found) for key, value in x.items()}
    elif is_dataclass(x) and not isinstance(x, type):
        names = [field.name for field in fields(x)]
        keyword = {name: _marked(getattr(x, name), name, found) for name in names}
    elif isinstance(x, list | tuple):
        positional = [_marked(value, f"x[{n}]", found) for n, value in enumerate(x)]
    else:
        raise InvalidData(
            "x",
            type(x).__name__,
            "must be a tensor, or tensors in a mapping, a dataclass, a tuple or a list",
            "use torch.as_tensor",
        )
    _require_same_rows(found)
    return Several(list(found.values()), positional, keyword)


def split_rows(rows: InputRows, size: int) -> tuple[InputRows, ...]:
    """Cut into parts of ``size`` rows, the last one of what is left."""
    return torch.split(rows, size) if isinstance(rows, Tensor) else rows.split(size)


def rows_between(rows: InputRows, first: int, end: int) -> InputRows:
    """Rows ``first`` to ``end``, views."""
    return rows[first:end] if isinstance(rows, Tensor) else rows.each(lambda t: t[first:end])


def chosen_rows(rows: InputRows, index: Tensor) -> InputRows:
    """Rows of those numbers, copies."""
    if isinstance(rows, Tensor):
        return rows.index_select(0, index.to(rows.device))
    return rows.each(lambda t: t.index_select(0, index.to(t.device)))


def repeated_rows(rows: InputRows, times: int) -> InputRows:
    """All rows so many times, one after the other; of a single row a view."""
    return _repeated(rows, times) if isinstance(rows, Tensor) else rows.each(_repeater(times))


def tensors_of(rows: InputRows) -> tuple[Tensor, ...]:
    """The tensors of rows."""
    return (rows,) if isinstance(rows, Tensor) else rows.tensors


def values_per_row(rows: InputRows) -> int:
    """Numbers of all tensors that a row consists of."""
    return sum(tensor[0].numel() for tensor in tensors_of(rows))


def are_vectors(rows: InputRows) -> bool:
    """Whether rows are vectors of real numbers, not images or tokens."""
    return all(tensor.dim() <= 2 and tensor.is_floating_point() for tensor in tensors_of(rows))


def call_network(network: nn.Module, rows: InputRows) -> Any:
    """What a network gives for rows."""
    return network(rows) if isinstance(rows, Tensor) else rows.call(network)


def _repeated(tensor: Tensor, times: int) -> Tensor:
    return tensor.expand(times, *tensor.shape).flatten(0, 1)


def _repeater(times: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: _repeated(tensor, times)


def _marked(value: Any, name: str, found: dict[str, Tensor]) -> Any:
    """A value in which places stand for tensors of rows; those are put into ``found``."""
    if isinstance(value, Tensor):
        if value.dim() == 0:
            return value
        found[name] = value
        return _Row(len(found) - 1)
    if isinstance(value, _PLAIN):
        return value
    if type(value) is dict:
        return {key: _marked(each, f"{name}[{key!r}]", found) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [_marked(v, f"{name}[{n}]", found) for n, v in enumerate(value)])
    # It may hold tensors of rows, which nothing here could cut.
    raise InvalidData(
        f"input {name}",
        type(value).__name__,
        "is neither a tensor nor a plain value, so that its rows cannot be cut",
        "give tensors, or gossamer.prediction.Shared(value) for what all rows share",
    )


def _like(value: Any, items: list[Any]) -> Any:
    """A list or a tuple of the kind of ``value``; a named tuple takes its items one by one."""
    kind = type(value)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidData("x", key, "must have names of arguments as its keys")
    return key


def _require_same_rows(found: Mapping[str, Tensor]) -> None:
    if not found:
        raise InvalidData("x", None, "must hold at least one tensor with rows")
    first, rows = next((name, len(tensor)) for name, tensor in found.items())
    if rows == 0:
        raise InvalidData(f"input {first}", (0,), "must have at least one row")
    for name, tensor in found.items():
        if len(tensor) != rows:
            raise InvalidData(
                f"input {name}",
                tuple(tensor.shape),
                f"must have {rows} rows as {first} has",
                "give gossamer.prediction.Shared(tensor) if all rows share it",
            )
