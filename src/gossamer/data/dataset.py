"""DataSet: what a reader returns and training consumes, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.data.prepare.augment import AUGMENTATIONS
from gossamer.data.prepare.preparation import Preparation
from gossamer.data.prepare.target import TASKS, Task
from gossamer.errors import InvalidData

# Rows looked at together when searching for non-finite values: bounds the memory of the search.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test part, prepared.

    Attributes:
        name: Name or path it was loaded from.
        task: ``"classification"`` or ``"regression"``.
        x_train: float32 [N, features] or [N, C, H, W]; likewise ``x_val`` and ``x_test``.
        y_train: int64 [N] class indices; or float32 [N] or [N, D], standardised; likewise
            ``y_val``, ``y_test``.
        preparation: How raw input became x, and how outputs become original units.
        augment: ``None``, or the name of the augmentation that suits the set: ``"crop_flip"``.
        notes: What was inferred rather than told, one sentence each.
    """

    name: str
    task: Task
    x_train: Tensor
    y_train: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    preparation: Preparation
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
        for part in ("train", "val", "test"):
            self._check_part(part)

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self.x_train)

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

    def _check_part(self, part: str) -> None:
        x: Tensor = getattr(self, f"x_{part}")
        y: Tensor = getattr(self, f"y_{part}")
        if len(x) == 0:
            raise InvalidData(
                f"x_{part}", None, "holds no example", "every part needs at least one"
            )
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
        bad = torch.nonzero(~torch.isfinite(y))
        if len(bad):
            row = int(bad[0, 0])
            raise InvalidData(f"{name}, row {row}", y[row].tolist(), "must be finite")

    def _check_finite(self, name: str, x: Tensor) -> None:
        for start in range(0, len(x), _BLOCK):
            bad = ~torch.isfinite(x[start : start + _BLOCK])
            if bad.any():
                place = [int(i) for i in torch.nonzero(bad)[0]]
                row, rest = start + place[0], tuple(place[1:])
                raise InvalidData(
                    f"{name}, row {row}, {self.preparation.inputs.feature_name(rest)}",
                    float(x[row][rest]),
                    "must be finite",
                    "correct or remove the row",
                )
