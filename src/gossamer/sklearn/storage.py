"""A fitted estimator as one file that holds no pickle: its posterior, and what it was asked for.

The file is an archive of ``Posterior.save``: ``gossamer.load`` reads it too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.prediction import Posterior, load
from gossamer.sklearn.training import Module

KEY = "estimator"
"""Where ``about`` of a posterior holds what only the estimator knows."""

_PLAIN = (bool, int, float, str, type(None))


def to_bytes(posterior: Posterior) -> bytes:
    """The archive of a posterior."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "posterior.safetensors")
        posterior.save(path)
        return path.read_bytes()


def from_bytes(content: bytes, module: Module | None, sizes: tuple[int, int]) -> Posterior:
    """The posterior of an archive; ``sizes`` are what a function that makes a network gets."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "posterior.safetensors")
        path.write_bytes(content)
        return load(path, network=network_of(module, sizes))


def network_of(module: Module | None, sizes: tuple[int, int]) -> nn.Module | None:
    """The architecture that an archive cannot name; ``None`` where it can."""
    return module if module is None or isinstance(module, nn.Module) else module(*sizes)


def save_estimator(
    path: str | os.PathLike[str],
    posterior: Posterior,
    *,
    name: str,
    parameters: Mapping[str, Any],
    fitted: Mapping[str, Any],
) -> None:
    """Write it, whole or not at all.

    Args:
        path: The file.
        posterior: What predicts.
        name: Class of the estimator.
        parameters: Its arguments; ``module`` is left to whoever loads it.
        fitted: JSON values that it learned.
    """
    kept = {key: as_json(key, value) for key, value in parameters.items() if key != "module"}
    whole = posterior.reading()
    whole.about = {**posterior.about, KEY: {"class": name, "parameters": kept, **fitted}}
    whole.save(path)


def record_of(posterior: Posterior, name: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the estimator ``name`` kept in a file, or an error that says whose the file is."""
    record = posterior.about.get(KEY)
    if not isinstance(record, dict) or record.get("class") != name:
        whose = record.get("class") if isinstance(record, dict) else "no estimator"
        hint = f"load it as {whose}" if isinstance(record, dict) else "use gossamer.load"
        raise CheckpointError("file", str(path), f"is of {whose}, not of {name}", hint)
    return record


def as_json(name: str, value: Any) -> Any:
    """An argument as JSON values; a dictionary as pairs, because its keys may be numbers."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [as_json(name, each) for each in value]
    if isinstance(value, Mapping):
        return {"pairs": [[as_json(name, k), as_json(name, v)] for k, v in value.items()]}
    if isinstance(value, np.random.RandomState):
        return None  # what it decided is in the weights
    raise InvalidValue(name, type(value).__name__, "cannot be kept in a file", "use pickle")


def from_json(value: Any) -> Any:
    """What :func:`as_json` was given; lists become tuples."""
    if isinstance(value, dict):
        return {from_json(k): from_json(v) for k, v in value["pairs"]}
    return tuple(from_json(each) for each in value) if isinstance(value, list) else value


def labels_as_json(labels: NDArray[Any]) -> dict[str, Any]:
    """Labels of classes with their dtype."""
    return {"dtype": labels.dtype.str, "values": as_json("classes_", labels.tolist())}


def labels_from_json(data: Mapping[str, Any]) -> NDArray[Any]:
    """What :func:`labels_as_json` was given."""
    return np.array(data["values"], dtype=np.dtype(str(data["dtype"])))
