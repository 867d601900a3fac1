"""Reports on finished or running runs, from their files alone: no torch, no model, no data.

``write_report`` makes one self-contained HTML page; ``comparison`` and ``print_comparison`` put
runs side by side in the terminal.
"""

from __future__ import annotations

from gossamer.report.compare import ComparisonRow, comparison
from gossamer.report.html import write_report
from gossamer.report.reader import RunResult, read_run, read_runs
from gossamer.report.terminal import print_comparison

__all__ = [
    "ComparisonRow",
    "RunResult",
    "comparison",
    "print_comparison",
    "read_run",
    "read_runs",
    "write_report",
]
