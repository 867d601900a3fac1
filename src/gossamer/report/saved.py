"""Reads a saved model as a run that has one file: settings and sizes, but no weight.

Estimators, posteriors and finished runs save archives of one form: safetensors, with the rest as
JSON in its header (``gossamer.prediction.archive``). Only the header is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossamer.errors import CheckpointError
from gossamer.report.plots import table
from gossamer.report.reader import RunResult

_FORMAT = "gossamer-posterior"
_START = 8
"""Bytes that say how long the header is."""


def read_saved(path: str | os.PathLike[str]) -> RunResult:
    """Reads a file of ``SparseBayesRegressor.save``, ``Posterior.save`` or a finished run.

    Raises:
        CheckpointError: No such file, one of another kind, or one that was cut.
    """
    file = Path(path)
    try:
        tensors, header, size = _opened(file)
        return _result(file, header, tensors, size)
    except OSError as error:
        rule = f"cannot be read ({error.strerror})"
        raise CheckpointError("model", str(file), rule, "check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CheckpointError(
            "model",
            str(file),
            "is not a folder and no whole file that save wrote",
            "give a run folder, or a file of an estimator's or a posterior's save",
        ) from error


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Shapes of the tensors by their keys, what the header says, and bytes of the file."""
    size = file.stat().st_size
    with file.open("rb") as content:
        length = int.from_bytes(content.read(_START), "little")
        if length > size - _START:
            raise ValueError("no safetensors file")
        tensors = json.loads(content.read(length))
    header = json.loads(tensors.pop("__metadata__")["gossamer"])
    ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
    if header["format"] != _FORMAT or size != _START + length + max(ends, default=0):
        raise ValueError("another format, or a part is missing")
    return {key: tensor["shape"] for key, tensor in tensors.items()}, header, size


def _result(file: Path, header: Any, tensors: Mapping[str, Any], size: int) -> RunResult:
    about, ready = header["about"], header["preparation"] or {}
    own = table(about, "estimator")
    history = own.get("history", [])
    members = header.get("members", [header])
    layers = [_layers(member, tensors) for member in members]
    dense = sum(math.prod(layer["shape"]) for layer in layers[-1])
    nnz = sum(layer["nnz"] for member in layers for layer in member)
    metrics: dict[str, Any] = {"nnz": nnz, "checkpoint_bytes": size, **_finish(header, tensors)}
    if header.get("weights") or dense:
        metrics["sparsity"] = 1.0 - nnz / (header.get("weights") or dense)
    if history:
        metrics["seconds"] = history[-1]["seconds"]
    curves: dict[str, Any] = {}
    if len(members) == 1:  # networks of several members have layers of their own
        curves["layers"] = layers[0]
    coverage = own.get("coverage", [])
    if coverage:
        levels, shares = ([float(pair[place]) for pair in coverage] for place in (0, 1))
        curves["left_out"] = {"nominal": levels, "observed": shares}
        if table(ready, "target").get("task") == "regression":
            curves["intervals"] = curves["left_out"]
    columns = ready.get("inputs", {}).get("columns", [])
    if own.get("importances"):
        names = own.get("feature_names_in") or [column["name"] for column in columns]
        curves["importances"] = {"names": names, "shares": own["importances"]}
    return RunResult(
        name=file.name,
        path=file,
        config=_config(header, about, own, ready, len(members)),
        metrics=metrics,
        epochs=[_epoch(each) for each in history],
        curves=curves,
        data_notes=tuple(map(str, own.get("notes") or ready.get("notes", ()))),
        selection=_selection(own, [str(column["name"]) for column in columns]),
        columns=tuple((str(column["name"]), _treated(column)) for column in columns),
        is_saved=True,
    )


def _layers(member: Mapping[str, Any], tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Size of every layer of the latest sample; one without places keeps all its weights."""
    state, found = member["states"][-1], []
    for layer in member["network"]["layers"]:
        name, whole = layer["names"][0], math.prod(layer["shape"])
        places = state.get(f"{name}.indices")
        nnz = whole if places is None else int(math.prod(tensors[places]))
        share = 1.0 - nnz / whole if whole else 0.0
        found.append({"name": name, "shape": layer["shape"], "nnz": nnz, "sparsity": share})
    return found


def _finish(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, float]:
    finish = table(header, "finish")
    found = {"temperature": finish["temperature"]} if finish else {}
    scores = table(finish, "calibration").get("scores")
    return found if scores is None else {**found, "calibration_rows": tensors[scores][0]}


def _config(
    header: Mapping[str, Any],
    about: Mapping[str, Any],
    own: Mapping[str, Any],
    ready: Mapping[str, Any],
    members: int,
) -> dict[str, Any]:
    """Settings under the names that runs give them; those of the estimator, then what came of them.

    What the estimator was asked for as ``method`` may be none: what it took is shown.
    """
    model = table(about, "model")
    asked = {key: _plain(value) for key, value in table(own, "parameters").items()}
    shape = model.get("input_shape", [])
    found = {
        "class": own.get("class"),
        **asked,
        "task": table(ready, "target").get("task"),
        "model": model.get("name"),
        "method": about.get("method"),
        "networks": members,
        "num_samples": about.get("num_samples"),
        "seed": about.get("seed"),
        "features": shape[0] if len(shape) == 1 else shape,
        "outputs": model.get("output_size"),
        "gossamer": header.get("gossamer"),
    }
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    """An argument as the estimator got it: dictionaries are kept as pairs."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.get("pairs", [])}
    return value


def _selection(own: Mapping[str, Any], columns: list[str]) -> dict[str, Any]:
    """What a screening found, with names where the file has one for each of its features."""
    found = table(own, "selection")
    names = own.get("selection_names") or columns
    fits = len(names) == len(found.get("inclusion", []))
    return {**found, "names": names} if fits else found


def _epoch(values: Mapping[str, Any]) -> dict[str, Any]:
    """An epoch of an estimator's history as the record of a run has it."""
    parts: dict[str, Any] = {"train": {}, "val": {}}
    for key, value in values.items():
        part, _, rest = key.partition("_")
        if part in parts and rest:
            parts[part][rest] = value
    return {**{key: values.get(key) for key in ("epoch", "step", "lr", "seconds")}, **parts}


def _treated(column: Mapping[str, Any]) -> str:
    """What is done to the cells of a column."""
    missing = column.get("missing", "mean")
    gaps = "" if missing == "mean" else f"; a missing cell: {missing}"
    if column["dtype"] == "date":
        return f"dates as {column['form']}{gaps}"
    if column["categories"] is None:
        more = ", and whether a cell is missing" if column.get("indicator") else ""
        return f"numbers, less {column['mean']:.4g}, over {column['scale']:.4g}{more}{gaps}"
    levels = column["categories"]
    some = ", ".join(map(str, levels[:5])) + ("…" if len(levels) > 5 else "")
    other = ", and one for all others" if column.get("other") else ""
    return f"{len(levels)} levels ({some}){other}{gaps}"
