"""All experiments by key."""

from __future__ import annotations

from gossamer.errors import UnknownName
from gossamer.experiments.gossamer import defaults, demo, engines, high_sparsity, moments
from gossamer.experiments.li2024ssvi import fashion, iou
from gossamer.experiments.study import Study
from gossamer.experiments.table import Table

TABLES: dict[str, Table] = {
    table.key: table
    for table in (
        demo.TABLE,
        engines.TABLE,
        defaults.TABLE,
        high_sparsity.TABLE,
        fashion.TABLE,
    )
}
STUDIES: dict[str, Study] = {study.key: study for study in (iou.STUDY, moments.STUDY)}


def find_experiment(key: str) -> Table | Study:
    """The table or study of that key, or a plain error."""
    if key in TABLES:
        return TABLES[key]
    if key in STUDIES:
        return STUDIES[key]
    raise UnknownName("experiment", key, [*TABLES, *STUDIES])
