"""The examples in the docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

from gossamer import metrics

MODULES = [
    *("calibration", "classification", "ranking", "regression"),
    *("selection", "selective", "streaming"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    outcome = doctest.testmod(importlib.import_module(f"gossamer.metrics.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_public_function_has_an_example():
    functions = [getattr(metrics, name) for name in metrics.__all__]
    documented = [item for item in functions if ">>>" in (item.__doc__ or "")]
    containers = {metrics.ReliabilityCurve, metrics.Selection, metrics.SelectiveCurve}
    assert set(functions) - set(documented) == containers
