"""``cvadam2023/freeze`` at a tiny size: what is stopped is what is not kept again."""

from __future__ import annotations

from dataclasses import replace

from gossamer.experiments.cvadam2023 import freeze


def test_what_stops_is_kept_once() -> None:
    options = {**freeze.CONFIG.method_options, "cycles": 3, "samples_per_cycle": 2}
    config = replace(freeze.CONFIG, epochs=3, method_options=options, limit_train=200)
    free, some = (freeze.measure(share, config) for share in (None, 0.5))
    assert free.stopped == 0.0 < some.stopped < 1.0
    assert free.samples == some.samples == 6
    assert some.megabytes < free.megabytes <= free.unshared
    assert some.unshared == free.unshared
    assert 0.0 <= some.accuracy <= 1.0
