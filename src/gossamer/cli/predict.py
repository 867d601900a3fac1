"""``gossamer predict``: a run's answers for the rows of a file, with their uncertainty.

The file is read, answered and written in batches, so memory does not grow with its rows. A batch is
a whole number of the blocks in which a posterior predicts: answers are the bits of the whole file.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gossamer.cli import settings
from gossamer.cli.output import Output, plain_table
from gossamer.data import Findings, Preparation, input_batches
from gossamer.errors import InvalidValue, UnknownName
from gossamer.files import written_whole
from gossamer.prediction.passes import ROW_BLOCK
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.table import LEVEL
from gossamer.train import load_run

_SHOWN_ROWS, _SHOWN_COLUMNS = 20, 12
_BATCH_ROWS = 16 * ROW_BLOCK
_TOLD_ROWS = 5

Answers = dict[str, list[Any]]
"""Columns of answers, one value per row; ``None`` where a row has none."""

_BAD_ROWS = ("error", "skip", "abstain")


def run(args: argparse.Namespace, output: Output) -> int:
    """Predict and write, print or draw the answers."""
    out = None if args.out is None else Path(args.out)
    _check_out(out, args)
    if args.on_bad_row not in _BAD_ROWS:
        rule = f"must be one of: {', '.join(_BAD_ROWS)}"
        raise InvalidValue("on-bad-row", args.on_bad_row, rule)
    loaded = load_run(args.path, device=args.device)
    if loaded.notice is not None:
        output.say(loaded.notice)
    given = [] if args.num_samples is None else [f"num_samples={args.num_samples}"]
    config = settings.apply(loaded.config, given)
    findings = Findings(strict=args.on_bad_row == "error")
    level = _level(args.coverage, loaded.preparation)
    batches = _answers(loaded.posterior, args, config.num_samples, config.seed, level, findings)
    about: dict[str, Any] = {"run": args.path, "file": args.file}
    if level is not None:
        about["interval_level"] = level
    if out is not None:
        count = _write(out, batches)
        about |= {"count": count, "remarks": list(findings.sentences()), "out": str(out)}
        _say(findings, output)
        output.result(about, lambda console: _tell(console, f"{count} answers: {out}"))
    elif output.as_json or sys.stdout.isatty():
        most = None if output.as_json else _SHOWN_ROWS
        columns, count = _gathered(batches, most)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        about |= {"count": count, "remarks": list(findings.sentences()), "rows": rows}
        _say(findings, output)
        output.result(about, lambda console: _draw(columns, count, console))
    else:
        for number, columns in enumerate(batches):
            sys.stdout.write(_as_csv(columns, names=number == 0))
        _say(findings, output)
    return 0


def _level(text: str | None, preparation: Preparation) -> float | None:
    """The level of intervals, or of sets of labels, which are there if it was asked for."""
    if text is None:
        return LEVEL if preparation.task == "regression" else None
    try:
        level = float(text)
    except ValueError:
        level = 0.0
    if not 0.0 < level < 1.0:
        raise InvalidValue("coverage", text, "must lie between 0 and 1", "0.9 is usual")
    return level


def _answers(
    posterior: Posterior,
    args: argparse.Namespace,
    num_samples: int,
    seed: int,
    level: float | None,
    findings: Findings,
) -> Iterator[Answers]:
    """The answers of every batch of the file."""
    first = 0
    for raw in input_batches(args.file, _BATCH_ROWS, findings):
        findings.begin(first)
        kept, asked = _kept(raw, args.keep, posterior.preparation)
        found = posterior.predict_table(
            asked, num_samples, seed=seed, level=level, findings=findings
        )
        columns: Answers = {name: list(values) for name, values in found.items()}
        count = len(next(iter(columns.values())))
        if args.on_bad_row == "abstain":
            columns = _abstained(columns, findings.bad, count)
        columns = _beside(kept, columns)
        if args.on_bad_row == "skip":
            columns = _skipped(columns, findings.bad, first, count)
        if findings.bad:
            done = "left out" if args.on_bad_row == "skip" else "without an answer"
            some = tuple(str(first + row) for row in sorted(findings.bad)[:_TOLD_ROWS])
            what = f"rows with a cell that cannot be read are {done}"
            findings.remark("", what, len(findings.bad), tuple(f"row {row}" for row in some))
        first += count
        yield columns


def _kept(raw: Any, names: Sequence[str], preparation: Preparation | None) -> tuple[Answers, Any]:
    """Cells of the columns that are to be kept, and the rows without what training had not."""
    if not names:
        return {}, raw
    if not isinstance(raw, Mapping):
        raise InvalidValue("keep", names[0], "is for tables: these inputs have no columns")
    for name in names:
        if name not in raw:
            raise UnknownName("column to keep", name, list(raw))
    inputs = None if preparation is None else preparation.inputs
    known = inputs.names if inputs is not None and inputs.kind == "table" else []
    asked = {name: values for name, values in raw.items() if name in known or name not in names}
    # As text, which is written with every digit that it has; an answer is written with nine.
    cells = {name: raw[name].tolist() for name in names}
    return {
        name: [str(cell) if isinstance(cell, float) else cell for cell in column]
        for name, column in cells.items()
    }, asked


def _beside(kept: Answers, answers: Answers) -> Answers:
    """Columns that are kept, then those of the answers."""
    for name in kept:
        if name in answers or name == "row":
            rule, hint = "is the name of a column of the answers", "rename it in the file"
            raise InvalidValue("keep", name, rule, hint)
    return {**kept, **answers}


def _abstained(columns: Answers, bad: dict[int, str], count: int) -> Answers:
    """Answers with empty cells in bad rows, and the reason for them."""
    for values in columns.values():
        for row in bad:
            values[row] = None
    return {**columns, "reason": [bad.get(row, "") for row in range(count)]}


def _skipped(columns: Answers, bad: dict[int, str], first: int, count: int) -> Answers:
    """Answers without bad rows, and which rows of the file they are for."""
    kept = [row for row in range(count) if row not in bad]
    chosen = {name: [values[row] for row in kept] for name, values in columns.items()}
    return {"row": [first + row for row in kept], **chosen}


def _check_out(out: Path | None, args: argparse.Namespace) -> None:
    if out is None:
        return
    if out.suffix.lower() != ".csv":
        raise InvalidValue("out", str(out), "must end in .csv", "e.g. answers.csv")
    if out.exists() and (not args.force or not out.is_file()):
        raise InvalidValue("out", str(out), "exists", "give --force to replace it, or another name")
    if out.exists() and out.samefile(args.file):
        raise InvalidValue("out", str(out), "is the file to predict for", "give another name")


def _write(out: Path, batches: Iterator[Answers]) -> int:
    """Writes the answers as they come; the file is there when all of them are."""
    # The first batch before the folder is made: most mistakes are in its columns.
    ready = next(batches, None)
    out.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with written_whole(out) as file:
        while ready is not None:
            file.write(_as_csv(ready, names=count == 0).encode())
            count += len(next(iter(ready.values())))
            ready = next(batches, None)
    return count


def _gathered(batches: Iterator[Answers], most: int | None) -> tuple[Answers, int]:
    """The first answers, at most so many, and how many there are in all."""
    kept: Answers = {}
    count = 0
    for columns in batches:
        for name, values in columns.items():
            room = None if most is None else most - count
            kept.setdefault(name, []).extend(values if room is None else values[: max(room, 0)])
        count += len(next(iter(columns.values())))
    return kept, count


def _as_csv(columns: Answers, *, names: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if names:
        writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    # Nine digits give a float32 back exactly.
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _draw(columns: Answers, count: int, console: Console) -> None:
    names = list(columns)
    if len(names) > _SHOWN_COLUMNS:  # many classes: the label and the uncertainty say most
        names = [name for name in names if not name.startswith("prob_")]
    words = {"label", "reason"}
    table = plain_table("row", *names, right=("row", *(n for n in names if n not in words)))
    for row, cells in enumerate(zip(*(columns[name] for name in names), strict=True)):
        table.add_row(str(row), *(f"{c:.4g}" if isinstance(c, float) else _cell(c) for c in cells))
    console.print(table, markup=False)
    if count > _SHOWN_ROWS:
        _tell(console, f"… {count - _SHOWN_ROWS} more rows; all of them with --out FILE.csv")


def _say(findings: Findings, output: Output) -> None:
    for sentence in findings.sentences():
        output.say(sentence)


def _tell(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
