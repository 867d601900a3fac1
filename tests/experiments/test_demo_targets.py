"""The demo reaches its targets: minutes of training, so it runs with ``make slow``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.experiments import TABLES, run_table


@pytest.mark.slow
def test_the_demo_meets_every_check(tmp_path: Path) -> None:
    result = run_table(TABLES["gossamer/demo"], out=tmp_path / "demo", jobs=1)
    assert [str(verdict) for verdict in result.verdicts if not verdict.ok] == []
    assert len(result.runs) == 12
    assert result.report is not None
    assert result.report.is_file()
