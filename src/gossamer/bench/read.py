"""``bench read``: a CSV file of numbers, as pandas reads it and as a training run takes it in.

Times are of the processor: they hang less on what else a machine does, and on the disk.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import numpy as np

from gossamer.bench import targets
from gossamer.bench.result import Entry, Finding, Measured, Row, timed_rows
from gossamer.bench.rivals import is_installed
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.timing import Effort, Run, Timing, interleave
from gossamer.data import load
from gossamer.data.prepare.values import as_numbers
from gossamer.data.readers.table_files import read_columns

USUAL = Effort(rounds=5)
SHAPE, QUICK_SHAPE = (100_000, 50), (200, 3)
KINDS = {"decimal": "%.6f", "whole": "%d"}

PANDAS = Entry("pandas.read_csv")
CELLS = Entry("gossamer, cells")
NUMBERS = Entry("gossamer, numbers")
LOAD = Entry("gossamer, load")
"""Rows as text; read as numbers; split, prepared and looked through for leaks."""


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Both kinds of numbers at one number of threads."""
    rows: list[Row] = []
    findings: list[Finding] = []
    count, columns = QUICK_SHAPE if settings.quick else SHAPE
    for kind, form in KINDS.items():
        case = f"{count:,} x {columns} {kind} numbers, processor time"
        tell(f"{case}, {threads} thread(s)")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            _write(path, count, columns, form)
            timings = interleave(_runs(path), settings.effort(USUAL), clock=time.process_time)
        rows += timed_rows(case, timings, PANDAS if PANDAS in timings else CELLS, threads)
        for entry in (NUMBERS, LOAD):
            findings.append(_finding(f"{entry.contender}, {kind}", timings, entry, threads))
    return Measured(tuple(rows), tuple(findings))


def _write(path: Path, count: int, columns: int, form: str) -> None:
    """Columns c0, c1, … and last the target y, which is the first of them with noise."""
    draw = np.random.default_rng(0)
    x = 100.0 * draw.normal(size=(count, columns))
    y = x[:, :1] + 100.0 * draw.normal(size=(count, 1))
    names = ",".join([*(f"c{place}" for place in range(columns)), "y"])
    np.savetxt(path, np.hstack([x, y]), fmt=form, delimiter=",", header=names, comments="")


def _runs(path: Path) -> dict[Entry, Run]:
    runs: dict[Entry, Run] = {
        CELLS: lambda: read_columns(path),
        NUMBERS: lambda: [as_numbers(name, cells) for name, cells in read_columns(path).items()],
        LOAD: lambda: load(path, target="y", task="regression"),
    }
    if is_installed("pandas"):
        import pandas as pd

        runs = {PANDAS: lambda: pd.read_csv(path), **runs}
    return runs


def _finding(name: str, timings: dict[Entry, Timing], entry: Entry, threads: int) -> Finding:
    told = f"{name}: times of pandas.read_csv"
    if PANDAS not in timings:
        note = "pandas is not installed"
        return Finding(told, threads, math.nan, target=targets.READ, note=note)
    value = timings[entry].median / timings[PANDAS].median
    return Finding(told, threads, value, target=targets.READ)
