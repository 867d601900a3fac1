"""Loading: a name of the table, a file or arrays in, a DataSet or raw inputs out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.build import RawData, build_dataset, chosen_task
from gossamer.data.dataset import DataSet, Rows
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.preparation import Preparation
from gossamer.data.prepare.raw_target import raw_target
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.target import Task, check_task
from gossamer.data.prepare.values import Values as Column
from gossamer.data.readers.arrays import read_array_inputs, read_arrays, read_npz
from gossamer.data.readers.parts import (
    Inputs,
    Part,
    Values,
    join_parts,
    optional_part,
    raw_inputs,
    raw_values,
)
from gossamer.data.readers.table_files import TABLES, TableFile, is_table, read_columns, read_table
from gossamer.data.registry import SOURCES, DataDir, names
from gossamer.data.split import TEST_FRACTION, refuse_split
from gossamer.errors import InvalidData, InvalidValue, UnknownName

_FILES = f".npz, {', '.join(TABLES[:-1])} or {TABLES[-1]}"


def load(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: DataDir = None,
    target: str | None = None,
    task: Task | None = None,
    validation_fraction: float = 0.1,
    seed: int = 0,
    limit_train: int | None = None,
    split: int = 0,
    rules: TableRules = DEFAULT_RULES,
    counts: bool = False,
    test: str | os.PathLike[str] | None = None,
    test_fraction: float = TEST_FRACTION,
) -> DataSet:
    """Loads a data set.

    Args:
        name_or_path: A name of :func:`names`, or a file: ``.npz``, or a table (``.csv``, ``.tsv``,
            either as ``.gz``, or ``.parquet``).
        data_dir: Folder (or several, joined by the system's path separator) where named sets lie;
            the environment variable ``GOSSAMER_DATA`` is searched after it.
        target: Target column of a table.
        task: ``"classification"`` or ``"regression"``; inferred for files if ``None``, see
            ``DataSet.notes``.
        validation_fraction: Share of validation among training and validation, in [0, 1); 0 leaves
            the part out.
        seed: Decides which rows validate, and which ones train under ``limit_train``; the test part
            never moves.
        limit_train: At most this many training examples.
        split: Which of the standard splits of a UCI set, or which draw of a simulated one.
        rules: Of a table: what is done to cells that are missing, new or ambiguous.
        counts: For regression: targets are counts, whole numbers from 0, and are not scaled.
        test: Of a table: another, whose rows are the test part.
        test_fraction: Of a table without one: the share of its rows that tests, in [0, 1). Which
            rows never depends on the seed; of classes each gives its share. 0: no test part.
    """
    check_task(task)
    text = os.fspath(name_or_path)
    own = _OwnTest(test, test_fraction)
    if test is not None or test_fraction != TEST_FRACTION:
        own.check(text)
    if text in SOURCES:
        raw = _read_named(text, data_dir, target, task, split)
    else:
        raw = _read_file(text, target, task, split, rules, own)
    return build_dataset(
        raw,
        rules=rules,
        task=task,
        validation_fraction=validation_fraction,
        seed=seed,
        limit_train=limit_train,
        counts=counts,
    )


class Outline(NamedTuple):
    """What a set is like before it is prepared.

    Attributes:
        task: As ``load`` would have it: told, known by its name, or inferred from its file.
        table_rows: Training rows of a table, from which validation may be cut; ``None`` of images,
            and of named sets of classes, which are not read for this.
    """

    task: Task
    table_rows: int | None


def outline_of(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: DataDir = None,
    target: str | None = None,
    task: Task | None = None,
    split: int = 0,
    rules: TableRules = DEFAULT_RULES,
    test: str | os.PathLike[str] | None = None,
    test_fraction: float = TEST_FRACTION,
) -> Outline:
    """What a set is like: a file, or a named set of numbers, is read for it.

    Args are those of ``load``.

    Example:
        >>> outline_of("diabetes")
        Outline(task='regression', table_rows=354)
    """
    check_task(task)
    text = os.fspath(name_or_path)
    own = _OwnTest(test, test_fraction)
    if test is not None or test_fraction != TEST_FRACTION:
        own.check(text)
    if text in SOURCES:
        known = task or SOURCES[text].about.task
        if known == "classification":
            return Outline(known, None)
        raw = _read_named(text, data_dir, target, task, split)
    else:
        raw = _read_file(text, target, task, split, rules, own)
    is_image = isinstance(raw.x, np.ndarray) and raw.x.ndim > 2
    return Outline(chosen_task(raw, task)[0], None if is_image else len(raw.train))


def from_arrays(
    x: Inputs,
    y: Values,
    *,
    task: Task | None = None,
    validation_fraction: float = 0.1,
    x_val: Inputs | None = None,
    y_val: Values | None = None,
    x_test: Inputs | None = None,
    y_test: Values | None = None,
    weight: Values | None = None,
    seed: int = 0,
    name: str = "arrays",
    target: str = "y",
    rules: TableRules = DEFAULT_RULES,
    counts: bool = False,
) -> DataSet:
    """Makes a data set of values in memory, prepared as those of a file are.

    Scales and levels come from the training rows alone, whatever their weights.

    Args:
        x: Raw inputs to train on: an array [N, D], images, or columns by name (a mapping or a data
            frame of pandas, polars or arrow), of which texts become categories or dates.
        y: Raw targets: labels [N], or numbers [N] or [N, D].
        task: ``"classification"`` or ``"regression"``; inferred if ``None``, see ``DataSet.notes``.
        validation_fraction: Share of the rows that validates, in [0, 1); 0 leaves the part out. Not
            used beside ``x_val``.
        x_val: Raw inputs of a validation part of your own; then all of ``x`` is trained on.
        y_val: Its targets.
        x_test: Raw inputs of a test part; there is none without it.
        y_test: Its targets.
        weight: How much each row of ``x`` counts, [N], finite, no less than 0 and somewhere above
            it; it goes with the rows into the training part and into a validation part cut from it.
        seed: Decides which rows validate, and the order of the others.
        name: What messages call the set.
        target: What messages and answers call the target.
        rules: Of a table: what is done to cells that are missing, new or ambiguous.
        counts: For regression: targets are counts, whole numbers from 0, and are not scaled.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(100, 3))
        >>> data = from_arrays(x, x.sum(1), validation_fraction=0.2)
        >>> len(data.x_train), len(data.x_val), data.test is None
        (80, 20, True)
    """
    check_task(task)
    raw = join_parts(
        name,
        Part("x", "y", raw_inputs("x", x), raw_values(y)),
        validation=optional_part("x_val", "y_val", x_val, y_val),
        test=optional_part("x_test", "y_test", x_test, y_test),
        weight=weight,
        task=task,
        target=target,
    )
    return build_dataset(
        raw, validation_fraction=validation_fraction, seed=seed, rules=rules, counts=counts
    )


def load_inputs(path: str | os.PathLike[str]) -> dict[str, Column] | NDArray[Any]:
    """Reads raw inputs to predict on, as ``Preparation.prepare`` takes them.

    Args:
        path: A table (columns by name), or an ``.npz`` file with ``x_test``, ``x`` or ``X``.
    """
    file = _supported(os.fspath(path))
    return read_columns(file) if is_table(file) else read_array_inputs(file)


def input_batches(
    path: str | os.PathLike[str], rows: int, findings: Findings | None = None
) -> Iterator[dict[str, Column] | NDArray[Any]]:
    """Reads raw inputs to predict on in batches: a table never lies in memory as a whole.

    Args:
        path: As for :func:`load_inputs`; an ``.npz`` file is one batch.
        rows: Rows of a batch; the last may have fewer.
        findings: Is told what was inferred of the file: its encoding, a column that is left out.
    """
    file = _supported(os.fspath(path))
    if not is_table(file):
        yield read_array_inputs(file)
        return
    table, told = TableFile(file), findings or Findings()
    for batch in table.batches(rows):
        for note in table.notes:
            told.say(note)
        yield batch


def load_labelled(
    path: str | os.PathLike[str], preparation: Preparation, rules: TableRules = DEFAULT_RULES
) -> tuple[Rows, tuple[str, ...]]:
    """Reads rows with their targets to measure on, prepared as a run's own are.

    Args:
        path: A table that has the target's column, or an ``.npz`` file with ``x_test, y_test``.
        preparation: The run's preparation.
        rules: What was told of ambiguous cells.

    Returns:
        The rows, and what there is to say of them: a level that training never saw, rows without
        a target.

    Raises:
        InvalidData: The target is not there, or a cell or label does not fit training.
    """
    file, findings, name = _supported(os.fspath(path)), Findings(), preparation.target_name
    if not is_table(file):
        arrays = read_npz(file)
        if not {"x_test", "y_test"} <= set(arrays):
            shown = "arrays " + ", ".join(arrays)
            raise InvalidData(str(file), shown, "must hold x_test and y_test")
        x, y = arrays["x_test"], arrays["y_test"]
        return Rows(preparation.prepare(x, findings), preparation.prepare_target(y)), ()
    columns = read_columns(file)
    if name not in columns:
        rule = f"must hold the target {name!r}"
        raise InvalidData(f"columns of {file.name}", ", ".join(columns), rule, "use predict")
    y, rows, notes = raw_target(name, columns.pop(name), rules)
    inputs = {key: values[rows] for key, values in columns.items()}
    prepared = preparation.prepare(inputs, findings)
    return Rows(prepared, preparation.prepare_target(y[rows])), (*notes, *findings.sentences())


def load_ood(
    name_or_path: str | os.PathLike[str],
    data_dir: DataDir,
    preparation: Preparation,
    *,
    limit: int = 5_000,
) -> Tensor:
    """Loads out-of-distribution inputs, prepared as a run's own inputs are.

    Args:
        name_or_path: A name of :func:`names` (its test part is taken), or a file as for
            :func:`load_inputs`.
        data_dir: As for :func:`load`.
        preparation: The run's preparation.
        limit: At most this many rows, evenly spaced: detection scores need no more.

    Returns:
        float32 [N, ``*preparation.input_shape``].

    Raises:
        InvalidData: Where the inputs have another size than the run's.
    """
    text = os.fspath(name_or_path)
    # Remarks go nowhere: foreign inputs are meant to be strange.
    if text in SOURCES:
        inputs = preparation.prepare(SOURCES[text].read_test(data_dir), Findings())
    elif not _is_supported(Path(text)):
        raise UnknownName("data set", text, names())
    else:
        inputs = preparation.prepare(load_inputs(text), Findings())
    if len(inputs) <= limit:
        return inputs
    return inputs[torch.linspace(0, len(inputs) - 1, limit).long()]


def _read_named(
    name: str, data_dir: DataDir, target: str | None, task: Task | None, split: int
) -> RawData:
    source = SOURCES[name]
    if target is not None:
        raise InvalidValue("target", target, f"is for tables; {name} has its own", "leave it out")
    if task not in (None, source.about.task):
        raise InvalidValue(
            "task", task, f"{name} is for {source.about.task}", "leave it out, or give its file"
        )
    return source.read(data_dir, split)


class _OwnTest(NamedTuple):
    """What was told of a table's test part."""

    file: str | os.PathLike[str] | None = None
    fraction: float = TEST_FRACTION

    def check(self, text: str) -> None:
        """Raise where it cannot be: the set brings its own part, or both are told."""
        name, value = ("test", os.fspath(self.file)) if self.file else ("test_fraction", None)
        shown = self.fraction if value is None else value
        if not 0.0 <= self.fraction < 1.0:
            rule = "must lie in [0, 1)"
            raise InvalidValue("test_fraction", self.fraction, rule, "0.2 is usual, 0 is for none")
        if text in SOURCES or not is_table(Path(text)):
            raise InvalidValue(name, shown, f"is for tables; {text} has its own test part")
        if self.file is not None and self.fraction != TEST_FRACTION:
            rule = "cannot be told beside a test file"
            raise InvalidValue("test_fraction", self.fraction, rule, "leave one of them out")
        if self.file is not None and not is_table(Path(os.fspath(self.file))):
            raise InvalidValue(name, shown, f"must be a table: {', '.join(TABLES)}")


def _read_file(
    text: str,
    target: str | None,
    task: Task | None,
    split: int,
    rules: TableRules,
    test: _OwnTest = _OwnTest(),  # noqa: B008 - an immutable value
) -> RawData:
    path = Path(text).expanduser()
    if not _is_supported(path):
        if path.exists():
            raise InvalidData("file", text, f"must be {_FILES}", "or give a name")
        raise UnknownName("data set", text, names())
    if is_table(path):
        refuse_split(split, path.name)
        own = None if test.file is None else Path(os.fspath(test.file)).expanduser()
        return read_table(
            path, target=target, task=task, rules=rules, test=own, test_fraction=test.fraction
        )
    if target is not None:
        raise InvalidValue("target", target, "is for tables; .npz has y_train", "leave it out")
    return read_arrays(path, task=task, split=split)


def _supported(text: str) -> Path:
    path = Path(text).expanduser()
    if not _is_supported(path):
        raise InvalidData("file", text, f"must be {_FILES}", "check the path")
    return path


def _is_supported(path: Path) -> bool:
    return is_table(path) or path.suffix.lower() == ".npz"
