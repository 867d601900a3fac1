"""The options of ``gossamer methods``."""

from __future__ import annotations

from gossamer.cli.parser import Parser, set_run


def add_methods(parser: Parser) -> None:
    """Give the command its options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the settings of this method")
    set_run(parser, "methods")
