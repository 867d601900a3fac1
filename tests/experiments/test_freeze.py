"""``cvadam2023/freeze`` at a tiny size: what is stopped is what is not kept again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gossamer.experiments import Finished, Scope, Watch
from gossamer.experiments.cvadam2023 import freeze


def test_what_stops_is_kept_once(watch: Watch, tmp_path: Path) -> None:
    options = {**freeze.CONFIG.method_options, "cycles": 3, "samples_per_cycle": 2}
    config = replace(freeze.CONFIG, epochs=3, method_options=options, limit_train=200)
    rows = [freeze.measure(freeze.Settings(share, config), watch) for share in (None, 0.5)]
    free, some = (freeze.Frozen(**row) for row in rows)
    assert free.stopped == 0.0 < some.stopped < 1.0
    assert free.samples == some.samples == 6
    assert some.megabytes < free.megabytes <= free.unshared
    assert some.unshared == free.unshared
    assert 0.0 <= some.accuracy <= 1.0
    found = Finished("cvadam2023/freeze", Scope(), tmp_path, [], dict(enumerate(rows)))
    table = freeze.conclude(found).parts[0].to_markdown()
    assert "| – | 0 % |" in table
    assert f"| 0.5 | {100 * some.stopped:.0f} % |" in table
