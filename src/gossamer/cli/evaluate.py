"""``gossamer evaluate``: the test metrics of a run once more, under other noise or samples."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.cli import settings
from gossamer.cli.output import Output
from gossamer.cli.train import draw_metrics
from gossamer.data import DataSet, load_labelled
from gossamer.errors import InvalidData
from gossamer.train import (
    LoadedRun,
    RunConfig,
    RunFolder,
    evaluate,
    load_dataset,
    load_ood_inputs,
    load_run,
)
from gossamer.train.assembly import find_facts


def run(args: argparse.Namespace, output: Output) -> int:
    """Print the metrics."""
    loaded = load_run(args.path, device=args.device)
    if loaded.notice is not None:
        output.say(loaded.notice)
    asked = {"noise": args.noise, "num_samples": args.num_samples, "data_dir": args.data_dir}
    given = [f"{key}={value}" for key, value in asked.items() if value is not None]
    config = settings.apply(loaded.config, given)
    if args.ood is not None:
        config = replace(config, ood=tuple(args.ood))
    if args.shift is not None:
        config = replace(config, shift=tuple(args.shift))
    began = time.perf_counter()
    dataset = _own_data(config, loaded, args) if args.data is None else _of_file(loaded, args)
    if args.data is not None:
        for note in dataset.notes:
            output.say(note)
    if dataset.test is None:
        raise InvalidData("run", args.path, "has no test part", "give a labelled file: --data FILE")
    metrics, curves = evaluate(
        loaded.posterior,
        dataset,
        num_samples=config.num_samples,
        noise=config.noise,
        seed=config.seed,
        ood=load_ood_inputs(config, loaded.preparation),
        shift=config.shift,
    )
    values: dict[str, Any] = {
        "run": args.path,
        **({} if args.data is None else {"data": args.data, "rows": len(dataset.x_test)}),
        "step": loaded.step,
        "noise": config.noise,
        "num_samples": config.num_samples,
        **metrics,
        "seconds": time.perf_counter() - began,
        **({"confusion_matrix": curves["confusion"]} if "confusion" in curves else {}),
    }
    output.result(values, lambda console: draw_metrics(values, console, config.ood))
    return 0


def _own_data(config: RunConfig, loaded: LoadedRun, args: argparse.Namespace) -> DataSet:
    """The data that the run was trained on."""
    dataset = load_dataset(config)
    _, facts = RunFolder(Path(args.path)).read_config()
    same_values = find_facts(config, dataset).data_sha256 == facts.data_sha256
    # Values that were shifted or scaled look the same once prepared; their preparation does not.
    if not same_values or dataset.preparation != loaded.preparation:
        raise InvalidData(
            "data", config.data, "is not what the run was trained on", "restore the old data"
        )
    return dataset


def _of_file(loaded: LoadedRun, args: argparse.Namespace) -> DataSet:
    """The rows of a labelled file as a test part, prepared as the run's own were."""
    rows, notes = load_labelled(args.data, loaded.preparation, loaded.config.table_rules)
    # A data set has a training part; nothing reads that of this one.
    return DataSet(
        args.data, loaded.preparation.task, rows, loaded.preparation, test=rows, notes=notes
    )
