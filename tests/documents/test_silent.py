"""docs/silent.md: every finding has tests, and those are there."""

from __future__ import annotations

import re

from documents.pages import ROOT

PAGE = (ROOT / "docs" / "silent.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
FINDINGS = [line for line in ROWS if not line.startswith("| finding ")]


def named(row: str) -> list[tuple[str, str]]:
    """File and name of each test of a row; ``::name`` is of the file before it."""
    file, found = "", []
    for before, name in re.findall(r"`((?:tests/[\w/]+\.py)?)::(\w+)`", row.split("|")[3]):
        file = before or file
        found.append((file, name))
    return found


def test_every_finding_names_its_tests():
    assert len(FINDINGS) > 30
    assert not [row for row in FINDINGS if row.count("|") != 4 or not named(row)]


def test_every_named_test_exists():
    tests = {test for row in FINDINGS for test in named(row)}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(tests)
        if not re.search(rf"^\s*def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)
    ]
    assert not missing
