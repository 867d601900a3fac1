"""Experiments: tables of runs with what the papers say and what must hold, and other studies.

Add a table: a function that returns rows, a ``Table`` in a module of its paper's folder, its
figures in that folder's ``expected.toml``, and one line in :mod:`gossamer.experiments.registry`.
"""

from gossamer.experiments.progress import RichTableProgress, TableProgress, default_table_progress
from gossamer.experiments.registry import STUDIES, TABLES, find_experiment
from gossamer.experiments.result import TableResult, Verdict
from gossamer.experiments.runner import run_table
from gossamer.experiments.study import Findings, Study, run_study
from gossamer.experiments.table import Check, Line, Row, Table, at_least, at_most, repeated

__all__ = [
    "STUDIES",
    "TABLES",
    "Check",
    "Findings",
    "Line",
    "RichTableProgress",
    "Row",
    "Study",
    "Table",
    "TableProgress",
    "TableResult",
    "Verdict",
    "at_least",
    "at_most",
    "default_table_progress",
    "find_experiment",
    "repeated",
    "run_study",
    "run_table",
]
