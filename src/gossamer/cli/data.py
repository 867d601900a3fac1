"""``gossamer data list|get|show``: which data sets there are, getting one, looking into one."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from gossamer.cli.output import Output, plain_table
from gossamer.data import DataSet, describe, download, load, names
from gossamer.errors import InvalidData, InvalidValue


def run_list(args: argparse.Namespace, output: Output) -> int:
    """Print the table of sets."""
    about = [describe(name) for name in names()]

    def draw(console: Console) -> None:
        table = plain_table("data", "task", "size", "from", "what it is")
        for one in about:
            origin = {"embedded": "embedded", "download": "data get", "file": "your file"}
            table.add_row(one.name, one.task, one.size, origin[one.origin], one.text)
        console.print(table, markup=False)
        console.print(
            "\nYour own: --data FILE, a .npz with x_train, y_train, x_test, y_test, "
            "or a table (.csv, .tsv, .gz of either, .parquet) with --target COLUMN",
            style="dim",
        )

    output.result([vars(one) for one in about], draw)
    return 0


def run_get(args: argparse.Namespace, output: Output) -> int:
    """Download a set."""
    about = describe(args.name)
    if about.origin == "embedded":
        paths: list[str] = []
    else:
        paths = [str(path) for path in _download(args)]
    output.result(
        {"name": args.name, "files": paths},
        lambda console: console.print(
            "\n".join(paths) or f"{args.name} is embedded: nothing to get",
            markup=False,
            soft_wrap=True,
        ),
    )
    return 0


def run_show(args: argparse.Namespace, output: Output) -> int:
    """Load a set and print what is in it."""
    found = load(args.name, data_dir=args.data_dir, target=args.target, task=args.task)
    facts = _facts(found)

    def draw(console: Console) -> None:
        table = plain_table("", "")
        table.show_header = False
        for key, value in facts.items():
            table.add_row(key.replace("_", " "), _shown(value))
        console.print(table, markup=False)

    output.result(facts, draw)
    return 0


def _download(args: argparse.Namespace) -> list[Any]:
    folder = args.data_dir or os.environ.get("GOSSAMER_DATA", "").split(os.pathsep)[0]
    if not folder:
        raise InvalidValue("data-dir", None, "must name a folder", "give --data-dir DIR")
    if describe(args.name).origin == "file":
        raise InvalidData(
            f"data set {args.name!r}",
            None,
            "has no public address to download from",
            f"put its file into {folder}; gossamer data show {args.name} says under which name",
        )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, TaskID] = {}

        def watch(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        return list(download(args.name, folder, mirror=args.mirror, progress=watch))


def _facts(found: DataSet) -> dict[str, Any]:
    target = found.preparation.target_name
    facts: dict[str, Any] = {
        "name": found.name,
        "task": found.task,
        "input_shape": list(found.input_shape),
        "target": target,
        "train": found.num_train,
        "validation": 0 if found.validation is None else len(found.x_val),
        "test": 0 if found.test is None else len(found.x_test),
    }
    if found.class_names is not None:
        counts = found.y_train.bincount(minlength=found.output_size).tolist()
        facts["classes"] = dict(zip(found.class_names, counts, strict=True))
    else:
        original = found.preparation.target_to_original(found.y_train.double())
        facts["target_mean"] = original.mean(0).tolist()
        facts["target_std"] = original.std(0).tolist()
    columns = found.preparation.to_json()["inputs"].get("columns")
    if columns is not None:
        facts["columns"] = {column["name"]: column["dtype"] for column in columns}
    facts["augment"] = found.augment
    facts["notes"] = list(found.notes)
    return facts


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} ({inner})" for key, inner in value.items())
    if isinstance(value, list):
        return ("; " if value and isinstance(value[0], str) else " × ").join(map(str, value)) or "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None else str(value)
