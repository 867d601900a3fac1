"""The study of temperatures, with fewer chains: formula and measurement agree, and the spreads."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gossamer.experiments import Finished, Scope
from gossamer.experiments.cvadam2023 import temperature
from gossamer.experiments.cvadam2023.temperature import (
    SETTINGS,
    Draws,
    Setting,
    Spread,
    spreads,
    temperature_of,
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_formula_and_measurement_agree(setting):
    found = temperature_of(setting, seed=3, chains=4000)
    assert abs(found.measured - found.formula) < 4 * found.standard_error
    assert found.standard_error < 0.03 * found.formula


def test_temperatures_by_hand():
    """1.122 k²τΔt·N at β = (0.1, 1), and with batches the variance 1/B - 1/N beside 2.02 k²."""
    plain = temperature_of(Setting("", 10_000, 0.01, 0.01), 0, 10)
    assert plain.formula == pytest.approx(1.01 / 0.9 * 0.5 * 0.1, rel=1e-12)
    batches = temperature_of(Setting("", 10_000, 0.01, 0.01, 1024), 0, 10)
    more = 1 + (1 / 1024 - 1e-4) * 0.1 / (2.02 * 1e-4)
    assert batches.formula == pytest.approx(plain.formula * more, rel=1e-12)


def test_spreads(watch):
    """Algorithm 1: the conditional std, √(1 - 0.9²), no correlation, no memory. 2: a sampler."""
    rows = spreads(Draws(0, chains=1000, steps=1500), watch)["spreads"]
    first, authors, ours = (Spread(**row) for row in rows)
    assert first.std == pytest.approx(math.sqrt(1 - 0.81), rel=0.08)
    assert abs(first.correlation) < 0.15
    assert abs(first.next_step) < 0.15
    assert authors.std == pytest.approx(math.sqrt(1.01 / 0.9 * 0.5 * math.sqrt(0.1)), rel=0.1)
    assert ours.std == pytest.approx(1.0, rel=0.1)
    for row in (authors, ours):
        assert row.correlation == pytest.approx(0.9, abs=0.04)
        assert row.next_step > 0.95
    assert [row.label[:11] for row in (first, authors, ours)] == [
        f"Algorithm {n}" for n in (1, 2, 2)
    ]


def test_the_page(watch, tmp_path):
    *measurements, last = temperature.tasks(Scope(seed=2))
    assert len(measurements) == len(SETTINGS)
    assert [task.settings.seed for task in measurements[:2]] == [18, 19]
    first = measurements[0]
    rows = {
        first.name: first.function(replace(first.settings, chains=10), watch),
        last.name: last.function(Draws(0, chains=10, steps=5), watch),
    }
    rows = json.loads(json.dumps(rows))
    outcome = temperature.conclude(Finished("", Scope(), tmp_path, [], rows))
    assert outcome.values == {"temperatures": [rows[first.name]], **rows[last.name]}
    assert [len(table.rows) for table in outcome.parts] == [1, 4]
    assert "| 0.0561 |" in outcome.parts[0].to_markdown()
    assert f"| {rows[last.name]['spreads'][2]['std']:.3f} |" in outcome.parts[1].to_markdown()
