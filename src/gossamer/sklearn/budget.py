"""What ``"auto"`` stands for: batch size, steps and patience, by the number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.errors import InvalidValue
from gossamer.train.budget import default_epochs, epochs_of_steps

Auto = int | Literal["auto"]

_EPOCHS, _BATCH = 20, 64
_LEAST_TO_HOLD_OUT = 20
_LEAST_TO_SELECT = 20
_PATIENCE = 4


@dataclass(frozen=True)
class Budget:
    """How long a fit trains.

    Attributes:
        batch_size: Rows of a step.
        epochs: Passes over the training rows.
        patience: Epochs without a better validation loss after which to stop; ``None`` for never.
        selects: Whether the state of least validation loss is the one that is kept.
    """

    batch_size: int
    epochs: int
    patience: int | None
    selects: bool


def holds_out(num_rows: int, validation_fraction: float) -> bool:
    """Whether validation rows are cut from so many: fewer than 20 are all needed for training."""
    return validation_fraction > 0.0 and num_rows >= _LEAST_TO_HOLD_OUT


def budget(
    num_rows: int,
    num_held_out: int,
    *,
    max_steps: Auto = "auto",
    batch_size: Auto = "auto",
    early_stopping: bool = True,
    labels: bool = False,
) -> Budget:
    """The budget of a fit.

    Args:
        num_rows: Rows to train on.
        num_held_out: Rows to validate on; a handful is no judge of when to stop.
        max_steps: Steps, which become whole epochs, at least one; ``"auto"`` is 4000, for labels
            60 epochs but 300 to 4000 steps, and never fewer than 20 epochs.
        batch_size: ``"auto"`` is 64, or a quarter of the rows where that is less.
        early_stopping: Whether validation rows may end the fit and choose its state.
        labels: Whether targets are labels: a network that has them all right only grows surer.

    Example:
        >>> budget(400, 40)
        Budget(batch_size=64, epochs=572, patience=143, selects=True)
        >>> budget(12, 0, max_steps=60)
        Budget(batch_size=3, epochs=15, patience=None, selects=False)
    """
    for name, value in (("max_steps", max_steps), ("batch_size", batch_size)):
        if value != "auto" and not (_is_whole(value) and value >= 1):
            raise InvalidValue(name, value, 'must be a whole number, at least 1, or "auto"')
    size = max(1, min(_BATCH, num_rows // 4)) if batch_size == "auto" else int(batch_size)
    size = min(size, num_rows)
    # A last batch of one row is left out of an epoch, see ``gossamer.train``.
    per_epoch = -(-num_rows // size) - (size > 1 and num_rows % size == 1)
    if max_steps == "auto":
        epochs = default_epochs(per_epoch, (1,), labels=labels)
    else:
        epochs = epochs_of_steps(int(max_steps), per_epoch)
    selects = early_stopping and num_held_out >= _LEAST_TO_SELECT
    patience = max(_EPOCHS // 2, epochs // _PATIENCE) if selects else None
    return Budget(size, epochs, patience, selects)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
