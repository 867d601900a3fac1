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
from gossamer.data.readers.parts import (
    Part,
    bools_as_numbers,
    check_array,
    check_rows,
    join_parts,
    optional_part,
)
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
    return join_parts(
        str(path),
        Part("x_train", "y_train", arrays["x_train"], arrays["y_train"]),
        validation=optional_part("x_val", "y_val", arrays.get("x_val"), arrays.get("y_val")),
        test=Part("x_test", "y_test", arrays["x_test"], arrays["y_test"]),
        task=task,
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
    check_array("X", x)
    check_rows("y", y, "X", len(x))
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
        str(path), bools_as_numbers(x), y, train, test, task=task, normalise=True, notes=notes
    )
