"""``gossamer predict``: a run's answers for the rows of a file, with their uncertainty."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from gossamer.cli import settings
from gossamer.cli.output import Output, plain_table
from gossamer.cli.parser import Parser, add_device, set_run
from gossamer.data import load_inputs
from gossamer.errors import InvalidValue
from gossamer.files import write_whole
from gossamer.prediction.table import LEVEL, Columns
from gossamer.train import load_run

_SHOWN_ROWS, _SHOWN_COLUMNS = 20, 12

_EPILOG = f"""\
The file is prepared as the run's training data were; its columns are matched by name, in any order.
Classes: label, prob_<name>, entropy, mutual_information and energy (nats). Numbers, in the target's
own units: mean, std, epistemic, aleatoric, and lower and upper of the {LEVEL:.0%} interval.
Without --out the answers are shown on a terminal, or written as csv where stdout is none.
"""


def add_predict(parser: Parser) -> None:
    """Give the command its options."""
    parser.epilog = _EPILOG
    parser.add_argument("path", metavar="RUN", help="run folder")
    parser.add_argument("file", metavar="FILE", help=".csv, .parquet, or .npz with x_test, x or X")
    parser.add_argument("--out", metavar="FILE.csv", help="write the answers here")
    parser.add_argument("--force", action="store_true", help="replace --out if it exists")
    parser.add_argument(
        "--num-samples", metavar="N", help="posterior samples (default: as the run was told)"
    )
    add_device(parser)
    set_run(parser, run)


def run(args: argparse.Namespace, output: Output) -> int:
    """Predict and write, print or draw the answers."""
    out = None if args.out is None else Path(args.out)
    _check_out(out, args)
    loaded = load_run(args.path, device=args.device)
    if loaded.notice is not None:
        output.say(loaded.notice)
    given = [] if args.num_samples is None else [f"num_samples={args.num_samples}"]
    config = settings.apply(loaded.config, given)
    columns = loaded.posterior.predict_table(
        load_inputs(args.file), config.num_samples, seed=config.seed
    )
    count = len(next(iter(columns.values())))
    about: dict[str, Any] = {"run": args.path, "file": args.file, "count": count}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, _as_csv(columns).encode())
        about["out"] = str(out)
        output.result(about, lambda console: _tell(console, f"{count} answers: {out}"))
    elif output.as_json or sys.stdout.isatty():
        names = list(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        output.result({**about, "rows": rows}, lambda console: _draw(columns, console))
    else:
        sys.stdout.write(_as_csv(columns))
    return 0


def _check_out(out: Path | None, args: argparse.Namespace) -> None:
    if out is None:
        return
    if out.suffix.lower() != ".csv":
        raise InvalidValue("out", str(out), "must end in .csv", "e.g. answers.csv")
    if out.exists() and (not args.force or not out.is_file()):
        raise InvalidValue("out", str(out), "exists", "give --force to replace it, or another name")
    if out.exists() and out.samefile(args.file):
        raise InvalidValue("out", str(out), "is the file to predict for", "give another name")


def _as_csv(columns: Columns) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        # Nine digits give a float32 back exactly.
        writer.writerow([v if isinstance(v, str) else f"{v:.9g}" for v in row])
    return text.getvalue()


def _draw(columns: Columns, console: Console) -> None:
    names = list(columns)
    if len(names) > _SHOWN_COLUMNS:  # many classes: the label and the uncertainty say most
        names = [name for name in names if not name.startswith("prob_")]
    table = plain_table("row", *names, right=("row", *(n for n in names if n != "label")))
    count = len(columns[names[0]])
    for row in range(min(count, _SHOWN_ROWS)):
        cells = [columns[name][row] for name in names]
        table.add_row(str(row), *(c if isinstance(c, str) else f"{c:.4g}" for c in cells))
    console.print(table, markup=False)
    if count > _SHOWN_ROWS:
        _tell(console, f"… {count - _SHOWN_ROWS} more rows; all of them with --out FILE.csv")


def _tell(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
