"""A column of dates: year, month, weekday and elapsed days as features, never one per date.

Month and weekday are cyclic: sine and cosine of the angle, so that December is beside January. Year
and the days since the first training date are standardised by the training part. A time of day is
a third cycle where training had one. A missing date is the mean: 0 of what is standardised, the
centre of the circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.date_format import FORMATS, Days
from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import MEAN_TOLD, refuse_missing, treat_missing
from gossamer.data.prepare.rules import Missing, TableRules
from gossamer.data.prepare.target import standardisation
from gossamer.data.prepare.values import Recognised, Values, read_days
from gossamer.errors import InvalidData

_PARTS = ("year", "month sin", "month cos", "weekday sin", "weekday cos", "elapsed days")
_CLOCK = ("time sin", "time cos")
_THURSDAY = 3  # 1970-01-01 was one; Monday is 0


@dataclass(frozen=True)
class DateColumn:
    """One column of dates.

    Attributes:
        name: Its name.
        form: How dates are written in text, a name of ``FORMATS``.
        first: The first training date, in days since 1970-01-01.
        year: Mean and scale of the year over the training part.
        elapsed: Mean and scale of the days since ``first``.
        clock: Whether training had times of day.
        indicator: Whether a feature says which cells were missing: training had some.
        missing: What is done to a missing cell, see ``TableRules``.
    """

    name: str
    form: str
    first: float
    year: tuple[float, float]
    elapsed: tuple[float, float]
    clock: bool = False
    indicator: bool = False
    missing: Missing = "mean"
    dtype: Literal["date"] = "date"

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise InvalidData(
                f"column {self.name!r}", self.form, "must be one of: " + ", ".join(FORMATS)
            )
        numbers = [self.first, *self.year, *self.elapsed]
        if not np.isfinite(numbers).all() or min(self.year[1], self.elapsed[1]) <= 0:
            raise InvalidData(
                f"column {self.name!r}", numbers, "needs finite means and positive scales"
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
    ) -> DateColumn:
        """Fits to one column.

        Args:
            name: Its name.
            values: The whole column, [N].
            rows: Row numbers of the training part.
            found: What the column holds.
            rules: What is done to missing cells.
            findings: Is told what was done.
        """
        days = read_days(name, values, findings, found.form)
        if rules.missing == "error":
            refuse_missing(name, np.isnan(days), "error", findings)
        present = days[rows]
        count = int(np.isnan(present).sum())
        present = present[~np.isnan(present)]
        first = float(np.floor(present.min())) if present.size else 0.0
        clock = bool(np.any(present != np.floor(present)))
        year, elapsed = (0.0, 1.0), (0.0, 1.0)
        if present.size:
            year, elapsed = standardisation(_calendar(present)[0]), standardisation(present - first)
        told = "year, month, weekday, elapsed days" + (", time of day" if clock else "")
        findings.tell(name, f"dates as {found.form}, read as {told}")
        if count:
            findings.tell(name, MEAN_TOLD, f"{count} of {len(rows)} training rows")
        return cls(name, found.form, first, year, elapsed, clock, count > 0, rules.missing)

    def encode(self, values: Values, findings: Findings) -> NDArray[np.float32]:
        """Turns raw values [N] into float32 features, [N, len(features)]."""
        days = read_days(self.name, values, findings, self.form)
        holes = np.isnan(days)
        year, month, weekday = _calendar(np.where(holes, 0.0, days))
        parts = [
            (year - self.year[0]) / self.year[1],
            *_circle(month / 12),
            *_circle(weekday / 7),
            (days - self.first - self.elapsed[0]) / self.elapsed[1],
        ]
        if self.clock:
            parts += _circle(days - np.floor(days))
        features = np.stack(parts, axis=1)
        features[holes] = 0.0
        if holes.any():
            treat_missing(self.name, holes, self.missing, findings, is_known=self.indicator)
        if self.indicator:
            features = np.concatenate([features, holes[:, None]], axis=1)
        return features.astype(np.float32)

    @property
    def features(self) -> list[str]:
        """Names of the features it becomes."""
        parts = [*_PARTS, *(_CLOCK if self.clock else ())]
        return [f"{self.name} ({part})" for part in (*parts, *["missing"] * self.indicator)]

    @property
    def measured(self) -> list[bool]:
        """Which features are measured numbers: none, a date has no noise."""
        return [False] * len(self.features)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "dtype": "date",
            "form": self.form,
            "first": self.first,
            "year": list(self.year),
            "elapsed": list(self.elapsed),
            "clock": self.clock,
            "indicator": self.indicator,
            "missing": self.missing,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DateColumn:
        """Rebuilds from what :meth:`to_json` gives."""
        year, elapsed = data["year"], data["elapsed"]
        return cls(
            str(data["name"]),
            str(data["form"]),
            float(data["first"]),
            (float(year[0]), float(year[1])),
            (float(elapsed[0]), float(elapsed[1])),
            bool(data["clock"]),
            bool(data["indicator"]),
            TableRules(missing=data["missing"]).missing,
        )


def _calendar(days: Days) -> tuple[Days, Days, Days]:
    """Year, month (January is 0) and weekday (Monday is 0) of days since 1970-01-01."""
    whole = np.floor(days).astype(np.int64)
    months = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    weekday = (whole + _THURSDAY) % 7
    return (
        (1970 + months // 12).astype(np.float64),
        (months % 12).astype(np.float64),
        weekday.astype(np.float64),
    )


def _circle(turns: Days) -> list[Days]:
    return [np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)]
