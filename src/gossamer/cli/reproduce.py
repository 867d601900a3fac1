"""``gossamer reproduce``: an experiment, from its tasks to its verdicts."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from gossamer.cli.output import Output, plain_table
from gossamer.errors import InvalidValue
from gossamer.experiments import EXPERIMENTS, Outcome, TextTable, find_experiment, run_experiment

CHECK_FAILED = 1


def run(args: argparse.Namespace, output: Output) -> int:
    """Run the experiment and print what it found."""
    if args.list:
        _list(output)
        return 0
    if args.key is None:
        raise InvalidValue("KEY/TABLE", None, "must be given", "gossamer reproduce --list")
    experiment = find_experiment(args.key)
    scope = experiment.scope(
        scale=args.scale,
        seed=args.seed,
        repeats=args.repeats,
        data_dir=args.data_dir,
        device=args.device,
    )
    name = "-".join(filter(None, (experiment.key.replace("/", "-"), scope.scale)))
    out = Path(args.out or f"runs/{name}")
    try:
        outcome = run_experiment(experiment, scope, out=out, jobs=args.jobs, only=args.only)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("what is done is saved; the same command goes on") from None
    output.result(
        {**outcome.to_json(), "out": str(out)},
        lambda console: _draw(experiment.title, outcome, out, console),
    )
    return CHECK_FAILED if args.strict and not outcome.ok else 0


def _draw(title: str, outcome: Outcome, out: Path, console: Console) -> None:
    console.print(f"\n{title}\n", style="bold", markup=False)
    for part in outcome.parts:
        if isinstance(part, TextTable):
            table = plain_table(*part.headings, right=tuple(part.headings[part.words :]))
            for row in part.rows:
                table.add_row(*row)
            console.print(table, markup=False)
        else:
            console.print(Markdown(part))
        console.print()
    for verdict in outcome.verdicts:
        console.print(str(verdict), style="green" if verdict.ok else "red", markup=False)
    if outcome.report is not None:
        console.print(f"\nreport: {outcome.report}", markup=False, soft_wrap=True)
    console.print(f"all of it: {out}", markup=False, soft_wrap=True)


def _list(output: Output) -> None:
    known = list(EXPERIMENTS.values())

    def draw(console: Console) -> None:
        table = plain_table("experiment", "scales", "repeats", "what it shows")
        for one in known:
            repeats = ", ".join(str(number) for number in one.repeats.values())
            table.add_row(one.key, ", ".join(one.scales) or "–", repeats or "1", one.title)
        console.print(table, markup=False)

    output.result(
        [
            {"key": o.key, "title": o.title, "scales": list(o.scales), "repeats": dict(o.repeats)}
            for o in known
        ],
        draw,
    )
