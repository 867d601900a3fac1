"""What a fit learns from, as tensors, and its batches on their way to the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gossamer.data import DataSet, Preparation, Rows, row_batches
from gossamer.errors import InvalidData, InvalidValue
from gossamer.inference import Batch
from gossamer.inference.leaving import left_out
from gossamer.ops import fold_seed

Pair = tuple[Tensor, Tensor]

DEFAULT_BATCH = 64
_DEALING = 19
"""Tells the seed of who leaves out what from other uses of a run's seed."""


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
        left_out: Numbers of the members that must not learn from each training example, [N, T];
            ``None`` where all learn from all.
        validation_weight: How much each row of the validation part would count among the training
            examples, once it is trained on too.
    """

    x: Tensor
    y: Tensor
    validation: Pair | None = None
    weight: Tensor | None = None
    augment: str | None = None
    preparation: Preparation | None = None
    left_out: Tensor | None = None
    validation_weight: float = 1.0

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

    def dealt(self, members: int, times: int, seed: int) -> Examples:
        """The same, each training example left out of ``times`` of the members.

        Every member leaves out nearly the same share of every class. Rows of a table that are
        equal are left out together: none judges what another taught.

        Args:
            members: How many there are.
            times: 0 for none.
            seed: Of the run; decides who leaves out what.
        """
        if times == 0:
            return self
        # Not the order of the batches, which begins with the seed itself.
        generator = torch.Generator().manual_seed(fold_seed(seed, _DEALING))
        labels = None if self.y.is_floating_point() or self.y.dim() > 1 else self.y.cpu()
        groups = _equal_rows(self.x, self.y)
        count = int(groups.max()) + 1
        if count < members // times:  # nearly constant: then copies must judge copies
            groups, count = torch.arange(len(self.x)), len(self.x)
        if labels is not None:
            labels = labels.new_zeros(count).scatter(0, groups, labels)
        dealt = left_out(count, members, times, generator, labels)
        return replace(self, left_out=dealt[groups])

    def evened(self) -> Examples:
        """As many examples that all count alike, each there in proportion to its weight.

        What judges rows one by one then needs to know nothing of weights.

        Example:
            >>> rows = torch.arange(4.0)
            >>> some = Examples(rows, rows, weight=torch.tensor([1.0, 0.0, 2.0, 1.0]))
            >>> some.evened().x.tolist()
            [0.0, 2.0, 2.0, 3.0]
        """
        if self.weight is None:
            return self
        count, weight = len(self.x), self.weight.double().cpu()
        places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        share = weight.cumsum(0) / weight.sum()
        chosen = torch.searchsorted(share, places).clamp(max=count - 1)
        return replace(self, weight=None).at(chosen)

    def at(self, rows: Tensor) -> Examples:
        """Those of these numbers, int64 [n]; the validation part stays as it is."""
        here = rows.to(self.x.device)
        return replace(
            self,
            x=self.x[here],
            y=self.y[here],
            weight=None if self.weight is None else self.weight[rows.to(self.weight.device)],
            left_out=None if self.left_out is None else self.left_out[rows],
        )


def _equal_rows(x: Tensor, y: Tensor) -> Tensor:
    """The same number for rows that are the same, int64 [N]; images are never compared."""
    if x.dim() != 2:
        return torch.arange(len(x))
    whole = torch.cat([x.double(), y.double().reshape(len(y), -1)], 1).cpu()
    numbers: Tensor = torch.unique(whole, dim=0, return_inverse=True)[1]
    return numbers


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
        examples, places = self._examples, None
        if examples.left_out is not None:
            # The same state of the generator deals the same rows a second time.
            twin = torch.Generator()
            twin.set_state(order.get_state())
            rows = Rows(examples.left_out, examples.left_out)
            places = self._batches(rows, twin, start, None)
        found = self._batches(
            Rows(examples.x, examples.y, examples.weight), order, start, examples.augment
        )
        for rows in found:
            weight = None if rows.weight is None else rows.weight.to(self._device)
            left_out = None if places is None else next(places).x.to(self._device)
            yield Batch(rows.x.to(self._device), rows.y.to(self._device), weight, left_out)

    def _batches(
        self, rows: Rows, order: torch.Generator, start: int, augment: str | None
    ) -> Iterator[Rows]:
        return row_batches(
            rows, self._size, order, augment=augment, drop_last=self._drop_last, start=start
        )


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
