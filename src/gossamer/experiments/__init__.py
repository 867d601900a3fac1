"""Experiments: the papers' tables and figures, with what the papers say and what must hold.

An experiment is tasks in, tables and verdicts out. Add one: a module in its paper's folder with a
function that gives its tasks and one that concludes from their rows (:class:`RunTable` for a table
of runs), and one line in :mod:`gossamer.experiments.registry`.
"""

from gossamer.experiments.display import Display, RichDisplay, default_display
from gossamer.experiments.experiment import Experiment, Finished, Scope, run_experiment
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable, Verdict
from gossamer.experiments.registry import EXPERIMENTS, find_experiment
from gossamer.experiments.table import Check, Line, RunTable, at_least, at_most, repeated
from gossamer.experiments.task import FunctionTask, RunTask, Task

__all__ = [
    "EXPERIMENTS",
    "Check",
    "Display",
    "Experiment",
    "Finished",
    "FunctionTask",
    "Line",
    "Outcome",
    "RichDisplay",
    "RunTable",
    "RunTask",
    "Scope",
    "Task",
    "TextTable",
    "Verdict",
    "Watch",
    "at_least",
    "at_most",
    "default_display",
    "find_experiment",
    "repeated",
    "run_experiment",
]
