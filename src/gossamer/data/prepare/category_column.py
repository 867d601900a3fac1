"""A column of categories: one feature for each level that training knows well, one for the others.

Levels come from the training part alone. Those of fewer than ``RARE`` training rows join ``other``
where there are at least two of them (and ``LEAST_ROWS`` rows in all), so that what ``other`` means
is learnt; a level that training never saw is read as ``other`` too, or has no feature set where
there is no ``other``. Missing cells are a level of their own where training had some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.prepare.findings import Findings
from gossamer.data.prepare.number_column import refuse_missing
from gossamer.data.prepare.rules import Missing, TableRules, Unknown
from gossamer.data.prepare.texts import texts_of
from gossamer.data.prepare.values import Values
from gossamer.errors import InvalidData

RARE = 3
"""Levels of fewer training rows than this join ``other``."""
LEAST_ROWS = 30
"""In a smaller training part every level is rare, and stays."""
MAX_CATEGORIES = 1000
"""Of more levels the most frequent are kept: what is left is an identifier or free text."""
_TRUTHS = {"true", "false"}
_AS_TRUTHS = {"1": "true", "1.0": "true", "0": "false", "0.0": "false"}


@dataclass(frozen=True)
class CategoryColumn:
    """One column of categories.

    Attributes:
        name: Its name.
        categories: Known levels, sorted.
        other: Whether a feature stands for all other levels: training had some.
        missing_level: Whether a feature stands for missing cells: training had some.
        missing: What is done to a missing cell, see ``TableRules``.
        unknown: What is done to a level that training never saw.
    """

    name: str
    categories: tuple[str, ...]
    other: bool = False
    missing_level: bool = False
    missing: Missing = "mean"
    unknown: Unknown = "other"
    dtype: Literal["str"] = "str"

    @classmethod
    def fit(
        cls,
        name: str,
        values: Values,
        rows: NDArray[np.int64],
        rules: TableRules,
        findings: Findings,
    ) -> CategoryColumn:
        """Fits to one column.

        Args:
            name: Its name.
            values: The whole column, [N].
            rows: Row numbers of the training part, whose levels are the known ones.
            rules: What is done to missing cells and new levels.
            findings: Is told what was done.
        """
        texts = texts_of(name, values)
        if rules.missing == "error":
            refuse_missing(name, texts.missing, "error", findings)
        levels, codes = texts[rows].levels
        counts = _counted(levels, codes)
        kept = dict(counts)
        rare = [level for level, count in counts.items() if count < RARE]
        if rules.unknown == "other" and len(rare) > 1 and len(rows) >= LEAST_ROWS:
            kept = {level: count for level, count in counts.items() if count >= RARE}
            what = f"levels of fewer than {RARE} training rows are read as one level, other"
            if not kept:
                what = (
                    f"warning: no text has {RARE} training rows, as of an id; nothing can be learnt"
                )
            findings.tell(name, what, f"{len(rare)} of {len(counts)} levels")
        if len(kept) > MAX_CATEGORIES and rules.unknown == "error":
            raise InvalidData(
                f"column {name!r}",
                f"{len(kept)} distinct texts",
                f"a category column has at most {MAX_CATEGORIES}",
                "remove the column, or use unknown=other",
            )
        if len(kept) > MAX_CATEGORIES:
            frequent = sorted(kept, key=lambda level: (-kept[level], level))[:MAX_CATEGORIES]
            what = f"the {MAX_CATEGORIES} most frequent levels are kept, the others read as other"
            findings.tell(name, what, f"{len(counts)} levels")
            kept = {level: kept[level] for level in frequent}
        gaps = int((codes < 0).sum())
        if gaps:
            share = f"{gaps} of {len(rows)} training rows"
            findings.tell(name, "missing cells are a level of their own", share)
        return cls(
            name,
            tuple(sorted(kept)),
            len(kept) < len(counts),
            gaps > 0,
            rules.missing,
            rules.unknown,
        )

    def encode(self, values: Values, findings: Findings) -> NDArray[np.float32]:
        """Turns raw values [N] into float32 features [N, levels], at most one of a row set."""
        texts = texts_of(self.name, values)
        levels, codes = texts.levels
        width = len(self.features)
        key = _truth if {c.lower() for c in self.categories} <= _TRUTHS else str
        index = {key(level): i for i, level in enumerate(self.categories)}
        # Place `width` is outside: a row that has it has no feature set.
        places = np.array([index.get(key(level), width) for level in levels], dtype=np.int64)
        strange = np.append(places == width, False)[codes]
        places[places == width] = len(self.categories) if self.other else width
        gap = width - 1 if self.missing_level else width
        place = np.append(places, gap)[codes]  # -1, a missing cell, takes the last
        self._tell(texts.cell, strange, texts.missing, findings)
        encoded = np.zeros((len(place), width + 1), dtype=np.float32)
        encoded[np.arange(len(place)), place] = 1.0
        return encoded[:, :width]

    @property
    def features(self) -> list[str]:
        """Names of the features it becomes."""
        more = ["(other)"] * self.other + ["(missing)"] * self.missing_level
        return [f"{self.name}={level}" for level in (*self.categories, *more)]

    @property
    def measured(self) -> list[bool]:
        """Which features are measured numbers: none."""
        return [False] * len(self.features)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is as it always was is left out, so that old files stay equal."""
        data: dict[str, Any] = {
            "name": self.name,
            "dtype": "str",
            "mean": 0.0,
            "scale": 1.0,
            "categories": list(self.categories),
        }
        plain = CategoryColumn(self.name, self.categories)
        for key in ("other", "missing_level", "missing", "unknown"):
            if getattr(self, key) != getattr(plain, key):
                data[key] = getattr(self, key)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CategoryColumn:
        """Rebuilds from what :meth:`to_json` gives."""
        rules = TableRules(
            missing=data.get("missing", "mean"), unknown=data.get("unknown", "other")
        )
        return cls(
            str(data["name"]),
            tuple(map(str, data["categories"])),
            bool(data.get("other", False)),
            bool(data.get("missing_level", False)),
            rules.missing,
            rules.unknown,
        )

    def _tell(
        self,
        cell: Any,
        strange: NDArray[np.bool_],
        gaps: NDArray[np.bool_],
        findings: Findings,
    ) -> None:
        if gaps.any() and self.missing != "mean":
            refuse_missing(self.name, gaps, self.missing, findings)
        elif gaps.any() and not self.missing_level:
            what = "cells are missing, though none of training was; no level is set"
            findings.remark(self.name, what, int(gaps.sum()))
        rows = np.flatnonzero(strange)
        if self.unknown == "error":
            known = "known: " + ", ".join(self.categories[:12])
            hint = f"{known}; unknown=other reads it as one more level"
            findings.fault(self.name, rows, cell, "is a category that training never saw", hint)
        elif rows.size:
            what = "cells hold a level that training never saw; no level is set"
            if self.other:
                what = f"cells hold a level of fewer than {RARE} training rows; read as other"
            examples = tuple(dict.fromkeys(cell(row) for row in rows[:20].tolist()))
            findings.remark(self.name, what, rows.size, examples)


def _counted(levels: list[str], codes: NDArray[np.int64]) -> dict[str, int]:
    """Rows of every level; spellings of true and false are one where there is nothing else."""
    found = np.bincount(codes[codes >= 0], minlength=len(levels)).tolist()
    counts = {level: count for level, count in zip(levels, found, strict=True) if count}
    if len(counts) <= 2 or not {level.lower() for level in counts} <= _TRUTHS:
        return counts
    merged = {"False": 0, "True": 0}
    for level, count in counts.items():
        merged[level.capitalize()] += count
    return merged


def _truth(level: str) -> str:
    """A level of a column of truths: ``true``, ``True``, ``1`` and ``1.0`` are one."""
    lowered = level.lower()
    return lowered if lowered in _TRUTHS else _AS_TRUTHS.get(level, level)
