"""What a fit learns from, as tensors, and its batches on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gossamer.data import DataSet, Preparation, Rows, row_batches
from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference import Batch

Pair = tuple[Tensor, Tensor]

DEFAULT_BATCH = 64


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples, and those that validate; a test part has no place here.

    Attributes:
        x: Inputs [N, ...].
        y: Targets [N] or [N, D].
        validation: Inputs and targets, or ``None``.
        weight: How much each training example counts, [N]; ``None`` where all count alike.
        augment: Name of an augmentation of ``gossamer.data``, or ``None``.
        preparation: How targets become original units; ``None`` where they are.
    """

    x: Tensor
    y: Tensor
    validation: Pair | None = None
    weight: Tensor | None = None
    augment: str | None = None
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        for name, pair in (("", (self.x, self.y)), (" of validation", self.validation)):
            if pair is not None and not 0 < len(pair[0]) == len(pair[1]):
                raise InvalidData(
                    f"x{name}", f"{len(pair[0])} rows", f"must have as many as y: {len(pair[1])}"
                )
        if self.weight is not None and self.weight.shape != (len(self.x),):
            raise InvalidData(
                "weight", tuple(self.weight.shape), f"must be ({len(self.x)},), one per example"
            )

    @classmethod
    def of(cls, dataset: DataSet) -> Examples:
        """The training and the validation part of a data set."""
        return cls(
            dataset.x_train,
            dataset.y_train,
            None if dataset.validation is None else (dataset.x_val, dataset.y_val),
            weight=dataset.weight_train,
            augment=dataset.augment,
            preparation=dataset.preparation,
        )


class Feed(Protocol):
    """Where the batches of a fit come from."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        ...

    def epoch(self, order: torch.Generator, start: int) -> Iterator[Batch]:
        """An epoch's batches from number ``start`` on; ``order`` alone decides which they are."""
        ...


class Batches:
    """Shuffled batches of examples, each moved to the device when its step comes.

    Args:
        examples: The examples, which stay where they are.
        batch_size: Rows.
        device: Of the network.

    Raises:
        InvalidValue: There are fewer examples than a batch takes.
    """

    def __init__(self, examples: Examples, batch_size: int, device: torch.device) -> None:
        count = len(examples.x)
        self._examples, self._device = examples, device
        self._size = rows_per_batch(batch_size, count)
        self._drop_last = leaves_out_last(count, self._size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        return steps_per_epoch(len(self._examples.x), self._size)

    def epoch(self, order: torch.Generator, start: int) -> Iterator[Batch]:
        """See :class:`Feed`."""
        examples = self._examples
        found = row_batches(
            Rows(examples.x, examples.y, examples.weight),
            self._size,
            order,
            augment=examples.augment,
            drop_last=self._drop_last,
            start=start,
        )
        for rows in found:
            weight = None if rows.weight is None else rows.weight.to(self._device)
            yield Batch(rows.x.to(self._device), rows.y.to(self._device), weight)


def rows_per_batch(batch_size: int, count: int) -> int:
    """A batch as it is; of the default size, all examples where there are fewer.

    Raises:
        InvalidValue: It was asked for by its size, and there are fewer examples.
    """
    if batch_size == DEFAULT_BATCH:
        return min(batch_size, count)
    if batch_size > count:
        raise InvalidValue(
            "batch_size",
            batch_size,
            f"must not exceed the number of training examples, {count}",
            "use a smaller batch",
        )
    return batch_size


def steps_per_epoch(count: int, batch_size: int) -> int:
    """Batches of ``count`` examples."""
    batch_size = rows_per_batch(batch_size, count)
    return len(range(0, count, batch_size)) - leaves_out_last(count, batch_size)


def leaves_out_last(count: int, batch_size: int) -> bool:
    """Whether the last batch would be a single example, on which BatchNorm cannot train."""
    return batch_size > 1 and count % batch_size == 1
