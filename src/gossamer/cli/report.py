"""``gossamer report`` and ``gossamer compare``: runs as a page, runs side by side."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.output import Output
from gossamer.report import comparison, print_comparison, read_results, write_report
from gossamer.report.compare import leaderboard

_CONFIG, _REPORT = "config.json", "report.html"


def run_report(args: argparse.Namespace, output: Output) -> int:
    """Write the page and say where."""
    runs = find_runs(args.runs)
    read_results(runs)  # names a folder that is no run before any other is drawn
    path = write_report(runs, args.out or _place(args.runs, runs))
    output.result(
        {"report": str(path), "runs": [str(run) for run in runs]},
        lambda console: console.print(f"report: {path}", markup=False, soft_wrap=True),
    )
    return 0


def find_runs(paths: Sequence[str]) -> list[Path]:
    """Run folders from what a shell may give: a folder of runs stands for the runs in it.

    ``runs/*`` also finds the report that an earlier call wrote there; it is left out.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        configs = [] if (path / _CONFIG).exists() else sorted(path.glob(f"*/{_CONFIG}"))
        if configs:
            found += [config.parent for config in configs]
        elif not (path.name == _REPORT and path.is_file()):
            found.append(path)
    return found


def _place(given: Sequence[str], runs: Sequence[Path]) -> Path:
    """Where a page goes unless told: into the folder of the runs, or beside a saved model."""
    if len(runs) == 1 and runs[0].is_file():
        return runs[0].with_suffix(".html")
    return _shared_folder(given)


def _shared_folder(runs: Sequence[str]) -> Path:
    """The folder that holds all runs: of one run, its own; shown as short as the runs were."""
    shared = Path(os.path.commonpath([Path(run).resolve() for run in runs]))
    here = Path.cwd()
    return shared.relative_to(here) if shared.is_relative_to(here) else shared


def run_compare(args: argparse.Namespace, output: Output) -> int:
    """Print the table, best first."""
    rows = comparison(find_runs(args.runs))
    has_any = any("nll" in row.values for row in rows)
    if args.sort != "none" and (has_any or args.sort != "nll"):
        rows = leaderboard(rows, args.sort)
    output.result([row.to_json() for row in rows], lambda console: print_comparison(rows, console))
    return 0
