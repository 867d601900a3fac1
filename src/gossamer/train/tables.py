"""What is trained on a table of numbers to predict: members that leave rows out.

Chosen on cuts of the training parts of split 0 of small UCI tables, by RMSE and CRPS (``gossamer
reproduce gossamer/tabular --scale choice``); judged on all their splits by the same without
``--scale``. docs/tabular.md has both.
"""

from __future__ import annotations

from dataclasses import dataclass

_SOME, _MANY = 2_000, 10_000
"""Rows from which a network of one step budget has no chance to see all of them often. Fewer
members then have more steps each: they differ less, and each has more to learn."""
_LEAST = 10
"""Rows below which none can be left out."""
_BATCH, _LARGE_BATCH = 64, 256


@dataclass(frozen=True)
class TableRecipe:
    """How a table is trained.

    Attributes:
        members: Networks.
        leave_out: Members that each row is left out of; 0 where rows are too few.
        steps: Of each member.
        batch_size: Rows of a step.
    """

    members: int
    leave_out: int
    steps: int
    batch_size: int


def leaves_out(members: int) -> int:
    """Of how many of the members each row is left out: 4, 2, or 0 where they do not divide.

    Example:
        >>> leaves_out(20), leaves_out(10), leaves_out(8), leaves_out(4), leaves_out(3)
        (4, 2, 4, 2, 0)
    """
    fits = (times for times in (4, 2) if members % times == 0 and members >= 2 * times)
    return next(fits, 0)


def table_recipe(num_rows: int, cost: float = 1.0, members: int | None = None) -> TableRecipe:
    """The recommended training for numbers in a table.

    Args:
        num_rows: Training rows.
        cost: Of a quality, over that of the cheapest: every member trains so many times as long.
        members: How many, where that was told.

    Example:
        >>> table_recipe(442)
        TableRecipe(members=20, leave_out=4, steps=2000, batch_size=64)
        >>> table_recipe(36_000, cost=2.0)
        TableRecipe(members=10, leave_out=2, steps=12000, batch_size=256)
    """
    is_large = num_rows >= _MANY
    usual, steps = (20, 2000) if num_rows < _SOME else (10, 6000 if is_large else 4000)
    count = members or usual
    return TableRecipe(
        members=count,
        leave_out=leaves_out(count) if num_rows >= _LEAST else 0,
        steps=round(steps * cost),
        batch_size=_LARGE_BATCH if is_large else max(2, min(_BATCH, num_rows // 4)),
    )
