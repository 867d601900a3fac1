"""``gossamer``: the commands, and what becomes of errors.

Exit codes: 0 done, 1 a check of ``reproduce --strict`` failed (or nobody reads our output any
more), 2 an error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import gossamer
from gossamer.cli.allocator import keep_freed_memory
from gossamer.cli.parser import Parser, add_command
from gossamer.cli.threads import wait_briefly
from gossamer.errors import GossamerError

UNREAD, ERROR, INTERRUPTED = 1, 2, 130

_COMMANDS = {
    "train": "train a network into a run folder",
    "evaluate": "compute a run's test metrics, without changing the run",
    "predict": "answer the rows of a file with a trained run",
    "report": "draw runs into one self-contained HTML file",
    "compare": "put runs side by side; those that differ by seed share a row",
    "data": "list, get and show data sets",
    "methods": "list the methods, or the settings of one",
    "reproduce": "run a table of experiments; finished runs are kept, others resumed",
    "bench": "measure the native engine against dense and other sparse layers",
}
_EXAMPLES = """\
examples:
  gossamer train --data digits --model mlp --method ssvi --sparsity 0.95
  gossamer train --data houses.csv --target price --out runs/houses
  gossamer predict runs/houses new.csv --out answers.csv
  gossamer compare runs/*
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``gossamer``; those of the process unless told.

    Returns:
        The exit code. An error is one line on stderr; ``GOSSAMER_DEBUG=1`` lets it through with its
        traceback.
    """
    try:
        if argv is None:  # the process is this command's own
            keep_freed_memory()
            wait_briefly()
        words = sys.argv[1:] if argv is None else list(argv)
        args = _parser(words).parse_args(words)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # --help and --version have printed what they had to say
        return int(stop.code or 0)
    except KeyboardInterrupt as stop:
        _tell(f"interrupted; {stop}" if str(stop) else "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        if os.environ.get("GOSSAMER_DEBUG") == "1":
            raise
        _tell(f"error: {_one_line(error)}")
        return ERROR


def _parser(words: Sequence[str]) -> Parser:
    """The parser of all commands; only the options of the one that is asked for are imported."""
    parser = Parser(
        prog="gossamer",
        description="Bayesian neural networks that are sparse all the way through training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gossamer {gossamer.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    chosen = next((word for word in words if word in _COMMANDS), None)
    for name, text in _COMMANDS.items():
        command = add_command(subparsers, name, text)
        if name == chosen:
            module = import_module(f"gossamer.cli.options.{name}")
            getattr(module, f"add_{name}")(command)
    return parser


def _tell(text: str) -> None:
    print(f"gossamer: {text}", file=sys.stderr, flush=True)


def _one_line(error: Exception) -> str:
    if isinstance(error, GossamerError):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}"
    said = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {said}; this is a bug: GOSSAMER_DEBUG=1 shows where"
