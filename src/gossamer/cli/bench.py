"""``gossamer bench kernels|step|...``: what the native engine is worth, measured."""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

import torch
from rich.console import Console

from gossamer.bench.result import BenchResult, Row
from gossamer.bench.settings import Settings
from gossamer.bench.suite import run_suite
from gossamer.cli.output import Output, plain_table
from gossamer.cli.parser import STDOUT
from gossamer.errors import InvalidValue
from gossamer.files import write_json

_STYLES = {"met": "green", "MISSED": "red"}


def run(args: argparse.Namespace, output: Output) -> int:
    """Run a suite and print what it found."""
    settings = Settings(args.quick, _threads(args.threads), args.rounds)
    file = None if args.json in (None, STDOUT) else Path(args.json)
    if file is not None:
        _check(file)
    result = run_suite(args.suite, settings, output.say)
    if file is not None:
        write_json(file, result.to_json())
    output.result(result.to_json(), lambda console: _draw(result, file, console))
    return 0


def _threads(text: str | None) -> tuple[int, ...]:
    if text is None:
        return (torch.get_num_threads(),)
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        rule = "must be whole numbers with commas between"
        raise InvalidValue("threads", text, rule, "write e.g. --threads 1,2") from None


def _check(file: Path) -> None:
    """Raise now, not after the measurement, where the file cannot be written."""
    if file.is_dir():
        raise InvalidValue("json", str(file), "is a folder", "name a file")
    if not file.parent.is_dir():
        raise InvalidValue("json", str(file), "lies in a folder that does not exist")


def _draw(result: BenchResult, file: Path | None, console: Console) -> None:
    machine = result.machine
    console.print(
        f"{machine['processor'] or machine['machine']}, {machine['cores']} cores, "
        f"{machine['isa']}, torch {machine['torch']}",
        style="dim",
        markup=False,
    )
    for threads, rows in groupby(result.rows, key=lambda row: row.threads):
        console.print(f"\n{result.suite}, threads: {threads}\n", style="bold", markup=False)
        _draw_rows(list(rows), console)
    _draw_findings(result, console)
    load, cores = machine["load"], machine["cores"]
    if load is not None and load > 0.5 * cores:
        console.print(
            f"\nload {load:.1f} on {cores} cores at the start: the machine was busy, "
            "the times are not to be trusted",
            style="yellow",
        )
    if result.quick:
        console.print("\n--quick: small shapes, one round; nothing is judged", style="yellow")
    if file is not None:
        console.print(f"\njson: {file}", markup=False, soft_wrap=True)


def _draw_rows(rows: list[Row], console: Console) -> None:
    is_time = rows[0].unit == "ms"
    heading = "median ms" if is_time else "MB"
    right = ("sparsity", heading, "ratio")
    table = plain_table("case", "sparsity", "contender", heading, "ratio", "against", right=right)
    for case, members in groupby(rows, key=lambda row: row.case):
        for place, row in enumerate(members):
            table.add_row(
                case if place == 0 else "",
                "dense" if row.sparsity is None else f"{100 * row.sparsity:g} %",
                row.contender,
                f"{row.value:,.2f}",
                f"{row.ratio:.2f}x",
                row.baseline,
            )
    console.print(table, markup=False)


def _draw_findings(result: BenchResult, console: Console) -> None:
    table = plain_table("finding", "threads", "found", "target", "verdict", "", right=("found",))
    for found in result.findings:
        target = found.target
        bound = "" if target is None else f"{target.sign} {found.shown(target.bound)}"
        verdict = found.verdict(quick=result.quick)
        shown = found.shown(found.value)
        row = (found.name, str(found.threads), shown, bound, verdict, found.note)
        table.add_row(*row, style=_STYLES.get(verdict))
    console.print()
    console.print(table, markup=False)
