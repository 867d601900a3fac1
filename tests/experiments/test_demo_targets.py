"""The demo reaches its targets: minutes of training, so it runs with ``make slow``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.experiments import find_experiment, run_experiment


@pytest.mark.slow
def test_the_demo_meets_every_check(tmp_path: Path) -> None:
    demo = find_experiment("gossamer/demo")
    outcome = run_experiment(demo, demo.scope(), out=tmp_path / "demo", jobs=1)
    assert [str(verdict) for verdict in outcome.verdicts if not verdict.ok] == []
    assert sum(row["n"] for row in outcome.values["rows"]) == 15
    assert outcome.report is not None
    assert outcome.report.is_file()
