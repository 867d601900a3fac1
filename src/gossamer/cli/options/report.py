"""The options of ``gossamer report``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, set_run


def add_report(parser: Parser) -> None:
    """Give ``report`` its options."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders, or folders of them; or one file that an estimator's save wrote",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        help="default: report.html in the run folder; of several, in the folder that holds them; "
        "of a file, its name with .html",
    )
    set_run(parser, "report", "run_report")
