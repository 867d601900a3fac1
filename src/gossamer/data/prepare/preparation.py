"""Preparation: everything that turns raw input into network input, and outputs into original units.

It is fitted once, to the training part, and stored with a run as JSON; prediction applies the same
one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.image_input import ImageInput
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.table_input import Columns, TableInput, by_name
from gossamer.data.prepare.target import ClassTarget, Target, Task, ValueTarget, target_from_json
from gossamer.errors import InvalidData

SCHEMA = 1

_Values = TypeVar("_Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class Preparation:
    """How raw input becomes x, and how outputs become labels or original units.

    Attributes:
        inputs: What is done to images or to a table.
        target: What is done to labels or to measured values.
        notes: What was inferred or done when it was fitted, one sentence each; for readers, no part
            of what makes two preparations equal.
    """

    inputs: ImageInput | TableInput
    target: Target
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def kind(self) -> Literal["image", "table"]:
        """``"image"`` or ``"table"``."""
        return self.inputs.kind

    @property
    def task(self) -> Task:
        """``"classification"`` or ``"regression"``."""
        return self.target.task

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one prepared example."""
        return self.inputs.input_shape

    @property
    def output_size(self) -> int:
        """Number of classes, or of target dimensions."""
        return self.target.size

    @property
    def target_name(self) -> str:
        """Name of the target column."""
        return self.target.name

    @property
    def label_names(self) -> list[str] | None:
        """What people call each class; ``None`` for regression."""
        return list(self.target.names) if isinstance(self.target, ClassTarget) else None

    def prepare(
        self, raw: Columns | NDArray[Any] | Tensor, findings: Findings | None = None
    ) -> Tensor:
        """Turns raw input into network input.

        Args:
            raw: Columns by name in any order (the target may be among them and is ignored), or an
                array with the columns of training in their order, or images.
            findings: Is told what was noticed (a level that training never saw, a column that it
                did not have) and of bad rows where it allows them; without it remarks are warnings.

        Returns:
            float32 [N, ``*input_shape``].

        Raises:
            InvalidData: Naming what differs from training: a column, a category, a shape, a dtype,
                a cell.
        """
        if isinstance(raw, Tensor):
            raw = raw.detach().cpu().numpy()
        if not isinstance(raw, np.ndarray) and not hasattr(raw, "keys"):
            raise InvalidData("input", type(raw).__name__, "must be an array or columns by name")
        if isinstance(self.inputs, TableInput):
            return self.inputs.prepare(raw, self.target.name, findings)
        if not isinstance(raw, np.ndarray):
            raise InvalidData(
                "input",
                "a table",
                f"must be images {list(self.input_shape)} as in training",
                "give an .npz file with an array of images",
            )
        return self.inputs.prepare(raw)

    def prepare_target(self, raw: NDArray[Any]) -> Tensor:
        """Turns a raw target into the network's: int64 [N], or float32 [N] or [N, D]."""
        return self.target.prepare(raw)

    def label(self, index: int) -> str:
        """The name of class ``index``."""
        names = self.label_names
        if names is None or not 0 <= index < len(names):
            raise InvalidData(
                "class index", index, f"must lie in [0, {0 if names is None else len(names)})"
            )
        return names[index]

    def target_to_original(self, mean: _Values) -> _Values:
        """Turns predicted targets, [...] or [..., D], into original units."""
        target = self._measured(mean)
        original: _Values = mean * _like(target.scale, mean) + _like(target.mean, mean)
        return original

    def scale_to_original(self, std: _Values) -> _Values:
        """Turns standard deviations of targets, [...] or [..., D], into original units."""
        target = self._measured(std)
        original: _Values = std * _like(target.scale, std)
        return original

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; :meth:`from_json` gives back an equal preparation."""
        inputs = self.inputs
        data = {
            "schema": SCHEMA,
            "inputs": inputs.to_json()
            if isinstance(inputs, TableInput)
            else asdict(inputs, dict_factory=_with_lists),
            "target": asdict(self.target, dict_factory=_with_lists),
        }
        return {**data, "notes": list(self.notes)} if self.notes else data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Preparation:
        """Rebuilds a preparation.

        Raises:
            InvalidData: For another schema, or values that are damaged.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise InvalidData(
                "preparation schema",
                str(found),
                f"must be {SCHEMA}",
                "the run is of another version of gossamer, or its file is damaged",
            )
        try:
            inputs = _inputs_from_json(data["inputs"])
            notes = tuple(map(str, data.get("notes", ())))
            return cls(inputs, target_from_json(data["target"]), notes)
        except InvalidData:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidData(
                "preparation",
                f"{type(error).__name__}: {error}",
                "is damaged",
                "train the run again",
            ) from error

    def _measured(self, values: Tensor | NDArray[Any]) -> ValueTarget:
        if not isinstance(self.target, ValueTarget):
            raise InvalidData(
                f"target {self.target.name!r}", None, "is a class and has no original unit"
            )
        if self.target.size > 1 and (values.ndim == 0 or values.shape[-1] != self.target.size):
            raise InvalidData(
                f"target {self.target.name!r}",
                f"shape {tuple(values.shape)}",
                f"must end in the target's {self.target.size} dimensions",
            )
        return self.target


def _with_lists(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields}


def _inputs_from_json(data: dict[str, Any]) -> ImageInput | TableInput:
    if data["kind"] == "image":
        return ImageInput.from_json(data)
    if data["kind"] == "table":
        return TableInput.from_json(data)
    raise InvalidData("kind of inputs", data["kind"], "must be image or table")


def fit_preparation(
    x: Columns | NDArray[Any],
    y: NDArray[Any],
    *,
    train: NDArray[np.int64],
    labelled: NDArray[np.int64],
    task: Task,
    target: str,
    label_names: tuple[str, ...] | None = None,
    divisor: float | None = None,
    normalise: bool = False,
    rules: TableRules = DEFAULT_RULES,
    findings: Findings | None = None,
    counts: bool = False,
) -> Preparation:
    """Fits a preparation; scales and levels come from the training part alone.

    Args:
        x: All raw inputs: columns, [N, D] or images.
        y: All raw targets, [N] or [N, D].
        train: Row numbers of the training part.
        labelled: Row numbers whose labels are the known classes: training and validation, so that a
            small training part does not lose a class.
        task: The task.
        target: The target's name.
        label_names: Names of the classes where the labels are 0 .. C-1.
        divisor: For images, see :class:`ImageInput`.
        normalise: For images, see :class:`ImageInput`.
        rules: For tables, see :class:`TableRules`.
        findings: Is told what was done to which column of a table.
        counts: Whether values of a regression are counts, which stay as they are.
    """
    inputs: ImageInput | TableInput
    if not isinstance(x, np.ndarray) or x.ndim == 2:
        inputs = TableInput.fit(by_name(x), train, rules, findings)
    else:
        inputs = ImageInput.fit(x, train, divisor=divisor, normalise=normalise)
    if task == "classification":
        return Preparation(inputs, ClassTarget.fit(target, y[labelled], label_names))
    return Preparation(inputs, ValueTarget.fit(target, y[train], scaled=not counts))


def _like(values: tuple[float, ...], other: _Values) -> _Values:
    # One dimension gives a scalar, which leaves the shape of `other` alone.
    chosen = values if len(values) > 1 else values[0]
    if isinstance(other, Tensor):
        return torch.tensor(chosen, dtype=other.dtype, device=other.device)
    return np.array(chosen, dtype=np.float64)
