"""``gossamer reproduce``: an experiment, from its runs to its verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from gossamer.cli.output import Output, plain_table
from gossamer.cli.parser import Parser, add_data_dir, set_run
from gossamer.errors import InvalidValue
from gossamer.experiments import (
    STUDIES,
    SURVEYS,
    TABLES,
    Study,
    Survey,
    SurveyResult,
    Table,
    TableResult,
    Verdict,
    find_experiment,
    run_study,
    run_survey,
    run_table,
)

CHECK_FAILED = 1


def add_reproduce(parser: Parser) -> None:
    """Give the command its options."""
    parser.add_argument("key", nargs="?", metavar="KEY/TABLE", help="see --list")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--scale", metavar="SCALE", help="small (default) or paper")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="first seed (default 0)")
    parser.add_argument("--repeats", type=int, metavar="N", help="seeds per row")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time, each with its share of the cores"
    )
    add_data_dir(parser)
    parser.add_argument("--out", metavar="DIR", help="default: runs/KEY-TABLE-SCALE")
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 where a check does not hold"
    )
    set_run(parser, run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Run the experiment and print what it found."""
    if args.list:
        _list(output)
        return 0
    if args.key is None:
        raise InvalidValue("KEY/TABLE", None, "must be given", "gossamer reproduce --list")
    found = find_experiment(args.key)
    try:
        if isinstance(found, Table):
            return _run_table(found, args, output)
        if isinstance(found, Survey):
            return _run_survey(found, args, output)
        return _run_study(found, args, output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is done is saved; the same command goes on") from None


def _run_table(table: Table, args: argparse.Namespace, output: Output) -> int:
    scale = args.scale or table.scales[0]
    out = Path(args.out or f"runs/{table.key.replace('/', '-')}-{scale}")
    result = run_table(
        table,
        out=out,
        scale=scale,
        seed=args.seed,
        repeats=args.repeats,
        jobs=args.jobs,
        data_dir=args.data_dir,
    )
    output.result({**result.to_json(), "out": str(out)}, lambda console: _draw(result, console))
    return CHECK_FAILED if args.strict and not result.ok else 0


def _run_survey(survey: Survey, args: argparse.Namespace, output: Output) -> int:
    scale = args.scale or survey.scales[0]
    out = Path(args.out or f"runs/{survey.key.replace('/', '-')}-{scale}")
    result = run_survey(
        survey, out=out, scale=scale, seed=args.seed, repeats=args.repeats, jobs=args.jobs
    )
    output.result(
        {**result.to_json(), "out": str(out)}, lambda console: _draw_survey(result, out, console)
    )
    return CHECK_FAILED if args.strict and not result.ok else 0


def _run_study(study: Study, args: argparse.Namespace, output: Output) -> int:
    for name in ("scale", "repeats", "jobs"):
        value = getattr(args, name)
        if value is not None:
            raise InvalidValue(name, value, f"{study.key} has no such choice", "leave it out")
    out = Path(args.out or f"runs/{study.key.replace('/', '-')}")
    findings = run_study(study, out=out, seed=args.seed, data_dir=args.data_dir, notice=output.say)
    output.result(
        {"study": study.key, "out": str(out), **findings.values},
        lambda console: console.print(Markdown(findings.markdown)),
    )
    return 0


def _draw(result: TableResult, console: Console) -> None:
    console.print(f"\n{result.table.title}\n", style="bold", markup=False)
    for headings, rows in (result.cells(), result.reference_cells()):
        if rows:
            table = plain_table(*headings, right=tuple(headings[2:]))
            for row in rows:
                table.add_row(*row)
            console.print(table, markup=False)
            console.print()
    _draw_verdicts(result.verdicts, console)
    if result.report is not None:
        console.print(f"\nreport: {result.report}", markup=False, soft_wrap=True)


def _draw_survey(result: SurveyResult, out: Path, console: Console) -> None:
    console.print(f"\n{result.survey.title}\n", style="bold", markup=False)
    console.print(Markdown(result.conclusion.markdown))
    console.print()
    _draw_verdicts(result.verdicts, console)
    console.print(f"\nrows and table: {out}", markup=False, soft_wrap=True)


def _draw_verdicts(verdicts: Sequence[Verdict], console: Console) -> None:
    for verdict in verdicts:
        console.print(str(verdict), style="green" if verdict.ok else "red", markup=False)


def _list(output: Output) -> None:
    tables = [
        {"key": one.key, "title": one.title, "scales": list(one.scales), "repeats": one.repeats}
        for one in TABLES.values()
    ]
    surveys = [
        {
            "key": one.key,
            "title": one.title,
            "scales": list(one.scales),
            "repeats": one.default_repeats(one.scales[0]),
        }
        for one in SURVEYS.values()
    ]
    studies = [{"key": one.key, "title": one.title} for one in STUDIES.values()]

    def draw(console: Console) -> None:
        table = plain_table("experiment", "scales", "seeds", "what it shows")
        for one in TABLES.values():
            table.add_row(one.key, ", ".join(one.scales), str(one.repeats), one.title)
        for survey in SURVEYS.values():
            seeds = ", ".join(str(survey.default_repeats(scale)) for scale in survey.scales)
            table.add_row(survey.key, ", ".join(survey.scales), seeds, survey.title)
        for study in STUDIES.values():
            table.add_row(study.key, "–", "1", study.title)
        console.print(table, markup=False)

    output.result([*tables, *surveys, *studies], draw)
