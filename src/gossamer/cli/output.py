"""Where a command's answer goes: JSON or a picture of it on stdout, remarks on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from gossamer.files import finite

_PIPE_WIDTH = 160
"""Columns where stdout is no terminal: a table in a log should not be folded at 80."""


class Output:
    """The one way for a command to print.

    Args:
        as_json: Whether stdout gets JSON and nothing else.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        self.console = Console(width=_PIPE_WIDTH if piped else None, highlight=False)

    def result(self, value: object, draw: Callable[[Console], None]) -> None:
        """Print a result once, in the form that was asked for.

        Args:
            value: The result as JSON values; a float that is not finite becomes ``null``.
            draw: Draws the same for a reader.
        """
        if self.as_json:
            print(json.dumps(finite(value), indent=2, allow_nan=False, ensure_ascii=False))
        else:
            draw(self.console)

    def say(self, text: str) -> None:
        """Print a line for a reader on stderr: it is no result."""
        print(text, file=sys.stderr, flush=True)


def plain_table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """A table without rules, as the comparison of runs has it.

    Args:
        headings: Names of the columns.
        right: Those set flush right.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table
