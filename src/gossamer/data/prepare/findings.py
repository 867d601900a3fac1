"""What was noticed while rows were prepared: cells that cannot be read, and remarks.

Every column tells it of what it meets; who prepares decides what happens. By default the first cell
that cannot be read is an error. Where rows may be bad (``gossamer predict --on-bad-row``), each bad
row keeps its first reason, and the others are prepared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gossamer.errors import InvalidData

_EXAMPLES = 3
_COLUMNS = 5


class Findings:
    """Collects remarks, and bad rows where they are allowed.

    Args:
        strict: Whether the first cell that cannot be read is an error.

    Attributes:
        first_row: Number of the first row that is being prepared, for messages: rows are counted
            from 0, the first row of data, over all batches of a file.
        bad: Reason by row number of the batch, of rows that hold a cell that cannot be read.

    Example:
        >>> findings = Findings(strict=False)
        >>> cells = ["3", "x"]
        >>> findings.fault("age", np.array([1]), cells.__getitem__, "is not a number", "correct it")
        >>> findings.bad
        {1: "column 'age', row 1 = x: is not a number"}
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.first_row = 0
        self.bad: dict[int, str] = {}
        self._said: list[str] = []
        self._told: dict[str, list[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._examples: dict[tuple[str, str], list[str]] = {}

    def begin(self, first_row: int) -> None:
        """A further batch of rows begins at this row of the file; remarks go on."""
        self.first_row = first_row
        self.bad = {}

    def fault(
        self,
        column: str,
        rows: NDArray[np.int64],
        cell: Callable[[int], object],
        rule: str,
        hint: str,
    ) -> None:
        """Cells of a column that cannot be read.

        Args:
            column: Its name.
            rows: Their row numbers in the batch, ascending; none is no fault.
            cell: The cell of a row, ``None`` for one that holds nothing.
            rule: What must hold.
            hint: What to do next.

        Raises:
            InvalidData: Of the first of them, where no row may be bad.
        """
        for row in rows.tolist():
            error = InvalidData(
                f"column {column!r}, row {self.first_row + row}", cell(row), rule, hint
            )
            if self.strict:
                raise error
            short = InvalidData(error.name, error.value, rule)
            self.bad.setdefault(row, str(short))

    def remark(self, column: str, what: str, count: int, examples: tuple[str, ...] = ()) -> None:
        """Something that a reader should know of cells that were read all the same.

        Args:
            column: The column's name; empty for the whole table.
            what: What was done to them, after their number: ``"cells are missing: …"``.
            count: How many; counts of several batches add up.
            examples: Some of them.
        """
        key = (column, what)
        self._counts[key] = self._counts.get(key, 0) + count
        shown = self._examples.setdefault(key, [])
        shown += [one for one in examples if one not in shown][: _EXAMPLES - len(shown)]

    def say(self, sentence: str) -> None:
        """A remark that no count belongs to."""
        if sentence not in self._said:
            self._said.append(sentence)

    def tell(self, column: str, what: str, detail: str = "") -> None:
        """What is done to a column; columns of which the same is told share a sentence.

        Args:
            column: Its name.
            what: What is done; it may begin with ``"warning: "``.
            detail: What is of this column alone.
        """
        self._told.setdefault(what, []).append(f"{column!r}" + (f" ({detail})" if detail else ""))

    def sentences(self) -> tuple[str, ...]:
        """The remarks, one sentence each."""
        said = list(self._said)
        for what, columns in self._told.items():
            more = f" and {len(columns) - _COLUMNS} more" if len(columns) > _COLUMNS else ""
            names = f"column{'s' * (len(columns) > 1)} {', '.join(columns[:_COLUMNS])}{more}"
            warning = "warning: " * what.startswith("warning: ")
            said.append(f"{warning}{names}: {what.removeprefix('warning: ')}")
        for (column, what), count in self._counts.items():
            shown = self._examples[column, what]
            where = f"column {column!r}: " if column else ""
            said.append(f"{where}{count} {what}" + (f" (e.g. {', '.join(shown)})" if shown else ""))
        return tuple(said)

    def warn(self) -> None:
        """Gives every remark as a warning: for a caller who did not ask to collect them."""
        for sentence in self.sentences():
            warnings.warn(sentence, stacklevel=4)
