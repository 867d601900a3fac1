"""A column of numbers: standardised by the training part, missing cells as its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_style import PLAIN, NumberStyle
from gossamer.data.prepare.rules import Missing, TableRules
from gossamer.data.prepare.target import standardisation
from gossamer.data.prepare.texts import Texts, texts_of
from gossamer.data.prepare.values import FILL, Recognised, Values, read_numbers
from gossamer.errors import InvalidData

_NO_OTHER = 1e-9
"""Far under 2/N, what a single other whole number among N would make of that mean."""
MEAN_TOLD = "missing cells are read as the mean, with a feature that says so"
_REFUSED = {
    "error": FILL,
    "drop": "fill it or remove the row: in training such rows were left out",
}


@dataclass(frozen=True)
class NumberColumn:
    """One column of numbers.

    Attributes:
        name: Its name.
        dtype: ``"int"`` or ``"float"``.
        mean: Mean over the training part.
        scale: Standard deviation over the training part, 1 where it is constant.
        indicator: Whether a second feature says which cells were missing: training had some.
        missing: What is done to a missing cell, see ``TableRules``.
        style: How numbers are written in text, as a sample.
    """

    name: str
    dtype: Literal["int", "float"]
    mean: float = 0.0
    scale: float = 1.0
    indicator: bool = False
    missing: Missing = "mean"
    style: str = PLAIN.sample

    def __post_init__(self) -> None:
        if self.dtype not in ("int", "float"):
            raise InvalidData(
                f"column {self.name!r}", self.dtype, "must be int, float, str or date"
            )
        if not (np.isfinite([self.mean, self.scale]).all() and self.scale > 0):
            raise InvalidData(
                f"column {self.name!r}",
                f"mean {self.mean}, scale {self.scale}",
                "needs a finite mean and a positive scale",
                "check the column for huge values",
            )

    @classmethod
    def fit(
        cls,
        name: str,
        values: Values,
        rows: NDArray[np.int64],
        found: Recognised,
        rules: TableRules,
        findings: Findings,
    ) -> NumberColumn:
        """Fits to one column.

        Args:
            name: Its name.
            values: The whole column, [N]: a cell that cannot be read is an error in any part.
            rows: Row numbers of the training part; nothing else enters mean and scale.
            found: What the column holds.
            rules: What is done to missing cells.
            findings: Is told what was done.
        """
        numbers = read_numbers(name, values, findings, found.style)
        if rules.missing == "error":
            refuse_missing(name, np.isnan(numbers), "error", findings)
        present = numbers[rows]
        holes = np.isnan(present)
        count = int(holes.sum())
        if count:
            present = present[~holes]
            findings.tell(name, MEAN_TOLD, f"{count} of {len(rows)} training rows")
        if found.style != PLAIN:
            findings.tell(name, f"numbers are read as {found.style.sample}")
        mean, scale = standardisation(present) if present.size else (0.0, 1.0)
        kind: Literal["int", "float"] = "int" if found.kind == "int" else "float"
        return cls(name, kind, mean, scale, count > 0, rules.missing, found.style.sample)

    def encode(self, values: Values, findings: Findings) -> NDArray[np.float32]:
        """Turns raw values [N] into float32 features [N, 1], or [N, 2] with an indicator."""
        style = NumberStyle.from_sample(self.style)
        given = without_truths(self.name, values) if self._is_of_truths else values
        numbers = read_numbers(self.name, given, findings, style)
        holes = np.isnan(numbers)
        with np.errstate(over="ignore"):
            scaled = ((numbers - self.mean) / self.scale).astype(np.float32)
        findings.fault(
            self.name,
            np.flatnonzero(np.isinf(scaled)),
            lambda row: str(numbers[row]),
            "is too large for float32",
            "correct the cell",
        )
        # A cell that is missing becomes the mean; one that is bad has its row given up anyway.
        scaled[~np.isfinite(scaled)] = 0.0
        if holes.any():
            treat_missing(self.name, holes, self.missing, findings, is_known=self.indicator)
        return np.stack([scaled, holes], axis=1) if self.indicator else scaled[:, None]

    @property
    def _is_of_truths(self) -> bool:
        """Whether training had nothing but 0 and 1: then true and false are these.

        Of whole numbers x(x - 1) is 0 or more, so that its mean, scale² + mean² - mean, is 0 where
        all are 0 or 1, and only there. (A constant has a scale of 1 that says nothing.)
        """
        if self.style != PLAIN.sample or not 0.0 < self.mean < 1.0:
            return False
        return abs(self.scale**2 - self.mean * (1.0 - self.mean)) < _NO_OTHER

    @property
    def features(self) -> list[str]:
        """Names of the features it becomes."""
        return [self.name, f"{self.name} (missing)"] if self.indicator else [self.name]

    @property
    def measured(self) -> list[bool]:
        """Which features are measured numbers, on a scale of their own."""
        return [True, False] if self.indicator else [True]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is as it always was is left out, so that old files stay equal."""
        data: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "mean": self.mean,
            "scale": self.scale,
            "categories": None,
        }
        if self.indicator:
            data["indicator"] = True
        if self.missing != "mean":
            data["missing"] = self.missing
        if self.style != PLAIN.sample:
            data["style"] = self.style
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NumberColumn:
        """Rebuilds from what :meth:`to_json` gives."""
        return cls(
            str(data["name"]),
            data["dtype"],
            float(data["mean"]),
            float(data["scale"]),
            bool(data.get("indicator", False)),
            TableRules(missing=data.get("missing", "mean")).missing,
            NumberStyle.from_sample(data.get("style", PLAIN.sample)).sample,
        )


def without_truths(name: str, values: Values) -> Values:
    """A column of text with 1 for each true and 0 for each false; any other as it is."""
    if values.dtype.kind in "iufb":
        return values
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = texts_of(name, values).cells
    lowered = pc.utf8_lower(cells)
    places = pc.index_in(lowered, value_set=pa.array(["false", "true"]))
    if places.null_count == len(cells):
        return values
    return Texts(pc.coalesce(pc.cast(places, pa.string()), cells))


def treat_missing(
    name: str, holes: NDArray[np.bool_], missing: Missing, findings: Findings, *, is_known: bool
) -> None:
    """Refuses cells that hold nothing, or remarks on them where training had none.

    Args:
        name: The column's name.
        holes: Which cells hold nothing, or could not be read, [N].
        missing: What is done to them.
        findings: Is told.
        is_known: Whether training had missing cells, and a feature for them.
    """
    if findings.bad:
        holes = holes.copy()
        holes[list(findings.bad)] = False
    if missing != "mean":
        refuse_missing(name, holes, missing, findings)
    elif not is_known and holes.any():
        what = "cells are missing, though none of training was; read as its mean"
        findings.remark(name, what, int(holes.sum()))


def refuse_missing(
    name: str, holes: NDArray[np.bool_], missing: Missing, findings: Findings
) -> None:
    """Tells of cells that hold nothing as cells that cannot be read."""
    rows = np.flatnonzero(holes)
    findings.fault(name, rows, lambda _: None, "is missing", _REFUSED[missing])
