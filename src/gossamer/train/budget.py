"""How long a fit trains that is not told: by steps, not by epochs, where rows are few.

An epoch of a table of 50 rows is one step and one of a million is thousands, so a number of epochs
suits neither.
"""

from __future__ import annotations

from collections.abc import Sequence

_STEPS = 4000
"""Of one network on a table."""
_LABEL_STEPS, _LABEL_EPOCHS = 300, 60
"""Classes: a network that has all labels right only grows surer."""
_LEAST_EPOCHS = 20
_EPOCHS = 60
"""Of images and whatever else is no table."""
_LOOKS, _LEFT_OUT_LOOKS = 60, 10
"""Validations and checkpoints of a run whose epochs are not told, about; fewer where members judge
one another, since a look then costs a pass of each and decides nothing."""


def epochs_of_steps(steps: int, per_epoch: int) -> int:
    """Whole epochs that come nearest to so many steps, one at least."""
    return max(1, round(steps / per_epoch))


def default_epochs(per_epoch: int, input_shape: Sequence[int], *, labels: bool) -> int:
    """Epochs of a fit that is told neither epochs nor steps.

    Args:
        per_epoch: Steps of an epoch.
        input_shape: Of one example; a vector is a row of a table.
        labels: Whether targets are classes.

    Example:
        >>> default_epochs(8, (13,), labels=False), default_epochs(8, (13,), labels=True)
        (500, 60)
        >>> default_epochs(938, (28, 28), labels=True), default_epochs(9000, (50,), labels=True)
        (60, 20)
    """
    if len(input_shape) != 1:
        return _EPOCHS
    steps = min(_STEPS, max(_LABEL_STEPS, _LABEL_EPOCHS * per_epoch)) if labels else _STEPS
    return max(_LEAST_EPOCHS, -(-steps // per_epoch))


def epochs_between_looks(epochs: int, *, by_left_out: bool = False) -> int:
    """Epochs between two validations, or checkpoints, of a run whose epochs were not told.

    Args:
        epochs: Of the run.
        by_left_out: Whether members look at the rows that they left out.
    """
    return max(1, epochs // (_LEFT_OUT_LOOKS if by_left_out else _LOOKS))
