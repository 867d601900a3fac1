"""Shuffled mini-batches whose order a generator decides, so that a run can go on bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gossamer.data.dataset import Rows
from gossamer.data.prepare.augment import AUGMENTATIONS, Augmentation
from gossamer.errors import InvalidData, InvalidValue, UnknownName

Shard = tuple[int, int]
"""The part of every batch that one of several processes takes: its rank, and how many there are."""


def batches(
    x: Tensor,
    y: Tensor,
    batch_size: int,
    generator: torch.Generator,
    augment: str | Augmentation | None = None,
    drop_last: bool = False,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches, as pairs; :func:`row_batches` takes weights as well.

    The order, and a seed for the augmentation of each batch, are drawn at the call: the state of
    the generator at that moment decides the whole epoch, nobody's draws in between change it, and
    the state afterwards does not depend on how far the epoch was read. To go on inside an epoch,
    restore that state and pass ``start``.

    Args:
        x: Inputs [N, ...].
        y: Targets [N] or [N, D].
        batch_size: Examples per batch, at most N.
        generator: CPU generator.
        augment: Name of an augmentation, or a function of a batch of inputs and a generator.
        drop_last: Whether to leave out a last batch that is not full; it is kept by default.
        start: Number of batches to leave out at the beginning.

    Returns:
        Iterator over pairs ``(x, y)``.
    """
    epoch = row_batches(Rows(x, y), batch_size, generator, augment, drop_last, start)
    return ((rows.x, rows.y) for rows in epoch)


def row_batches(
    rows: Rows,
    batch_size: int,
    generator: torch.Generator,
    augment: str | Augmentation | None = None,
    drop_last: bool = False,
    start: int = 0,
    shard: Shard = (0, 1),
) -> Iterator[Rows]:
    """One epoch of shuffled batches of a part of a set, with their weights.

    The same generator gives the rows and the order of :func:`batches`.

    Args:
        rows: The part, for example ``DataSet.train``.
        batch_size: Examples per batch over all processes, at most N.
        generator: CPU generator; in the same state in every process.
        augment: See :func:`batches`.
        drop_last: See :func:`batches`.
        start: See :func:`batches`.
        shard: ``(rank, size)``: of every batch the part of this rank, in the batch's order. Parts
            differ by one row at most, so one may be empty where a batch has fewer rows than there
            are ranks.

    Returns:
        Iterator over ``Rows``, whose weight is ``None`` where the part has none.
    """
    count = len(rows.x)
    for name, tensor in (("y", rows.y), ("weight", rows.weight)):
        if tensor is not None and len(tensor) != count:
            raise InvalidData(name, f"{len(tensor)} rows", f"must have as many rows as x: {count}")
    if not 1 <= batch_size <= count:
        raise InvalidValue(
            "batch_size",
            batch_size,
            f"must lie between 1 and the number of samples, {count}",
            "use a smaller batch",
        )
    if not 0 <= shard[0] < shard[1]:
        raise InvalidValue("shard", shard, "must be (rank, size) with 0 <= rank < size")
    function = _augmentation(augment)
    order = torch.randperm(count, generator=generator)
    parts = list(torch.split(order, batch_size))
    if drop_last and len(parts[-1]) < batch_size:
        parts.pop()
    # Drawn for every call, so that augmentation on or off leaves the order of later epochs alone.
    seeds = torch.randint(2**62, (len(parts),), generator=generator).tolist()
    if not 0 <= start <= len(parts):
        raise InvalidValue("start", start, f"must lie between 0 and the {len(parts)} batches")
    return _iterate(rows, parts[start:], seeds[start:], function, shard)


def _iterate(
    rows: Rows,
    parts: list[Tensor],
    seeds: list[int],
    augment: Augmentation | None,
    shard: Shard,
) -> Iterator[Rows]:
    rank, size = shard
    for part, seed in zip(parts, seeds, strict=True):
        batch = part.to(rows.x.device)
        mine = batch.tensor_split(size)[rank]
        if augment is None:
            inputs = rows.x.index_select(0, mine)  # several times faster than x[mine]
        else:
            # All ranks augment the whole batch: its draws then do not depend on their number.
            whole = augment(rows.x.index_select(0, batch), torch.Generator().manual_seed(seed))
            inputs = whole.tensor_split(size)[rank]
        weight = None if rows.weight is None else rows.weight.index_select(0, mine)
        yield Rows(inputs, rows.y.index_select(0, mine), weight)


def _augmentation(augment: str | Augmentation | None) -> Augmentation | None:
    if not isinstance(augment, str):
        return augment
    if augment not in AUGMENTATIONS:
        raise UnknownName("augment", augment, list(AUGMENTATIONS))
    return AUGMENTATIONS[augment]
