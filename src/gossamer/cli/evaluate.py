"""``gossamer evaluate``: the test metrics of a run once more, under other noise or samples."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.cli import settings
from gossamer.cli.output import Output
from gossamer.cli.parser import Parser, add_data_dir, add_device, set_run
from gossamer.cli.train import SHIFT_HELP, draw_metrics
from gossamer.errors import InvalidData
from gossamer.train import RunFolder, evaluate, load_dataset, load_ood_inputs, load_run
from gossamer.train.assembly import find_facts


def add_evaluate(parser: Parser) -> None:
    """Give the command its options."""
    parser.add_argument("path", metavar="RUN", help="run folder")
    parser.add_argument(
        "--noise", metavar="MODE", help="weight, local or both (default: as the run was told)"
    )
    parser.add_argument(
        "--num-samples", metavar="N", help="posterior samples (default: as the run was told)"
    )
    parser.add_argument(
        "--ood",
        metavar="NAME",
        action="append",
        help="out-of-distribution set; may be repeated (default: as the run was told)",
    )
    parser.add_argument(
        "--shift",
        metavar="NAME",
        action="append",
        help=f"{SHIFT_HELP} (default: as the run was told)",
    )
    add_data_dir(parser)
    add_device(parser)
    set_run(parser, run)


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
    dataset = load_dataset(config)
    _, facts = RunFolder(Path(args.path)).read_config()
    same_values = find_facts(config, dataset).data_sha256 == facts.data_sha256
    # Values that were shifted or scaled look the same once prepared; their preparation does not.
    if not same_values or dataset.preparation != loaded.preparation:
        raise InvalidData(
            "data", config.data, "is not what the run was trained on", "restore the old data"
        )
    metrics, _ = evaluate(
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
        "step": loaded.step,
        "noise": config.noise,
        "num_samples": config.num_samples,
        **metrics,
        "seconds": time.perf_counter() - began,
    }
    output.result(values, lambda console: draw_metrics(values, console, config.ood))
    return 0
