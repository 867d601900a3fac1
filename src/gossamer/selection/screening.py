"""``screen``: which columns of a wide table a network should read, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.selection.comparing import compare
from gossamer.selection.features import main_effects
from gossamer.selection.knockoffs import select_by_knockoffs
from gossamer.selection.spike_slab import Array, Groups, posterior_inclusion

Task = Literal["regression", "classification"]
By = Literal["spike_slab", "knockoffs"]
Values = NDArray[Any] | Tensor

LEVEL = 0.1
"""The false discovery rate unless told."""
MOST_ROWS = 4000
"""Rows that are looked at; of more, so many are drawn by the seed."""


@dataclass(frozen=True)
class Selection:
    """What a screening found.

    Attributes:
        columns: Those found to matter, ascending, at the false discovery rate ``level``.
        inputs: Those that a network should read: ``columns``; or all, where a linear model of all
            predicts held-out rows better, or as well with no more columns than rows; or the
            likeliest one, where nothing was found.
        inclusion: A number in [0, 1] per column. By spike-and-slab: the posterior probability that
            the column has a main effect (linear, or a curve of its own) on any output. By
            knockoffs: the share of knockoff draws in which it was chosen.
        level: The false discovery rate that was asked for.
        by: ``"spike_slab"`` or ``"knockoffs"``.
        reason: Why these inputs, in a sentence.
        losses: Mean squared error of held-out rows over the target's variance: of a ridge on
            ``all`` columns, on the ``chosen``, and of no column, ``none``.
    """

    columns: tuple[int, ...]
    inputs: tuple[int, ...]
    inclusion: tuple[float, ...]
    level: float
    by: By
    reason: str
    losses: dict[str, float]

    @property
    def num_columns(self) -> int:
        """Columns of the table."""
        return len(self.inclusion)

    @property
    def is_whole(self) -> bool:
        """Whether the network is to read every column."""
        return len(self.inputs) == self.num_columns

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Selection:
        """What ``to_json`` wrote."""
        kept: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**kept)


def is_wide(rows: int, columns: int) -> bool:
    """Whether a table has so many columns that a network should not read them all unasked.

    From 50 columns on, where there are more than a quarter of the rows; from 1,000 on always.

    Example:
        >>> is_wide(240, 2000), is_wide(300, 13), is_wide(5000, 800)
        (True, False, False)
    """
    return columns >= 1000 or columns >= max(50, rows / 4)


def screen(
    x: Values,
    y: Values,
    task: Task,
    seed: int = 0,
    *,
    level: float = LEVEL,
    by: By = "spike_slab",
    nonlinear: bool = True,
    steps: int = 1000,
    folds: int = 5,
) -> Selection:
    """Find the columns of a table that have a main effect on the target.

    Outputs are taken one by one: each column of a real target, and for classes whether a row is of
    a class or not (of two classes once). Interactions without any main effect are not found.

    Args:
        x: Inputs [n, p], numbers, of any scale.
        y: Real targets [n] or [n, d], or class numbers [n].
        task: ``"regression"`` or ``"classification"``.
        seed: Of everything that is drawn; the same seed gives the same selection.
        level: False discovery rate: the expected share of ``columns`` that do not matter. By
            spike-and-slab it is the posterior's own expectation, and no column of an inclusion
            below 1/2 is chosen; by knockoffs it holds over repetitions if rows are Gaussian.
        by: ``"spike_slab"``; or ``"knockoffs"``, for many true columns: with one output it never
            chooses fewer than 2/level.
        nonlinear: Whether a column may act by a curve as well as by a line; spike-and-slab only.
        steps: Of the sampler, see ``posterior_inclusion``.
        folds: Parts for the comparison that decides on ``inputs``; 0 for none: ``inputs`` then are
            ``columns``, or the likeliest one.

    Raises:
        InvalidData: Shapes that do not fit, values that are not finite.
        InvalidValue: A level outside (0, 1), or folds that the rows do not allow.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal((120, 200))
        >>> y = x[:, 5] - 2 * x[:, 9] + 0.3 * np.random.default_rng(1).standard_normal(120)
        >>> found = screen(x, y, "regression", steps=200)
        >>> found.columns, found.inputs
        ((5, 9), (5, 9))
    """
    if task not in ("regression", "classification"):
        raise UnknownName("task", str(task), ("regression", "classification"))
    if by not in ("spike_slab", "knockoffs"):
        raise UnknownName("by", str(by), ("spike_slab", "knockoffs"))
    if not 0.0 < level < 1.0:
        raise InvalidValue("level", level, "must lie in (0, 1)")
    table, outputs = _arrays(x, y, task)
    if folds and not 2 <= folds <= len(table) // 2:
        raise InvalidValue("folds", folds, f"must be 0, or 2 to {len(table) // 2} for these rows")
    generator = np.random.default_rng(seed)
    if len(table) > MOST_ROWS:
        rows = generator.permutation(len(table))[:MOST_ROWS]
        table, outputs = table[rows], outputs[rows]

    def choose(part: Array, target: Array, steps: int) -> tuple[NDArray[np.int64], Array]:
        if by == "knockoffs":
            return _by_knockoffs(part, target, level, seed)
        inclusion = _inclusion(part, target, nonlinear, steps, seed)
        return chosen_at(inclusion, level), inclusion

    columns, inclusion = choose(table, outputs, steps)
    losses: dict[str, float] = {}
    best, reason = "chosen", "not compared with all columns"
    if folds:
        # The choice is made anew without the held-out rows: one made with them would flatter it.
        best, reason, losses = compare(
            table, outputs, lambda a, b: choose(a, b, max(1, steps // 5))[0], folds, generator
        )
    if best == "all":
        inputs: Sequence[int] = range(table.shape[1])
    elif len(columns):
        inputs = columns.tolist()
    else:
        inputs = [int(np.argmax(inclusion))]
        reason = "no column was found to matter; the likeliest one stands for none"
    return Selection(
        columns=tuple(columns.tolist()),
        inputs=tuple(inputs),
        inclusion=tuple(inclusion.tolist()),
        level=level,
        by=by,
        reason=reason,
        losses=losses,
    )


def chosen_at(inclusion: Array, level: float) -> NDArray[np.int64]:
    """The most columns whose mean of 1 - inclusion is at most ``level``, none below 1/2."""
    order = np.argsort(-inclusion, kind="stable")
    mean_false = np.cumsum(1.0 - inclusion[order]) / np.arange(1, len(order) + 1)
    # The mean rises with every column, so that those within the level come first.
    within = (mean_false <= level) & (inclusion[order] >= 0.5)
    return np.sort(order[within])


def on_selected(
    x: Tensor,
    y: Tensor,
    task: Task,
    make: Callable[[tuple[int, ...] | None], nn.Module],
    seed: int = 0,
    **settings: Any,
) -> tuple[nn.Module, Selection]:
    """A network on the columns that a screening chose.

    Args:
        x: Training inputs [n, p].
        y: Training targets, as in ``screen``.
        task: As in ``screen``.
        make: Makes the network from the columns it is to read, ``None`` for all: for example
            ``lambda columns: mlp(input_shape=(p,), output_size=1, columns=columns)``.
        seed: As in ``screen``.
        **settings: As in ``screen``.

    Returns:
        The network, which takes all p columns; and the selection.

    Example:
        >>> import torch
        >>> from gossamer.models import mlp
        >>> x = torch.randn(100, 60, generator=torch.Generator().manual_seed(0))
        >>> def make(columns):
        ...     return mlp(input_shape=(60,), output_size=1, hidden=[8], columns=columns)
        >>> net, found = on_selected(x, 3 * x[:, 4] + x[:, 8], "regression", make, steps=100)
        >>> found.inputs, net(x).shape
        ((4, 8), torch.Size([100, 1]))
    """
    selection = screen(x, y, task, seed, **settings)
    return make(None if selection.is_whole else selection.inputs), selection


def _arrays(x: Values, y: Values, task: Task) -> tuple[Array, Array]:
    """The table [n, p] and what is to be explained [n, d], each of mean 0 and variance 1."""
    table, target = (
        np.asarray(v.detach().cpu().numpy() if isinstance(v, Tensor) else v) for v in (x, y)
    )
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidData("x", table.shape, "must be a table [rows, columns] with both")
    if target.ndim not in (1, 2) or len(target) != len(table):
        raise InvalidData("y", target.shape, f"must have {len(table)} rows, as x has")
    if task == "classification":
        if target.ndim != 1:
            raise InvalidData("y", target.shape, "must be one class per row")
        classes = np.unique(target)
        outputs = (target[:, None] == classes[None, 1 if len(classes) == 2 else 0 :]) * 1.0
    else:
        outputs = target.reshape(len(target), -1).astype(np.float64)
    table = table.astype(np.float64)
    for name, values in (("x", table), ("y", outputs)):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0].tolist()
            where = f"{name}, row {row}, column {column}"
            raise InvalidData(where, float(values[row, column]), "must be finite")
    centred = outputs - outputs.mean(0)
    spread = centred.std(0)
    return table, centred / np.where(spread > 0.0, spread, 1.0)


def _inclusion(x: Array, outputs: Array, nonlinear: bool, steps: int, seed: int) -> Array:
    """The probability of each column to be in the model of any output, these being independent."""
    features: Array = x
    groups: Groups = np.arange(x.shape[1], dtype=np.int64)
    if nonlinear:
        features, groups = main_effects(x)
    absent = np.ones(x.shape[1])
    for number, y in enumerate(outputs.T):
        own = seed + 7919 * number
        absent *= 1.0 - posterior_inclusion(features, y, groups=groups, steps=steps, seed=own)
    return 1.0 - absent


def _by_knockoffs(
    x: Array, outputs: Array, level: float, seed: int
) -> tuple[NDArray[np.int64], Array]:
    """Of several outputs the union, each at its share of the level."""
    found: set[int] = set()
    share = np.zeros(x.shape[1])
    for number, y in enumerate(outputs.T):
        own = level / outputs.shape[1]
        chosen, won = select_by_knockoffs(x, y, level=own, draws=10, seed=seed + 7919 * number)
        found.update(chosen.tolist())
        share = np.maximum(share, won)
    return np.array(sorted(found), dtype=np.int64), share
