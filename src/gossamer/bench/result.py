"""What a benchmark found: rows, findings beside their targets, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gossamer.bench.timing import Timing

Unit = Literal["ms", "MB"]
Scale = Literal["x", "%", "MB"]

MEGABYTE = 1e6


@dataclass(frozen=True)
class Entry:
    """Who is measured: a contender, and the sparsity it runs at (``None``: it is dense)."""

    contender: str
    sparsity: float | None = None


@dataclass(frozen=True)
class Row:
    """One contender in one case.

    Attributes:
        case: What is computed.
        contender: Who computes it.
        sparsity: Share of weights removed; ``None`` for dense ones.
        threads: Threads of torch.
        value: Median time, or bytes, in ``unit``.
        best: The shortest time; ``None`` for sizes.
        unit: ``ms`` or ``MB``.
        baseline: The contender that ``ratio`` refers to.
        ratio: Value of the baseline over this one: above 1 is faster, or smaller.
    """

    case: str
    contender: str
    sparsity: float | None
    threads: int
    value: float
    best: float | None
    unit: Unit
    baseline: str
    ratio: float


@dataclass(frozen=True)
class Target:
    """A bound that the engine is meant to keep."""

    sign: Literal["≥", "≤"]
    bound: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps the bound; NaN never does."""
        return value >= self.bound if self.sign == "≥" else value <= self.bound


@dataclass(frozen=True)
class Finding:
    """A figure drawn from the rows.

    Attributes:
        name: What it is.
        threads: Threads of torch.
        value: The figure; NaN where it was not measured.
        scale: ``x`` for ratios, ``%`` for shares (of 1), ``MB``.
        target: The bound, where there is one.
        note: Why a figure is missing, or what to know about it.
    """

    name: str
    threads: int
    value: float
    scale: Scale = "x"
    target: Target | None = None
    note: str = ""

    def verdict(self, *, quick: bool) -> str:
        """In words; ``met`` only where a target was measured at full size and holds."""
        if math.isnan(self.value):
            return "not measured"
        if self.target is None:
            return ""
        if quick:
            return "not judged"
        return "met" if self.target.holds(self.value) else "MISSED"

    def shown(self, value: float) -> str:
        """A value of this finding with its unit."""
        if math.isnan(value):
            return "–"
        if self.scale == "%":
            return f"{100 * value:.1f} %"
        return f"{value:.1f} MB" if self.scale == "MB" else f"{value:.2f}x"


@dataclass(frozen=True)
class Measured:
    """Rows and findings of one suite at one number of threads."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class BenchResult:
    """All that a benchmark found.

    Attributes:
        suite: Its name.
        quick: Whether the shapes were small: then nothing is judged.
        machine: Processor, load, instruction set, versions.
        rows: Every contender in every case.
        findings: What follows from them.
    """

    suite: str
    quick: bool
    machine: Mapping[str, Any]
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "suite": self.suite,
            "quick": self.quick,
            "machine": dict(self.machine),
            "threads": sorted({row.threads for row in self.rows}),
            "rows": [asdict(row) for row in self.rows],
            "findings": [
                {**asdict(found), "verdict": found.verdict(quick=self.quick)}
                for found in self.findings
            ],
        }


def fastest(timings: Mapping[Entry, Timing], *contenders: str) -> Entry:
    """The fastest of the contenders of these names."""
    found = [entry for entry in timings if entry.contender in contenders]
    return min(found, key=lambda entry: timings[entry].median)


def timed_rows(
    case: str, timings: Mapping[Entry, Timing], baseline: Entry, threads: int
) -> list[Row]:
    """The rows of one interleaved measurement."""
    return [
        Row(
            case=case,
            contender=entry.contender,
            sparsity=entry.sparsity,
            threads=threads,
            value=1e3 * timing.median,
            best=1e3 * timing.best,
            unit="ms",
            baseline=baseline.contender,
            ratio=timings[baseline].median / timing.median,
        )
        for entry, timing in timings.items()
    ]


def sized_rows(case: str, sizes: Mapping[Entry, float], baseline: Entry, threads: int) -> list[Row]:
    """Rows of bytes."""
    return [
        Row(
            case=case,
            contender=entry.contender,
            sparsity=entry.sparsity,
            threads=threads,
            value=size / MEGABYTE,
            best=None,
            unit="MB",
            baseline=baseline.contender,
            ratio=sizes[baseline] / size if size > 0 else math.nan,
        )
        for entry, size in sizes.items()
    ]
