"""What all commands share in parsing: errors of one line, no abbreviations, ``--json``."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from typing import Any, NoReturn

from gossamer.cli.output import Output
from gossamer.errors import InvalidValue

Subparsers = Any  # argparse keeps the class of `add_subparsers` private


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing its usage over several lines."""

    def __init__(self, **settings: Any) -> None:
        # An abbreviation that works today is ambiguous as soon as an option is added.
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and answer an unknown option with the known one it resembles."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((text for text in rest if text.startswith("-")), None)
        if unknown is not None:
            option = unknown.partition("=")[0]
            close = difflib.get_close_matches(option, self._option_string_actions, n=1)
            told = f" (did you mean {close[0]}?)" if close else ""
            self.error(f"unknown option {option}{told}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say as an error of the one form."""
        raise InvalidValue("command line", None, message, f"see {self.prog} --help")


def add_command(subparsers: Subparsers, name: str, text: str) -> Parser:
    """A subcommand that may have options and an epilog of its own.

    Args:
        subparsers: What ``add_subparsers`` returned.
        name: The command's word.
        text: One line for the list of commands, and the beginning of its own help.
    """
    parser: Parser = subparsers.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def set_run(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Output], int]
) -> None:
    """Say what a command does, and give it the option that all have: ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON on stdout, nothing else there"
    )
    parser.set_defaults(run=lambda args: run(args, Output(as_json=args.json)))


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """The option ``--data-dir``."""
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder where data sets lie that are not embedded (also: GOSSAMER_DATA)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option ``--device``."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="auto",
        help="auto, cpu, cuda, cuda:N or mps (default auto: cuda where there is one)",
    )
