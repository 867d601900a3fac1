"""The options of ``gossamer bench``."""

from __future__ import annotations

from gossamer.bench.names import SUITES
from gossamer.cli.parser import Parser, add_command, set_run

_EPILOG = """\
ratio: the baseline's median over the contender's; above 1 is faster, or smaller.
Rivals take part where they are installed: pip install gossamer[bench]
"""


def add_bench(parser: Parser) -> None:
    """Give the command its suites."""
    parts = parser.add_subparsers(metavar="|".join(SUITES), required=True, parser_class=Parser)
    for name, text in SUITES.items():
        suite = add_command(parts, name, text)
        suite.epilog = _EPILOG
        suite.add_argument(
            "--quick",
            action="store_true",
            help="small shapes, one round: shows that it runs, measures nothing",
        )
        suite.add_argument(
            "--threads",
            metavar="N[,N]",
            help="threads, one number after the other (default: as many as torch takes)",
        )
        suite.add_argument(
            "--rounds", type=int, metavar="N", help="timed runs of every contender, exactly"
        )
        suite.set_defaults(suite=name)
        set_run(suite, "bench", json_file=True)
