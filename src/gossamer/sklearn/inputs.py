"""``X`` of a scikit-learn user: arrays, lists and frames, as raw rows and as network input."""

from __future__ import annotations

import datetime
import numbers
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

from gossamer.data import Preparation, columns_of
from gossamer.data.prepare import NumberColumn, TableInput
from gossamer.data.readers.frames import is_frame
from gossamer.errors import InvalidData
from gossamer.sklearn.rows import Raw

_CELLS = (str, bytes, numbers.Number, np.generic, datetime.date, type(None))
_NOTHING = ("NAType", "NaTType")


def read_inputs(estimator: BaseEstimator, x: Any, *, reset: bool, allow_nan: bool) -> Raw:
    """``X`` by scikit-learn's rules for shape, number and names of columns.

    Args:
        estimator: Who asks; its ``n_features_in_`` and ``feature_names_in_`` are set or checked.
        x: Array-like [N, D] of any values, or a frame of pandas, polars or arrow.
        reset: Whether it sets them.
        allow_nan: Whether a number may be missing.

    Returns:
        float64 [N, D] where all are plain numbers and columns have no names; else columns.
    """
    if is_frame(x):
        return _of_frame(estimator, x, reset=reset)
    texts = _texts_in(x)
    if texts is not None:
        validate_data(estimator, texts, reset=reset, skip_check_array=True)
        columns = columns_of(texts, "X")
        # Columns of an array go by their place, also where training had names for them.
        names = None if reset else getattr(estimator, "feature_names_in_", None)
        return columns if names is None else dict(zip(names, columns.values(), strict=True))
    finite = "allow-nan" if allow_nan else True
    found = validate_data(
        estimator, x, reset=reset, dtype=np.float64, ensure_all_finite=finite, order="C"
    )
    return np.asarray(found)


def network_input(preparation: Preparation, raw: Raw) -> Tensor:
    """Prepared rows, float32 [N, features].

    Plain numbers are standardised as a whole, to the bits that column after column would give.
    """
    inputs = preparation.inputs
    if isinstance(raw, np.ndarray) and isinstance(inputs, TableInput):
        numbers_only = all(
            isinstance(column, NumberColumn) and not column.indicator for column in inputs.columns
        )
        if numbers_only:
            columns = [column for column in inputs.columns if isinstance(column, NumberColumn)]
            mean = np.array([column.mean for column in columns])
            scale = np.array([column.scale for column in columns])
            with np.errstate(over="ignore"):
                scaled = ((raw - mean) / scale).astype(np.float32)
            if np.isfinite(scaled).all():
                return torch.from_numpy(scaled)
    return preparation.prepare(raw)


def _of_frame(estimator: BaseEstimator, x: Any, *, reset: bool) -> Raw:
    """Columns by the names of training; scikit-learn takes names that are no text for none."""
    given = list(getattr(x, "column_names", x.columns))
    twice = next((name for place, name in enumerate(given) if name in given[:place]), None)
    if twice is not None:
        raise InvalidData("columns of X", twice, "names two of them", "rename one")
    validate_data(estimator, x, reset=reset, skip_check_array=True)
    names = list(getattr(x, "column_names", x.columns))
    if all(isinstance(name, str) for name in names):
        columns = columns_of(x, "X")
        if hasattr(estimator, "feature_names_in_"):
            return columns
        return {f"x{i}": values for i, values in enumerate(columns.values())}
    return columns_of({f"x{i}": x.iloc[:, i] for i in range(len(names))}, "X")


def _texts_in(x: Any) -> NDArray[Any] | None:
    """An array of objects or texts that are not all numbers; ``None`` for any other ``X``."""
    if not isinstance(x, np.ndarray | list | tuple):
        return None
    array = x if isinstance(x, np.ndarray) else _as_objects(x)
    if array is None or array.dtype.kind not in "OU" or array.ndim != 2 or 0 in array.shape:
        return None
    try:
        array.astype(np.float64)
    except TypeError:  # a cell that is no text and no number: a date, nothing, or anything
        for cell in array.flat:
            if not isinstance(cell, _CELLS) and type(cell).__name__ not in _NOTHING:
                shown = type(cell).__name__
                raise TypeError(
                    f"a cell of X: argument must be a string, a date or a number, not {shown!r}"
                ) from None
        return array
    except ValueError:
        return array
    return None


def _as_objects(x: Any) -> NDArray[Any] | None:
    """Nested lists as an array of what they hold; numbers stay with scikit-learn."""
    try:
        array = np.asarray(x)
        return np.asarray(x, dtype=object) if array.dtype.kind in "OU" else None
    except ValueError:  # rows of several lengths, which scikit-learn refuses
        return None
