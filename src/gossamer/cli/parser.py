"""What all commands share in parsing: errors of one line, no abbreviations, ``--json``."""

from __future__ import annotations

import argparse
import difflib
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

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


STDOUT = "-"
"""What ``--json`` is that names no file, where it may name one."""


def set_run(
    parser: argparse.ArgumentParser, module: str, function: str = "run", *, json_file: bool = False
) -> None:
    """Say what a command does, and give it the option that all have: ``--json``.

    Args:
        parser: The command's.
        module: Page of :mod:`gossamer.cli`; it is imported when the command runs, for ``--help``
            has no need of torch.
        function: Its function of the arguments and an :class:`~gossamer.cli.output.Output`, which
            returns the exit code.
        json_file: Whether ``--json`` may name a file: a measurement of half an hour should leave
            one.
    """
    if json_file:
        text = "write the result as JSON to FILE, or to stdout and nothing else there"
        parser.add_argument("--json", nargs="?", const=STDOUT, metavar="FILE", help=text)
    else:
        text = "print the result as JSON on stdout, nothing else there"
        parser.add_argument("--json", action="store_const", const=STDOUT, help=text)

    def run(args: argparse.Namespace) -> int:
        output = _page("output").Output(as_json=args.json == STDOUT)
        code: int = getattr(_page(module), function)(args, output)
        return code

    parser.set_defaults(run=run)


def _page(name: str) -> ModuleType:
    return import_module(f"gossamer.cli.{name}")


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
