"""Reports on runs and saved models, from their files alone: no torch, no model, no data.

``write_report`` makes one self-contained HTML page; ``comparison`` and ``print_comparison`` put
runs side by side in the terminal, ``print_measured`` shows what a run measured beside its part.
"""

from __future__ import annotations

from gossamer.report.compare import ComparisonRow, comparison
from gossamer.report.html import read_results, write_report
from gossamer.report.reader import RunResult, read_run, read_runs
from gossamer.report.terminal import has_own_table, print_comparison, print_measured

__all__ = [
    "ComparisonRow",
    "RunResult",
    "comparison",
    "has_own_table",
    "print_comparison",
    "print_measured",
    "read_results",
    "read_run",
    "read_runs",
    "write_report",
]
