"""Shuffled mini-batches whose order a generator decides, so that a run can go on bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gossamer.data.prepare.augment import AUGMENTATIONS, Augmentation
from gossamer.errors import InvalidData, InvalidValue, UnknownName


def batches(
    x: Tensor,
    y: Tensor,
    batch_size: int,
    generator: torch.Generator,
    augment: str | Augmentation | None = None,
    drop_last: bool = False,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches.

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
    count = len(x)
    if len(y) != count:
        raise InvalidData("y", f"{len(y)} rows", f"must have as many rows as x: {count}")
    if not 1 <= batch_size <= count:
        raise InvalidValue(
            "batch_size",
            batch_size,
            f"must lie between 1 and the number of samples, {count}",
            "use a smaller batch",
        )
    function = _augmentation(augment)
    order = torch.randperm(count, generator=generator)
    parts = list(torch.split(order, batch_size))
    if drop_last and len(parts[-1]) < batch_size:
        parts.pop()
    # Drawn for every call, so that augmentation on or off leaves the order of later epochs alone.
    seeds = torch.randint(2**62, (len(parts),), generator=generator).tolist()
    if not 0 <= start <= len(parts):
        raise InvalidValue("start", start, f"must lie between 0 and the {len(parts)} batches")
    return _iterate(x, y, parts[start:], seeds[start:], function)


def _iterate(
    x: Tensor,
    y: Tensor,
    parts: list[Tensor],
    seeds: list[int],
    augment: Augmentation | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    for part, seed in zip(parts, seeds, strict=True):
        rows = part.to(x.device)
        inputs = x.index_select(0, rows)  # several times faster than x[rows]
        if augment is not None:
            inputs = augment(inputs, torch.Generator().manual_seed(seed))
        yield inputs, y.index_select(0, rows)


def _augmentation(augment: str | Augmentation | None) -> Augmentation | None:
    if not isinstance(augment, str):
        return augment
    if augment not in AUGMENTATIONS:
        raise UnknownName("augment", augment, list(AUGMENTATIONS))
    return AUGMENTATIONS[augment]
