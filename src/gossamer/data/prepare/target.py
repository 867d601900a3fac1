"""Targets: class labels to indices and back, measured values to standardised ones and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.prepare.values import as_integers, as_numbers, as_texts, kind_of
from gossamer.errors import InvalidData, InvalidValue

Task = Literal["classification", "regression"]
TASKS: tuple[Task, ...] = ("classification", "regression")

# Whole numbers with at most this many distinct values are taken for class labels.
MAX_INFERRED_CLASSES = 20


def infer_task(name: str, y: NDArray[Any], *, images: bool) -> tuple[Task, str]:
    """Infers the task from a target.

    Args:
        name: The target's name.
        y: Raw target, [N] or [N, D].
        images: Whether the inputs are images: whole numbers are then labels, however many.

    Returns:
        The task and a sentence that says why, for ``DataSet.notes``.
    """
    if y.ndim == 2 and y.shape[1] > 1:
        return "regression", f"task regression, inferred: {name!r} has {y.shape[1]} values per row"
    flat = y.reshape(-1)
    kind = kind_of(name, flat)
    if kind == "date":
        raise InvalidData(
            f"target {name!r}",
            None,
            "holds dates, which are neither classes nor numbers",
            "say task classification, or give the days since a date of your choice",
        )
    if kind == "str":
        return "classification", f"task classification, inferred: {name!r} holds text"
    if kind == "int":
        distinct = len(np.unique(as_integers(name, flat)))
        why = f"inferred: {name!r} holds {distinct} distinct whole numbers"
        if images or distinct <= MAX_INFERRED_CLASSES:
            return "classification", f"task classification, {why}"
        return "regression", f"task regression, {why}"
    return "regression", f"task regression, inferred: {name!r} holds decimal numbers"


def labels_of(name: str, y: NDArray[Any]) -> NDArray[Any]:
    """Reads a target [N] or [N, 1] as labels: int64, or an object array of ``str``."""
    flat = _one_column(name, y)
    if kind_of(name, flat) in ("str", "date"):
        return np.array(as_texts(name, flat), dtype=object)
    return as_integers(name, flat)


@dataclass(frozen=True)
class ClassTarget:
    """Class labels.

    Attributes:
        name: The target's name.
        labels: The label of each class as it stands in the data, written as text.
        names: What people call each class.
    """

    name: str
    labels: tuple[str, ...]
    names: tuple[str, ...]
    task: Literal["classification"] = "classification"

    def __post_init__(self) -> None:
        if len(self.labels) < 2:
            raise InvalidData(
                f"target {self.name!r}",
                ", ".join(self.labels) or "no label",
                "must hold at least 2 classes",
                "check the target column, or use task regression",
            )
        if len(self.names) != len(self.labels) or len(set(self.labels)) != len(self.labels):
            raise InvalidData(
                f"target {self.name!r}", None, "needs distinct labels and one name for each"
            )

    @classmethod
    def fit(cls, name: str, y: NDArray[Any], names: tuple[str, ...] | None = None) -> ClassTarget:
        """Collects the labels of the training part.

        Args:
            name: The target's name.
            y: Raw labels of the training part, [N] or [N, 1].
            names: Names of the classes where the labels are known to be 0 .. C-1.
        """
        if names is not None:
            return cls(name, tuple(str(index) for index in range(len(names))), tuple(names))
        labels = labels_of(name, y)
        if labels.dtype.kind == "i" and labels.min() < 0 and set(labels.tolist()) != {-1, 1}:
            raise InvalidData(
                f"target {name!r}",
                int(labels.min()),
                "a label must be 0 or more (or the pair -1 and 1)",
                "correct or remove its rows, or use task regression",
            )
        texts = tuple(str(label) for label in sorted(set(labels.tolist())))
        return cls(name, texts, texts)

    @property
    def size(self) -> int:
        """Number of classes."""
        return len(self.labels)

    def prepare(self, y: NDArray[Any], shown: str | None = None) -> Tensor:
        """Turns raw labels [N] or [N, 1] into class indices, int64 [N].

        Args:
            y: Raw labels.
            shown: What messages call this array; the target's name unless told.
        """
        shown = shown or self.name
        flat = _one_column(shown, y)
        whole = all(label.lstrip("-").isdigit() for label in self.labels)
        texts = [str(v) for v in as_integers(shown, flat)] if whole else as_texts(shown, flat)
        index = {label: i for i, label in enumerate(self.labels)}
        for row, text in enumerate(texts):
            if text not in index:
                raise InvalidData(
                    f"target {shown!r}, row {row}",
                    text,
                    f"label is out of range: not one of the {self.size} classes of training",
                    "the labels are " + _shortened(self.labels),
                )
        return torch.tensor([index[text] for text in texts], dtype=torch.int64)


@dataclass(frozen=True)
class ValueTarget:
    """Measured values, standardised for training.

    Attributes:
        name: The target's name.
        mean: Mean of each dimension over the training part.
        scale: Standard deviation of each, 1 where it is constant.
        vector: Whether the target has a dimension axis, [N, D]; otherwise it is [N].
    """

    name: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    vector: bool
    task: Literal["regression"] = "regression"

    def __post_init__(self) -> None:
        if not self.mean or len(self.mean) != len(self.scale):
            raise InvalidData(f"target {self.name!r}", None, "needs one mean and one scale each")
        if not np.isfinite([*self.mean, *self.scale]).all() or min(self.scale) <= 0:
            raise InvalidData(
                f"target {self.name!r}",
                list(self.scale),
                "needs a finite mean and a positive scale",
                "check the target for huge values",
            )

    @classmethod
    def fit(cls, name: str, y: NDArray[Any], *, scaled: bool = True) -> ValueTarget:
        """Fits mean and scale to the training part, [N] or [N, D]; 0 and 1 unless ``scaled``."""
        values = _numbers(name, y)
        moments = [
            standardisation(values[:, d]) if scaled else (0.0, 1.0) for d in range(values.shape[1])
        ]
        mean, scale = zip(*moments, strict=True)
        return cls(name, mean, scale, y.ndim == 2 and y.shape[1] > 1)

    @property
    def size(self) -> int:
        """Number of dimensions."""
        return len(self.mean)

    def prepare(self, y: NDArray[Any], shown: str | None = None) -> Tensor:
        """Turns raw values [N] or [N, D] into standardised ones, float32 [N] or [N, D].

        Args:
            y: Raw values.
            shown: What messages call this array; the target's name unless told.
        """
        shown = shown or self.name
        values = _numbers(shown, y)
        if values.shape[1] != self.size:
            raise InvalidData(
                f"target {shown!r}", f"shape {y.shape}", f"must hold {self.size} values per row"
            )
        scaled = torch.from_numpy((values - np.array(self.mean)) / np.array(self.scale)).float()
        return scaled if self.vector else scaled[:, 0]


Target = ClassTarget | ValueTarget


def target_from_json(data: dict[str, Any]) -> Target:
    """Rebuilds a target from the values that ``Preparation.to_json`` gives."""
    if data["task"] == "classification":
        return ClassTarget(data["name"], tuple(data["labels"]), tuple(data["names"]))
    if data["task"] == "regression":
        return ValueTarget(
            data["name"], tuple(data["mean"]), tuple(data["scale"]), bool(data["vector"])
        )
    raise InvalidData("target task", data["task"], "must be classification or regression")


def check_target(shown: str, y: NDArray[Any], task: Task, *, counts: bool = False) -> None:
    """Raises InvalidData for the first cell that cannot be a target, naming its row in ``y``."""
    if task == "classification":
        labels_of(shown, y)
        return
    values = _numbers(shown, y)
    if counts:
        wrong = np.argwhere((values < 0) | (values != np.round(values)))
        if len(wrong):
            row, column = map(int, wrong[0])
            raise InvalidData(
                f"target {shown!r}, row {row}",
                float(values[row, column]),
                "a count must be a whole number, 0 or more",
                "use likelihood gaussian or student_t for measured values",
            )


def check_task(task: str | None) -> None:
    """Raises InvalidValue for a task that does not exist."""
    if task is not None and task not in TASKS:
        raise InvalidValue("task", task, "must be classification or regression")


def standardisation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and scale of one column [N]; scale 1 where it is constant up to rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(values.mean()), float(values.std())
    rounding = 10 * np.finfo(np.float64).eps * abs(mean)
    return mean, std if std > rounding and values.min() != values.max() else 1.0


def _one_column(name: str, y: NDArray[Any]) -> NDArray[Any]:
    if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
        return y.reshape(-1)
    raise InvalidData(
        f"target {name!r}",
        f"shape {y.shape}",
        "class labels are one per row, [N]",
        "give indices, not one-hot rows",
    )


def _numbers(name: str, y: NDArray[Any]) -> NDArray[np.float64]:
    if y.ndim not in (1, 2):
        raise InvalidData(f"target {name!r}", f"shape {y.shape}", "must be [N] or [N, D]")
    columns = y.reshape(len(y), -1)
    return np.stack([as_numbers(name, columns[:, d]) for d in range(columns.shape[1])], axis=1)


def _shortened(labels: tuple[str, ...]) -> str:
    return ", ".join(labels if len(labels) <= 12 else (*labels[:10], "…", labels[-1]))
