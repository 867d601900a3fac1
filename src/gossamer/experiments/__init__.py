"""Experiments: tables of runs with what the papers say and what must hold, studies, and surveys.

Add a table: a function that returns rows, a ``Table`` in a module of its paper's folder, its
figures in that folder's ``expected.toml``, and one line in :mod:`gossamer.experiments.registry`.
"""

from gossamer.experiments.progress import RichTableProgress, TableProgress, default_table_progress
from gossamer.experiments.registry import STUDIES, SURVEYS, TABLES, find_experiment
from gossamer.experiments.result import TableResult, Verdict
from gossamer.experiments.runner import run_table
from gossamer.experiments.study import Findings, Study, run_study
from gossamer.experiments.survey import Conclusion, Survey, SurveyResult, run_survey
from gossamer.experiments.table import Check, Line, Row, Table, at_least, at_most, repeated
from gossamer.experiments.tasks import SurveyTask

__all__ = [
    "STUDIES",
    "SURVEYS",
    "TABLES",
    "Check",
    "Conclusion",
    "Findings",
    "Line",
    "RichTableProgress",
    "Row",
    "Study",
    "Survey",
    "SurveyResult",
    "SurveyTask",
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
    "run_survey",
    "run_table",
]
