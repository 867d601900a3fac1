"""Reads a run folder into plain values; knows the files and nothing of how they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.errors import CheckpointError, InvalidValue

_RECORD = "record.jsonl"
_PREPARATION = "preparation.json"
_SELECTION = "selection.json"
_FILES = ("config.json", "environment.json", "metrics.json", "curves.json")


@dataclass(frozen=True)
class RunResult:
    """What a run folder says.

    Attributes:
        name: The folder's name; :func:`read_runs` makes names of several runs distinct.
        path: The folder.
        config: ``config.json``, or empty.
        environment: ``environment.json``, or empty.
        metrics: ``metrics.json`` made flat (``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``), or empty.
        epochs: The ``epoch`` records, one an epoch, in order.
        swaps: The ``swap`` records, one a step, in order.
        curves: ``curves.json``, or empty.
        notes: What was missing or skipped, in words.
        data_notes: What was inferred of the data and done to columns, as ``preparation.json`` says.
        selection: Of a wide table what its screening found, ``selection.json``; or empty.
        columns: Name of each column of a table and what is done to its cells; of saved models.
        is_saved: Whether it is one saved file, which lacks most of what a folder has.
    """

    name: str
    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    swaps: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    data_notes: tuple[str, ...] = ()
    selection: dict[str, Any] = field(default_factory=dict)
    columns: tuple[tuple[str, str], ...] = ()
    is_saved: bool = False

    @property
    def method(self) -> str | None:
        """The method's name."""
        return _text(self.config.get("method"))

    @property
    def data(self) -> str | None:
        """The data set's name; of a file, its last part."""
        data = _text(self.config.get("data"))
        return None if data is None else Path(data).name

    @property
    def model(self) -> str | None:
        """The model's name."""
        return _text(self.config.get("model"))

    @property
    def seed(self) -> int | None:
        """The run's seed."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def sparsity(self) -> float | None:
        """The sparsity reached; the one asked for where there are no metrics yet."""
        options = self.config.get("method_options")
        asked = options.get("sparsity") if isinstance(options, dict) else None
        for value in (self.metrics.get("sparsity"), asked, self.config.get("sparsity")):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
        return None

    @property
    def ood(self) -> tuple[str, ...]:
        """Names of the out-of-distribution sets, the first of which has the plain keys."""
        names = self.config.get("ood")
        return tuple(map(str, names)) if isinstance(names, list) else ()

    @property
    def task(self) -> str | None:
        """``"classification"`` or ``"regression"``, by the config or else by what was measured."""
        task = self.config.get("task")
        if task in ("classification", "regression"):
            return str(task)
        measured = set(self.metrics) | set(self.curves)
        for epoch in self.epochs:
            measured |= set(_table(epoch.get("val")))
        if measured & {"rmse", "intervals"}:
            return "regression"
        if measured & {"accuracy", "reliability"}:
            return "classification"
        return None


def read_run(path: str | os.PathLike[str]) -> RunResult:
    """Reads one run folder.

    Every file is optional, but one must be there. Damaged lines at the end of ``record.jsonl``
    (the run was killed while writing) are skipped and noted. Where a resumed run recorded an
    epoch or a step again, the later record counts.

    Raises:
        CheckpointError: No run folder, a damaged file, a damaged line before the last good one.
    """
    folder = Path(path)
    if not folder.is_dir():
        rule = "is not a folder" if folder.exists() else "is not a folder: nothing has that name"
        raise CheckpointError("run", str(folder), rule, "give a run folder, or a saved model")
    present = [name for name in (*_FILES, _RECORD) if (folder / name).is_file()]
    if not present:
        rule = "holds no run: no config.json, metrics.json or record.jsonl"
        raise CheckpointError("run", str(folder), rule, "give the folder that train wrote")
    notes = [f"{name} is missing" for name in (*_FILES, _RECORD) if name not in present]
    tables = {name: _read_table(folder / name) for name in _FILES if name in present}
    records: list[dict[str, Any]] = []
    if _RECORD in present:
        records, skipped = _read_record(folder / _RECORD)
        if skipped:
            notes.append(f"{skipped} damaged at the end of {_RECORD} skipped")
    return RunResult(
        name=folder.resolve().name,
        path=folder,
        config=tables.get("config.json", {}),
        environment=tables.get("environment.json", {}),
        metrics=flatten(tables.get("metrics.json", {})),
        epochs=_latest(records, kind="epoch", key="epoch"),
        swaps=_latest(records, kind="swap", key="step"),
        curves=tables.get("curves.json", {}),
        notes=tuple(notes),
        data_notes=_data_notes(folder),
        selection=_read_table(folder / _SELECTION) if (folder / _SELECTION).is_file() else {},
    )


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> list[RunResult]:
    """Reads several run folders, each folder once, under distinct names.

    Runs in folders of the same name get as many parents as it takes: ``a/run`` and ``b/run``.

    Raises:
        InvalidValue: No path at all.
        CheckpointError: As :func:`read_run`.
    """
    if not paths:
        raise InvalidValue("runs", "none", "must name at least one run folder", "e.g. runs/digits")
    folders = list({Path(path).resolve(): Path(path) for path in paths}.values())
    depth = 1
    names = [_tail(folder, depth) for folder in folders]
    while len(set(names)) < len(names):
        depth += 1
        names = [_tail(folder, depth) for folder in folders]
    runs = []
    for folder, name in zip(folders, names, strict=True):
        run = read_run(folder)
        object.__setattr__(run, "name", name)
        runs.append(run)
    return runs


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Makes nested tables flat, with dotted keys, in order."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _data_notes(folder: Path) -> tuple[str, ...]:
    """The notes of the preparation; runs of earlier versions have none."""
    path = folder / _PREPARATION
    notes = _read_table(path).get("notes") if path.is_file() else None
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def _tail(folder: Path, depth: int) -> str:
    return "/".join(folder.resolve().parts[-depth:])


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_table(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_content(path))
    except ValueError as error:
        raise _damaged(path, str(path), "is not JSON") from error
    if not isinstance(value, dict):
        raise _damaged(path, str(path), "is not a JSON object")
    return value


def _read_record(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Returns the good records, and in words how many damaged lines were skipped at the end."""
    records: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        record = _record(line)
        if record is None:
            damaged.append(number)
        elif damaged:
            raise _damaged(path, f"line {damaged[0]} of {path}", "is not a JSON object")
        else:
            records.append(record)
    if len(damaged) > 1 and not records:  # one torn line is a crash; many and no good one are not
        raise _damaged(path, f"line {damaged[0]} of {path}", "is not a JSON object")
    skipped = {0: "", 1: "one line"}.get(len(damaged), f"{len(damaged)} lines")
    return records, skipped


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        rule = f"cannot be read ({error.strerror})"
        raise CheckpointError(path.name, str(path), rule, "check its permissions") from error


def _damaged(path: Path, where: str, rule: str) -> CheckpointError:
    return CheckpointError(
        path.name, where, f"is damaged: {rule}", "restore the file, or leave this run out"
    )


def _latest(records: list[dict[str, Any]], *, kind: str, key: str) -> list[dict[str, Any]]:
    chosen: dict[float, dict[str, Any]] = {}
    for record in records:
        place = record.get(key)
        if record.get("kind") == kind and isinstance(place, (int, float)):
            chosen[place] = record
    return [chosen[place] for place in sorted(chosen)]
