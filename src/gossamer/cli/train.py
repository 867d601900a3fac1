"""``gossamer train``: settings from the command line, a run folder, its report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gossamer.cli import settings
from gossamer.cli.config_file import take_config
from gossamer.cli.options.train import FLAGS
from gossamer.cli.output import Output, plain_table
from gossamer.errors import InvalidValue
from gossamer.report import has_own_table, print_measured, write_report
from gossamer.report.quantities import QUANTITIES, format_number, quantity
from gossamer.report.reader import read_run
from gossamer.train import RunConfig, RunFolder, SilentProgress, default_progress, train
from gossamer.train.quality import DEFAULT, settled, with_quality

INTERRUPTED = 130

_MOST_CLASSES = 12
"""Whose confusion matrix fits a terminal; JSON and curves.json have any."""

_OF_CHOICE = (
    *("data", "data_dir", "target", "task", "day_first", "decimal", "split", "model"),
    *("limit_train", "test", "test_fraction", "likelihood", "likelihood_options", "noise_std"),
)
"""Settings by which a quality chooses its method: what the data and the network are."""


def run(args: argparse.Namespace, output: Output) -> int:
    """Train and print the test metrics."""
    if args.config is not None:
        take_config(args)
    given, quality = _given(args), _quality(args)
    lists = {name: getattr(args, name) for name in ("ood", "shift") if getattr(args, name)}
    config: RunConfig | None = None
    if not args.out or not args.resume:
        config = _new(quality, given, lists)
    out = Path(args.out) if args.out else default_out(config or RunConfig())
    folder = RunFolder(out)
    if args.resume and folder.is_started:
        # What is not told is the run's own; what is told must agree with it, and train checks that.
        config = folder.read_config()[0]
        if args.quality is not None:
            config = _with_members_of(config, args.quality)
        config = _config(config, given, lists)
    elif args.resume:
        config = _new(quality, given, lists) if given or lists else None
    progress = SilentProgress() if args.quiet else default_progress()
    try:
        result = train(config, out, resume=args.resume, progress=progress)
    except KeyboardInterrupt:
        how = f"go on with: gossamer train --resume --out {out}"
        raise KeyboardInterrupt(how if folder.is_started else "nothing was started") from None
    if result.metrics is None:
        if args.quiet:
            output.say(result.message)
        state = {"run": str(out), "status": result.status, "epoch": result.epoch}
        output.result({**state, "step": result.step}, lambda console: None)
        return INTERRUPTED
    values: dict[str, Any] = {"run": str(out), "status": result.status, **result.metrics}
    report = out / "report.html"
    if not args.no_report and (result.status == "finished" or not report.exists()):
        write_report([out], report)
    if report.exists():
        values["report"] = str(report)
    sets = folder.read_config()[0].ood
    matrix = confusion_of(out)
    if matrix is not None:
        values["confusion_matrix"] = matrix
    output.result(values, lambda console: draw_metrics(values, console, sets))
    return 0


def default_out(config: RunConfig) -> Path:
    """Where a run goes that was told no place."""
    sparsity = settings.value_of(config, "sparsity")
    shown = [f"{sparsity:g}"] if isinstance(sparsity, (int, float)) and sparsity else []
    shown += [f"x{config.members}"] if config.members not in (None, 1) else []
    name = [Path(config.data).stem, config.model, config.method, *shown, f"s{config.seed}"]
    return Path("runs") / "-".join(name)


def confusion_of(run: Path) -> dict[str, Any] | None:
    """Labels and counts (true class down, given class across) of a run on classes."""
    found = read_run(run).curves.get("confusion")
    return found if isinstance(found, dict) else None


def draw_metrics(values: dict[str, Any], console: Console, ood: Sequence[str] = ()) -> None:
    """Draw metrics one below the other, texts as they are; then tables of what has several.

    Args:
        values: Metrics and texts by their keys.
        console: Where to.
        ood: Names of the out-of-distribution sets.
    """
    table = plain_table("", "", right=())
    table.show_header = False
    for key, value in values.items():
        if has_own_table(key, values) or key in ("interval_level", "confusion_matrix"):
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            shown = format_number(key, value) if key in QUANTITIES else f"{value:.5g}"
            table.add_row(quantity(key).label, shown, style="bold" if key == "accuracy" else "")
        elif value is not None:
            table.add_row(key, str(value))
    console.print(table, markup=False)
    task = "regression" if "rmse" in values else "classification"
    print_measured(values, console, task=task, ood=ood)
    matrix = values.get("confusion_matrix")
    if matrix is not None and len(matrix["labels"]) <= _MOST_CLASSES:
        console.print()
        _draw_confusion(matrix, console)


def _draw_confusion(matrix: dict[str, Any], console: Console) -> None:
    labels = [str(label) for label in matrix["labels"]]
    heads = [f"given {label}" if place == 0 else label for place, label in enumerate(labels)]
    table = plain_table("true", right=())
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for label, counts in zip(labels, matrix["counts"], strict=True):
        table.add_row(label, *map(str, counts))
    console.print(table, markup=False)


def _given(args: argparse.Namespace) -> list[str]:
    """The options that were given, and what follows ``--set``, as ``key=value`` texts."""
    found = vars(args)
    keys = [*(flag.replace("-", "_") for flag in FLAGS), "finish", "refit"]
    options = [f"{key}={found[key]}" for key in keys if found[key] is not None]
    return [*(args.filed if args.config is not None else []), *options, *args.assignments]


def _quality(args: argparse.Namespace) -> str | None:
    """The preset to begin with; ``None`` where the method is told."""
    filed = args.filed if args.config is not None else []
    named = {str(each).partition("=")[0].strip() for each in [*filed, *args.assignments]}
    is_told = bool(args.method or args.preset or named & {"method", "preset"})
    if args.quality is not None and is_told:
        raise InvalidValue(
            "--quality", args.quality, "decides the method", "leave out --method and --preset"
        )
    return None if is_told else args.quality or DEFAULT


def _with_members_of(config: RunConfig, quality: str) -> RunConfig:
    """A run's config with what tells one quality from another; the rest is the run's own."""
    chosen = with_quality(config, quality)
    return replace(config, method=chosen.method, members=chosen.members)


def _new(quality: str | None, given: list[str], lists: dict[str, list[str]]) -> RunConfig:
    """The config of a run that begins."""
    if quality is None:
        return _config(RunConfig(), given, lists)
    names = [each.partition("=")[0].strip() for each in given]
    of_choice = [each for each, name in zip(given, names, strict=True) if name in _OF_CHOICE]
    base = with_quality(settings.apply(RunConfig(), of_choice), quality)
    config = _config(base, given, lists)
    return settled(config, quality, names)


def _config(base: RunConfig, given: list[str], lists: dict[str, list[str]]) -> RunConfig:
    config = settings.apply(base, given)
    # Not through key=value: there a comma separates names, in a path it does not.
    return RunConfig.from_json({**config.to_json(), **lists}) if lists else config
