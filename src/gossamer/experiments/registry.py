"""All tables by key."""

from __future__ import annotations

from gossamer.errors import UnknownName
from gossamer.experiments.gossamer import demo
from gossamer.experiments.table import Table

TABLES: dict[str, Table] = {table.key: table for table in (demo.TABLE,)}


def find_table(key: str) -> Table:
    """The table of that key, or a plain error."""
    if key not in TABLES:
        raise UnknownName("table", key, list(TABLES))
    return TABLES[key]
