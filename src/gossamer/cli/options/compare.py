"""The options of ``gossamer compare``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, set_run


def add_compare(parser: Parser) -> None:
    """Give ``compare`` its options."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders of them")
    parser.add_argument(
        "--sort",
        metavar="METRIC",
        default="nll",
        help="best first by this metric, within a data set; none: as given (default nll)",
    )
    set_run(parser, "report", "run_compare")
