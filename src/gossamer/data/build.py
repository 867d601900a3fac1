"""From what a reader found to a DataSet: cut validation, fit the preparation, apply it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.data.dataset import DataSet, Rows
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.leaks import leak_notes
from gossamer.data.prepare.preparation import Preparation, fit_preparation
from gossamer.data.prepare.rules import DEFAULT_RULES, TableRules
from gossamer.data.prepare.table_input import Columns, TableInput, by_name, complete_rows
from gossamer.data.prepare.target import Task, check_target, infer_task, labels_of
from gossamer.data.split import RowNumbers, Split, cut_validation, shuffle_train
from gossamer.errors import InvalidData


@dataclass(frozen=True, eq=False)
class RawData:
    """What a reader returns: all rows together, unprepared, and which of them belong to which part.

    Attributes:
        name: Name or path.
        x: Columns by name, or an array: [N, D], [N, H, W], [N, C, H, W] or [N, H, W, C].
        y: Raw target, [N] or [N, D].
        train: Row numbers of the training part, from which validation is cut.
        test: Row numbers of the test part; ``None`` for a set without one.
        validation: Row numbers of the validation part, where the set brings its own.
        weight: How much each row counts, [N]; read for the training part and for a validation part
            that is cut from it.
        task: The task, or ``None`` to infer it.
        target: The target's name.
        label_names: Names of the classes where the labels are known to be 0 .. C-1.
        divisor: For images, the largest raw value; ``None`` to go by the dtype.
        normalise: For images, whether to standardise per channel.
        augment: Name of the augmentation that suits the set.
        y_parts: Name and length of the arrays that ``y`` was joined from, for messages; one by
            default.
        notes: What was inferred rather than told.
    """

    name: str
    x: Columns | NDArray[Any]
    y: NDArray[Any]
    train: RowNumbers
    test: RowNumbers | None = None
    validation: RowNumbers | None = None
    weight: NDArray[np.float64] | None = None
    task: Task | None = None
    target: str = "y"
    label_names: tuple[str, ...] | None = None
    divisor: float | None = None
    normalise: bool = False
    augment: str | None = None
    y_parts: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def chosen_task(raw: RawData, task: Task | None = None) -> tuple[Task, tuple[str, ...]]:
    """The task, told or inferred; and the reason where it was inferred."""
    told = task or raw.task
    if told is not None:
        return told, ()
    is_image = isinstance(raw.x, np.ndarray) and raw.x.ndim > 2
    inferred, why = infer_task(raw.target, raw.y, images=is_image)
    return inferred, (why,)


def build_dataset(
    raw: RawData,
    *,
    task: Task | None = None,
    validation_fraction: float = 0.1,
    seed: int = 0,
    limit_train: int | None = None,
    rules: TableRules = DEFAULT_RULES,
    counts: bool = False,
) -> DataSet:
    """Makes a DataSet.

    The validation part is cut from the training part with the seed; then scales and levels are
    fitted to what is left of the training part, and to nothing else.

    Args:
        raw: What the reader found.
        task: Overrides the reader's; inferred where neither says.
        validation_fraction: Share of validation among training and validation, in [0, 1), where 0
            leaves the part out; not used where the set brings its own validation part.
        seed: Decides which rows validate, and which ones train under ``limit_train``.
        limit_train: At most this many training examples.
        rules: For tables: what is done to cells that are missing, new or ambiguous.
        counts: Targets of a regression are counts: whole numbers from 0, which are not scaled.
    """
    chosen, why = chosen_task(raw, task)
    notes = (*raw.notes, *why)
    y_parts = raw.y_parts or ((raw.target, len(raw.y)),)
    starts = np.cumsum([0] + [length for _, length in y_parts])
    for (shown, length), start in zip(y_parts, starts, strict=False):
        check_target(shown, raw.y[start : start + length], chosen, counts=counts)

    split = _split(raw, chosen, validation_fraction, seed, limit_train)
    test = raw.test
    labelled = raw.train if raw.validation is None else np.concatenate([raw.train, raw.validation])
    if rules.missing == "drop" and _is_table(raw.x):
        whole = complete_rows(by_name(raw.x))
        used = np.concatenate([rows for rows in (*split, test) if rows is not None])
        split = Split(*(_kept(raw.name, rows, whole) for rows in split))
        test, labelled = _kept(raw.name, test, whole), labelled[whole[labelled]]
        lost = int((~whole[used]).sum())
        if lost:
            notes += (f"{lost} of {len(used)} rows have missing cells and are left out",)
    told = Findings()
    preparation = fit_preparation(
        raw.x,
        raw.y,
        train=split.train,
        labelled=labelled,
        task=chosen,
        target=raw.target,
        label_names=raw.label_names if chosen == "classification" else None,
        divisor=raw.divisor,
        normalise=raw.normalise,
        rules=rules,
        findings=told,
        counts=counts,
    )
    y = torch.cat(
        [
            preparation.target.prepare(raw.y[start : start + length], shown)
            for (shown, length), start in zip(y_parts, starts, strict=False)
        ]
    )

    # Part by part, so that of a large image set only one float32 copy is ever made.
    def part(
        rows: RowNumbers, findings: Findings, weight: NDArray[np.float64] | None = None
    ) -> Rows:
        x = preparation.prepare(_rows_of(raw.x, rows), findings)
        return Rows(x, y[rows], None if weight is None else torch.from_numpy(weight[rows]).float())

    cut_weight = raw.weight if raw.validation is None else None
    # What there is to say of the training part was said when it was fitted.
    train, held = part(split.train, Findings(), raw.weight), Findings()
    validation = None if split.validation is None else part(split.validation, held, cut_weight)
    tested = None if test is None else part(test, held)
    notes += told.sentences()
    notes += tuple(f"validation and test: {sentence}" for sentence in held.sentences())
    notes += _leaks(preparation, train)
    return DataSet(
        raw.name,
        chosen,
        train,
        replace(preparation, notes=notes),
        validation,
        tested,
        raw.augment,
        notes,
    )


def _leaks(preparation: Preparation, train: Rows) -> tuple[str, ...]:
    if not isinstance(preparation.inputs, TableInput):
        return ()
    return leak_notes(preparation.inputs, train.x, train.y, preparation.target_name)


def _is_table(x: Columns | NDArray[Any]) -> bool:
    return not isinstance(x, np.ndarray) or x.ndim == 2


def _kept(name: str, rows: RowNumbers | None, whole: NDArray[np.bool_]) -> Any:
    if rows is None:
        return None
    kept = rows[whole[rows]]
    if len(kept) == 0:
        raise InvalidData(
            f"a part of {name}", None, "has a missing cell in every row", "use missing=mean"
        )
    return kept


def _split(raw: RawData, task: Task, fraction: float, seed: int, limit_train: int | None) -> Split:
    for part, rows in (("training", raw.train), ("test", raw.test)):
        if rows is not None and len(rows) == 0:
            raise InvalidData(f"{part} part of {raw.name}", None, "holds no example", "add some")
    if raw.validation is not None:
        return Split(shuffle_train(raw.train, seed=seed, limit_train=limit_train), raw.validation)
    strata = labels_of(raw.target, raw.y)[raw.train] if task == "classification" else None
    return cut_validation(raw.train, strata, fraction=fraction, seed=seed, limit_train=limit_train)


def _rows_of(x: Columns | NDArray[Any], rows: RowNumbers) -> Columns | NDArray[Any]:
    if isinstance(x, np.ndarray):
        return x[rows]
    return {name: values[rows] for name, values in x.items()}
