"""Tables of experiments: which runs they consist of, what the papers say, what must hold.

Add a table: a function that returns rows, a ``Table`` in a module of its paper's folder, its
figures in that folder's ``expected.toml``, and one line in :mod:`gossamer.experiments.registry`.
"""

from gossamer.experiments.progress import RichTableProgress, TableProgress, default_table_progress
from gossamer.experiments.registry import TABLES, find_table
from gossamer.experiments.result import TableResult, Verdict
from gossamer.experiments.runner import run_table
from gossamer.experiments.table import Check, Line, Row, Table, at_least, at_most, repeated

__all__ = [
    "TABLES",
    "Check",
    "Line",
    "RichTableProgress",
    "Row",
    "Table",
    "TableProgress",
    "TableResult",
    "Verdict",
    "at_least",
    "at_most",
    "default_table_progress",
    "find_table",
    "repeated",
    "run_table",
]
