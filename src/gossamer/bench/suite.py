"""The table of suites and the one way to run them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gossamer.bench import choice, kernels, memory, predict, read, step, transformer
from gossamer.bench.machine import describe
from gossamer.bench.names import SUITES
from gossamer.bench.result import BenchResult, Measured
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.timing import using_threads
from gossamer.errors import UnknownName
from gossamer.ops import library

Measure = Callable[[Settings, int, Tell], Measured]

MEASURES: dict[str, Measure] = {
    "kernels": kernels.measure,
    "step": step.measure,
    "transformer": transformer.measure,
    "memory": memory.measure,
    "predict": predict.measure,
    "read": read.measure,
    "choice": choice.measure,
}
"""What each of ``SUITES`` runs at one number of threads."""


def run_suite(name: str, settings: Settings, tell: Tell) -> BenchResult:
    """Run one suite at every number of threads that is asked for.

    Args:
        name: Key of ``SUITES``.
        settings: What to measure at.
        tell: Hears what is being measured.

    Raises:
        InvalidValue: The native engine is not available here: there is nothing to measure.
    """
    if name not in SUITES:
        raise UnknownName("suite", name, list(SUITES))
    library.loaded()  # or a plain error
    machine = describe()
    measure = MEASURES[name]
    measured = []
    for threads in settings.threads:
        # The caller's generator is his own; supports and inputs are the same in every run.
        with using_threads(threads), torch.random.fork_rng():
            torch.manual_seed(0)
            measured.append(measure(settings, threads, tell))
    return BenchResult(
        suite=name,
        quick=settings.quick,
        machine=machine,
        rows=tuple(row for one in measured for row in one.rows),
        findings=tuple(found for one in measured for found in one.findings),
    )
