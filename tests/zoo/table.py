"""docs/zoo.md from the networks of the zoo: ``make zoo`` writes it and tests that it is true."""

from __future__ import annotations

import importlib
from pathlib import Path

import gossamer
from zoo.entries import Entry
from zoo.examine import Row, examine

PARTS = ("of_torch", "of_transformers", "of_vision", "of_graphs")
PAGE = Path(gossamer.__file__).parents[2] / "docs" / "zoo.md"

HEADER = """\
| package | network | sparse layers | converted | kept weights |
| --- | --- | ---: | ---: | ---: |
"""


def entries(part: str) -> tuple[Entry, ...]:
    """The networks of a part; it must be importable."""
    found: tuple[Entry, ...] = importlib.import_module(f"zoo.{part}").ENTRIES
    return found


def line(entry: Entry, row: Row) -> str:
    """A network's row of the table."""
    share = f"{row.converted:.1%}".replace("%", " %")
    return f"| {entry.package} | {entry.name} | {row.layers} | {share} | {row.nnz:,} |"


def page() -> str:
    """The whole page, its words as they are; takes a minute or two."""
    words = PAGE.read_text(encoding="utf-8").partition(HEADER)[0]
    lines = [line(each, examine(each)) for part in PARTS for each in entries(part)]
    return words + HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
