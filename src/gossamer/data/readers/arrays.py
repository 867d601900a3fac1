"""Arrays from ``.npz`` files: a user's own, the UCI literature's splits, and test-only files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.prepare.target import Task
from gossamer.data.prepare.values import as_numbers
from gossamer.data.split import refuse_split
from gossamer.errors import InvalidData, InvalidValue

Arrays = dict[str, NDArray[Any]]

_SPLITS_KEYS = ("X", "y", "train_idx", "test_idx")
_INPUT_KEYS = ("x_test", "x", "X")


def read_npz(path: Path) -> Arrays:
    """Reads all arrays of an ``.npz`` file; pickled objects are refused, so no code runs."""
    if not path.is_file():
        raise InvalidData("file", str(path), "does not exist", "check the path")
    try:
        # The file is opened here, because numpy leaves it open where the archive is damaged.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise InvalidData(
                    str(path), None, "holds one array, not named ones", "use numpy.savez"
                )
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except InvalidData:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidData(
            str(path), str(error), "is not a readable .npz file of plain arrays", "write it again"
        ) from error


def read_arrays(path: Path, *, task: Task | None = None, split: int = 0) -> RawData:
    """Reads an ``.npz`` file to train on.

    Args:
        path: A file with ``x_train, y_train, x_test, y_test`` and, if wanted, ``x_val, y_val``; or
            with ``X, y`` and the row numbers ``train_idx, test_idx`` [splits, points].
        task: The task, or ``None`` to infer it.
        split: Which of the file's splits.
    """
    arrays = read_npz(path)
    if all(key in arrays for key in _SPLITS_KEYS):
        return _with_splits(path, arrays, task, split)
    refuse_split(split, path.name)
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        hint = "only a set of its own kind can be trained on"
        if missing == ["x_train", "y_train"]:
            hint = "it holds a test part only: use it as out-of-distribution inputs"
        raise InvalidData(
            str(path),
            "arrays " + ", ".join(arrays),
            f"needs x_train, y_train, x_test, y_test; {', '.join(missing)} missing",
            hint,
        )
    has_validation = "x_val" in arrays or "y_val" in arrays
    parts = ["train", "val", "test"] if has_validation else ["train", "test"]
    for part in parts:
        _check_part(arrays, part)
    lengths = [len(arrays[f"y_{part}"]) for part in parts]
    stops = np.cumsum(lengths)
    rows = {
        part: np.arange(stop - length, stop, dtype=np.int64)
        for part, length, stop in zip(parts, lengths, stops, strict=True)
    }
    return RawData(
        str(path),
        _as_numbers(np.concatenate([arrays[f"x_{part}"] for part in parts])),
        np.concatenate([arrays[f"y_{part}"] for part in parts]),
        rows["train"],
        rows["test"],
        validation=rows.get("val"),
        task=task,
        normalise=True,
        y_parts=tuple((f"y_{part}", length) for part, length in zip(parts, lengths, strict=True)),
    )


def read_array_inputs(path: Path) -> NDArray[Any]:
    """Reads inputs without targets: ``x_test``, ``x`` or ``X`` of a file, or its only array."""
    arrays = read_npz(path)
    for key in _INPUT_KEYS:
        if key in arrays:
            return arrays[key]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise InvalidData(
        str(path),
        "arrays " + ", ".join(arrays),
        "must hold inputs as x_test, x or X",
        "name the array x",
    )


def _with_splits(path: Path, arrays: Arrays, task: Task | None, split: int) -> RawData:
    x, y = arrays["X"], arrays["y"]
    _check_x("X", x)
    _check_rows("y", y, "X", x)
    train_idx, test_idx = arrays["train_idx"], arrays["test_idx"]
    for name, rows in (("train_idx", train_idx), ("test_idx", test_idx)):
        if rows.ndim != 2 or rows.dtype.kind not in "iu" or len(rows) != len(train_idx):
            raise InvalidData(
                name,
                f"{rows.dtype} {rows.shape}",
                "must be whole numbers [splits, points], as many splits for training as for test",
            )
        if rows.size and not 0 <= rows.min() <= rows.max() < len(x):
            raise InvalidData(
                name, f"{rows.min()}..{rows.max()}", f"must hold row numbers in [0, {len(x)})"
            )
    if not 0 <= split < len(train_idx):
        raise InvalidValue("split", split, f"must lie in [0, {len(train_idx)}) for {path.name}")
    train, test = train_idx[split].astype(np.int64), test_idx[split].astype(np.int64)
    shared = np.intersect1d(train, test)
    if shared.size:
        raise InvalidData(
            f"train_idx and test_idx, split {split}",
            f"row {int(shared[0])}",
            "is in both: the test part would be trained on",
        )
    notes = (f"split {split} of {len(train_idx)}",)
    return RawData(
        str(path), _as_numbers(x), y, train, test, task=task, normalise=True, notes=notes
    )


def _check_part(arrays: Arrays, part: str) -> None:
    for key in (f"x_{part}", f"y_{part}"):
        if key not in arrays:
            raise InvalidData(key, None, "is missing though its partner is there", "add it")
    x, first = arrays[f"x_{part}"], arrays["x_train"]
    _check_x(f"x_{part}", x)
    _check_rows(f"y_{part}", arrays[f"y_{part}"], f"x_{part}", x)
    if x.shape[1:] != first.shape[1:]:
        raise InvalidData(
            f"x_{part}", f"shape {x.shape}", f"must match x_train beyond the rows: {first.shape}"
        )
    # Pixels of two dtypes mean two scales; a table of whole numbers may sit beside one of decimals.
    if x.ndim > 2 and x.dtype != first.dtype:
        raise InvalidData(
            f"x_{part}", f"dtype {x.dtype}", f"must match x_train: {first.dtype}", "convert it"
        )
    y, first_y = arrays[f"y_{part}"], arrays["y_train"]
    # Labels beside decimals would join to decimals, and turn a classification into a regression.
    if y.shape[1:] != first_y.shape[1:] or _sort(y) != _sort(first_y):
        raise InvalidData(
            f"y_{part}",
            f"{y.dtype} {y.shape}",
            f"must match y_train beyond the rows: {first_y.dtype} {first_y.shape}",
        )


def _as_numbers(x: NDArray[Any]) -> NDArray[Any]:
    """Bools in an array are 0 and 1; only in a table of named columns they are categories."""
    return x.astype(np.uint8) if x.dtype.kind == "b" else x


def _check_x(name: str, x: NDArray[Any]) -> None:
    if x.ndim < 2 or 0 in x.shape:
        raise InvalidData(
            name,
            f"shape {x.shape}",
            "must be [N, columns] or images, with at least one row",
            "reshape one column to [N, 1]",
        )
    if x.dtype.kind not in "iufbU" or (x.dtype.kind in "Ub" and x.ndim > 2):
        raise InvalidData(name, f"dtype {x.dtype}", "must hold numbers", "convert it")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row, *rest = [int(i) for i in np.argwhere(~np.isfinite(x))[0]]
        if x.ndim > 2:
            raise InvalidData(
                f"{name}, row {row}, pixel {rest}", str(x[row][tuple(rest)]), "must be finite"
            )
        as_numbers(f"{name}: x{rest[0]}", x[:, rest[0]])


def _sort(y: NDArray[Any]) -> str:
    return "integer" if y.dtype.kind in "iu" else y.dtype.kind


def _check_rows(y_name: str, y: NDArray[Any], x_name: str, x: NDArray[Any]) -> None:
    if y.ndim == 0 or len(y) != len(x):
        raise InvalidData(
            y_name, f"shape {y.shape}", f"must have as many rows as {x_name}: {len(x)}"
        )
