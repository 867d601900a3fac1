"""All experiments by key."""

from __future__ import annotations

from gossamer.errors import UnknownName
from gossamer.experiments.cvadam2023 import fashion as cvadam_fashion
from gossamer.experiments.cvadam2023 import freeze, paths, table4, temperature
from gossamer.experiments.gossamer import defaults, demo, engines, high_sparsity, moments
from gossamer.experiments.li2024ssvi import fashion, iou
from gossamer.experiments.study import Study
from gossamer.experiments.survey import Survey
from gossamer.experiments.table import Table

TABLES: dict[str, Table] = {
    table.key: table
    for table in (
        demo.TABLE,
        engines.TABLE,
        defaults.TABLE,
        high_sparsity.TABLE,
        fashion.TABLE,
        cvadam_fashion.TABLE,
    )
}
STUDIES: dict[str, Study] = {
    study.key: study
    for study in (iou.STUDY, moments.STUDY, temperature.STUDY, paths.STUDY, freeze.STUDY)
}
SURVEYS: dict[str, Survey] = {survey.key: survey for survey in (table4.SURVEY,)}


def find_experiment(key: str) -> Table | Study | Survey:
    """The table, study or survey of that key, or a plain error."""
    found = TABLES.get(key) or STUDIES.get(key) or SURVEYS.get(key)
    if found is None:
        raise UnknownName("experiment", key, [*TABLES, *STUDIES, *SURVEYS])
    return found
