"""Every example in a docstring of the package runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer

# What a reader of any example has in front of him.
NAMES = {"gossamer": gossamer, "gs": gossamer, "torch": torch, "nn": nn}


def modules_with_examples() -> list[str]:
    root = Path(gossamer.__file__).parent
    found = [p for p in sorted(root.rglob("*.py")) if ">>>" in p.read_text(encoding="utf-8")]
    places = [p.relative_to(root.parent).with_suffix("").parts for p in found]
    return [".".join(parts).removesuffix(".__init__") for parts in places]


MODULES = modules_with_examples()


def test_there_are_examples():
    assert len(MODULES) >= 25


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    outcome = doctest.testmod(module, extraglobs=NAMES)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_no_example_is_skipped(name):
    """An example that never runs is a promise nobody keeps."""
    for test in doctest.DocTestFinder().find(importlib.import_module(name)):
        skipped = [e.source for e in test.examples if e.options.get(doctest.SKIP)]
        assert not skipped, test.name
