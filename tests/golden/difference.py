"""Two recordings side by side: equal to the last bit, or where they first part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from golden.names import canonical, is_optional

ABSENT = "nothing"


@dataclass(frozen=True)
class Step:
    """What one line of a recording says, under the newest names.

    Attributes:
        case: ``method/net/option@engine``.
        step: Label of the step.
        values: Digest of every value, by path.
        fault: Why there are no values, or ``None``.
    """

    case: str
    step: str
    values: dict[str, str]
    fault: str | None


@dataclass(frozen=True)
class Difference:
    """Where two recordings of a case first part, and what each has there."""

    case: str
    step: str
    path: str
    base: str
    present: str

    def __str__(self) -> str:
        where = f"case {self.case}, {self.step}, tensor {self.path}"
        return f"{where}\n    base     {self.base}\n    present  {self.present}"


@dataclass
class Report:
    """The outcome of a comparison.

    Attributes:
        cases: How many were compared.
        values: How many values were equal.
        differences: The first of every case that differs, in the order of the cases.
    """

    cases: int = 0
    values: int = 0
    differences: list[Difference] = field(default_factory=list)


def read(path: Path) -> tuple[dict[str, Any], list[Step]]:
    """The header and all steps of a recording."""
    with path.open(encoding="utf-8") as lines:
        header: dict[str, Any] = json.loads(next(lines))["header"]
        return header, list(_steps(lines))


def _steps(lines: Iterable[str]) -> Iterator[Step]:
    case, state = "", dict[str, str]()
    for line in map(json.loads, lines):
        if line["case"] != case:
            case, state = line["case"], {}
        if "fault" in line:
            yield Step(case, "fault", {}, line["fault"])
        elif "values" in line:
            yield Step(case, line["step"], canonical(line["values"]), None)
        else:
            gone = set(line["gone"])
            state = {p: v for p, v in {**state, **line["changed"]}.items() if p not in gone}
            yield Step(case, line["step"], canonical(state), None)


def compare(base: list[Step], present: list[Step]) -> Report:
    """Every step of every case; of each case the first difference."""
    report, theirs, mine = Report(), _by_case(base), _by_case(present)
    for case in [*theirs, *(c for c in mine if c not in theirs)]:
        report.cases += 1
        found = _first(case, theirs.get(case, []), mine.get(case, []), report)
        if found is not None:
            report.differences.append(found)
    return report


def _by_case(steps: list[Step]) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in steps:
        found.setdefault(step.case, []).append(step)
    return found


def _first(case: str, base: list[Step], present: list[Step], report: Report) -> Difference | None:
    for number in range(max(len(base), len(present))):
        a = base[number] if number < len(base) else Step(case, ABSENT, {}, None)
        b = present[number] if number < len(present) else Step(case, ABSENT, {}, None)
        if a.fault is not None or b.fault is not None:  # also where both have the same one
            return Difference(case, "fault", "none", a.fault or a.step, b.fault or b.step)
        if a.step != b.step:
            return Difference(case, a.step, "none", a.step, b.step)
        for path in [*a.values, *(p for p in b.values if p not in a.values)]:
            one, two = a.values.get(path, ABSENT), b.values.get(path, ABSENT)
            if one == two:
                report.values += 1
            elif not (ABSENT in (one, two) and is_optional(path)):
                return Difference(case, a.step, path, one, two)
    return None
