"""DataSet: the prepared parts that training consumes, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.data.prepare.augment import AUGMENTATIONS
from gossamer.data.prepare.preparation import Preparation
from gossamer.data.prepare.target import TASKS, Task
from gossamer.errors import InvalidData

# Rows looked at together when searching for non-finite values: bounds the memory of the search.
_BLOCK = 4096

# How whoever asks for an absent part gets it.
_WAYS = {
    "validation": "load the set with a validation_fraction above 0, or give x_val and y_val",
    "test": "give x_test and y_test to gossamer.data.from_arrays, or load a set that has one",
}


class Rows(NamedTuple):
    """Examples that belong together: a part of a set, or a batch of one.

    Attributes:
        x: Inputs, [N, ...].
        y: Targets, [N] or [N, D].
        weight: How much each example counts, [N]; ``None`` where all count alike.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test part, prepared; the last two may be absent.

    ``x_train``, ``y_val`` and so on are the tensors of the parts. To ask for one of a part that is
    absent is an error that says how to get the part; ``validation is None`` and ``test is None``
    ask whether it is there.

    Attributes:
        name: Name or path it was loaded from.
        task: ``"classification"`` or ``"regression"``.
        train: The training part. ``x`` is float32 [N, features] or [N, C, H, W]; ``y`` is int64 [N]
            class indices, or float32 [N] or [N, D], standardised; ``weight`` is float32 [N],
            finite, no less than 0 and somewhere above it.
        preparation: How raw input became x, and how outputs become original units.
        validation: The validation part, or ``None``.
        test: The test part, or ``None``.
        augment: ``None``, or the name of the augmentation that suits the set: ``"crop_flip"``.
        notes: What was inferred rather than told, one sentence each.
    """

    name: str
    task: Task
    train: Rows
    preparation: Preparation
    validation: Rows | None = None
    test: Rows | None = None
    augment: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in TASKS or self.task != self.preparation.task:
            raise InvalidData(
                "task", self.task, f"must be the preparation's: {self.preparation.task}"
            )
        if self.augment is not None and self.augment not in AUGMENTATIONS:
            raise InvalidData(
                "augment", self.augment, f"must be None or one of: {', '.join(AUGMENTATIONS)}"
            )
        if self.augment is not None and self.preparation.kind != "image":
            raise InvalidData("augment", self.augment, "is for images only")
        for part, rows in (("train", self.train), ("val", self.validation), ("test", self.test)):
            if rows is not None:
                self._check_part(part, rows)

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self.train.x)

    @property
    def x_train(self) -> Tensor:
        """Inputs of the training part."""
        return self.train.x

    @property
    def y_train(self) -> Tensor:
        """Targets of the training part."""
        return self.train.y

    @property
    def weight_train(self) -> Tensor | None:
        """Weights of the training examples, float32 [N]; ``None`` where all count alike."""
        return self.train.weight

    @property
    def x_val(self) -> Tensor:
        """Inputs of the validation part."""
        return self._present("validation").x

    @property
    def y_val(self) -> Tensor:
        """Targets of the validation part."""
        return self._present("validation").y

    @property
    def x_test(self) -> Tensor:
        """Inputs of the test part."""
        return self._present("test").x

    @property
    def y_test(self) -> Tensor:
        """Targets of the test part."""
        return self._present("test").y

    @property
    def num_classes(self) -> int | None:
        """Number of classes; ``None`` for regression."""
        return self.preparation.output_size if self.task == "classification" else None

    @property
    def class_names(self) -> list[str] | None:
        """What people call each class; ``None`` for regression."""
        return self.preparation.label_names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.preparation.input_shape

    @property
    def output_size(self) -> int:
        """Number of classes, or of target dimensions."""
        return self.preparation.output_size

    def _present(self, part: Literal["validation", "test"]) -> Rows:
        rows = self.validation if part == "validation" else self.test
        if rows is None:
            raise InvalidData(f"{part} part of {self.name}", None, "is absent", _WAYS[part])
        return rows

    def _check_part(self, part: str, rows: Rows) -> None:
        x, y, weight = rows
        if len(x) == 0:
            raise InvalidData(f"x_{part}", None, "holds no example", "leave an empty part out")
        if tuple(x.shape[1:]) != self.input_shape:
            raise InvalidData(
                f"x_{part}", f"shape {tuple(x.shape)}", f"must be [N, *{self.input_shape}]"
            )
        if x.dtype != torch.float32:
            raise InvalidData(f"x_{part}", x.dtype, "must be torch.float32")
        if len(y) != len(x):
            raise InvalidData(f"y_{part}", f"{len(y)} rows", f"must have as many as x: {len(x)}")
        self._check_finite(f"x_{part}", x)
        if self.task == "classification":
            self._check_labels(f"y_{part}", y)
        else:
            self._check_values(f"y_{part}", y)
        if weight is not None:
            _check_weight(f"weight_{part}", weight, len(x))

    def _check_labels(self, name: str, y: Tensor) -> None:
        if y.dtype != torch.int64 or y.ndim != 1:
            raise InvalidData(name, f"{y.dtype} {tuple(y.shape)}", "must be torch.int64 [N]")
        bad = torch.nonzero((y < 0) | (y >= self.output_size))
        if len(bad):
            row = int(bad[0])
            raise InvalidData(
                f"{name}, row {row}", int(y[row]), f"label must lie in [0, {self.output_size})"
            )

    def _check_values(self, name: str, y: Tensor) -> None:
        shape_ok = y.ndim == 1 if self.output_size == 1 else y.shape[1:] == (self.output_size,)
        if y.dtype != torch.float32 or not shape_ok:
            rule = "must be torch.float32 [N], or [N, D] with the target's D"
            raise InvalidData(name, f"{y.dtype} {tuple(y.shape)}", rule)
        bad = np.argwhere(~np.isfinite(y.detach().cpu().numpy()))
        if len(bad):
            row = int(bad[0, 0])
            raise InvalidData(f"{name}, row {row}", y[row].tolist(), "must be finite")

    def _check_finite(self, name: str, x: Tensor) -> None:
        for start in range(0, len(x), _BLOCK):
            # By numpy: it takes one thread, where those of torch would spend most of a load
            # waiting for each other on a machine with other work.
            good = np.isfinite(x[start : start + _BLOCK].detach().cpu().numpy())
            if not good.all():
                place = [int(i) for i in np.argwhere(~good)[0]]
                row, rest = start + place[0], tuple(place[1:])
                raise InvalidData(
                    f"{name}, row {row}, {self.preparation.inputs.feature_name(rest)}",
                    float(x[row][rest]),
                    "must be finite",
                    "correct or remove the row",
                )


def _check_weight(name: str, weight: Tensor, count: int) -> None:
    if weight.dtype != torch.float32 or weight.shape != (count,):
        shown = f"{weight.dtype} {tuple(weight.shape)}"
        raise InvalidData(name, shown, f"must be torch.float32 [{count}], one for each example")
    bad = torch.nonzero(~(torch.isfinite(weight) & (weight >= 0)))
    if len(bad):
        row = int(bad[0])
        raise InvalidData(f"{name}, row {row}", float(weight[row]), "must be finite and 0 or more")
    if not weight.any():
        raise InvalidData(
            name, "all 0", "some must be above 0", "give more rows a weight, or another seed"
        )
