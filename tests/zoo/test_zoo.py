"""Networks of others convert, train, come back and predict; docs/zoo.md says what came of it."""

from __future__ import annotations

import pytest

from zoo.entries import Entry
from zoo.examine import examine
from zoo.table import PAGE, PARTS, entries, line

CORE = entries("of_torch")


def check(entry: Entry) -> None:
    assert line(entry, examine(entry)) in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("entry", CORE, ids=lambda entry: entry.name)
def test_torch(entry: Entry) -> None:
    check(entry)


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [part for part in PARTS if part != "of_torch"])
def test_others(part: str) -> None:
    """All networks of a package: which, is known once it is imported."""
    failed = {}
    for entry in entries(part):
        try:
            check(entry)
        except Exception as error:  # the others are looked at too
            failed[entry.key] = error
    assert not failed
