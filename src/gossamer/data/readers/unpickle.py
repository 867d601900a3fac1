"""Reads the pickled batches of CIFAR's python archives without running anything they ask for.

A pickle is a program: it may name any importable function and call it. Here every name but three is
refused, and those three are answered by the small stand-ins below, never by numpy itself: an array
of bytes is all they build.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InvalidData

_BYTE_CODES = ("u1", b"u1", "|u1", b"|u1")


class _ByteType:
    """Stands in for ``numpy.dtype``: unsigned bytes or nothing."""

    def __init__(self, code: object, *_: object) -> None:
        if code not in _BYTE_CODES:
            raise pickle.UnpicklingError(f"an array of type {code!r}, not of unsigned bytes")

    def __setstate__(self, state: object) -> None:
        """Bytes have no byte order, so the state says nothing."""


class _ByteArray:
    """Stands in for ``numpy.ndarray``: takes a shape and the bytes."""

    array: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _ByteType) or not isinstance(content, bytes) or is_fortran:
            raise pickle.UnpicklingError("an array that is not one of plain bytes")
        if any(type(size) is not int or size < 0 for size in shape):
            raise pickle.UnpicklingError("an array with an impossible shape")
        if math.prod(shape) != len(content):
            raise pickle.UnpicklingError("an array whose shape and size differ")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _reconstruct(kind: object, *_: object) -> _ByteArray:
    """Stands in for numpy's function of that name: an array still to be filled."""
    if kind is not _ByteArray:
        raise pickle.UnpicklingError("an array of an unknown class")
    return _ByteArray()


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ByteArray,
    ("numpy", "dtype"): _ByteType,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_batch(content: bytes, where: str) -> dict[str, Any]:
    """Reads one pickled dictionary of byte arrays, numbers, text and lists of these.

    Args:
        content: The pickle.
        where: What messages call it.

    Returns:
        The dictionary with keys as text and arrays as uint8.

    Raises:
        InvalidData: For anything else in it; nothing was run.
    """
    try:
        # Written by Python 2, whose text is bytes here.
        batch = _Restricted(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"it holds a {type(batch).__name__}, not a dictionary")
        return {_text(key): _plain(value) for key, value in batch.items()}
    # A hostile or damaged pickle can fail in any of these ways inside the standard library.
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InvalidData(
            where,
            str(error) or type(error).__name__,
            "is damaged, or not a plain batch of CIFAR; nothing in it was run",
            "get the file again",
        ) from error


def _text(value: object) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, _ByteArray):
        return value.array
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, bytes) else value
