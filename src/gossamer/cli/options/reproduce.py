"""The options of ``gossamer reproduce``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, add_data_dir, add_device, set_run


def add_reproduce(parser: Parser) -> None:
    """Give the command its options."""
    parser.add_argument("key", nargs="?", metavar="KEY/TABLE", help="see --list")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--scale", metavar="SCALE", help="small (default) or paper")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="first seed (default 0)")
    parser.add_argument("--repeats", type=int, metavar="N", help="seeds per row")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="tasks at a time, each with its share of the cores"
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        default=[],
        help="do the tasks whose names match, such as 'mnist-*', and conclude from all that are "
        "finished; may be repeated",
    )
    add_data_dir(parser)
    add_device(parser)
    parser.add_argument("--out", metavar="DIR", help="default: runs/KEY-TABLE-SCALE")
    parser.add_argument(
        "--strict", action="store_true", help="exit code 1 where a check does not hold"
    )
    set_run(parser, "reproduce")
