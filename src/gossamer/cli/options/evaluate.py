"""The options of ``gossamer evaluate``."""

from __future__ import annotations

from gossamer.cli.options.train import SHIFT_HELP
from gossamer.cli.parser import Parser, add_data_dir, add_device, set_run


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
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="a labelled table to measure on, in place of the run's own test part",
    )
    add_data_dir(parser)
    add_device(parser)
    set_run(parser, "evaluate")
