"""``gossamer/tabular``: what judges, how ranks and checks come about, and that it runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from gossamer.experiments.experiment import Scope
from gossamer.experiments.gossamer.tabular import experiment, sets
from gossamer.experiments.gossamer.tabular.experiment import EXPERIMENT, fit, ranks, verdicts
from gossamer.experiments.gossamer.tabular.forecast import Forecast
from gossamer.experiments.gossamer.tabular.rivals import RIVALS
from gossamer.experiments.news import Watch
from gossamer.experiments.task import FunctionTask

KEYS = [rival.key for rival in RIVALS]


def board(**changes: float) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Two sets on which all do alike but ours, which is better by a tenth."""
    line = {metric: [1.0, 3.0] for metric in experiment.METRICS} | {"coverage_90": [0.88, 0.92]}
    better = line | {"rmse": [0.9, 2.7], "nll": [0.9, 2.7], "crps": [0.9, 2.7]}
    ours = {
        metric: [v * changes.get(metric, 1.0) for v in values] for metric, values in better.items()
    }
    return {name: {key: line for key in KEYS if key != "ours"} | {"ours": ours} for name in "ab"}


def test_the_verdicts_are_those_of_the_table() -> None:
    assert [v.ok for v in verdicts(board())[:5]] == [True] * 5
    assert ranks(board(), "crps")["ours"] == 1.0
    assert ranks(board(crps=2.0), "crps")["ours"] == len(KEYS)
    for place, changes in enumerate(
        [{"coverage_90": 0.95}, {"crps": 2.0}, {"nll": 2.0}, {"rmse": 1.3}, {"seconds": 5.1}]
    ):
        held = [v.ok for v in verdicts(board(**changes))[:5]]
        assert held == [number != place for number in range(5)], changes


def test_a_rank_among_fewer_contenders_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_present", lambda: list(RIVALS))
    assert verdicts(board())[-1].ok
    monkeypatch.setattr(experiment, "_present", lambda: [r for r in RIVALS if r.needs is None])
    told = verdicts(board())[-1]
    assert not told.ok
    assert "NGBoost" in told.text


def test_rows_that_choose_are_no_test_rows_of_split_0(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(40.0)[:, None]
    raw = SimpleNamespace(x=x, y=x[:, 0], train=np.arange(4, 40), test=np.arange(4))
    source = SimpleNamespace(read=lambda data_dir, number: raw)
    monkeypatch.setitem(sets.SOURCES, "yacht", source)
    judged = sets.table("yacht", 0, None, chooses=False)
    assert judged.y_test.tolist() == [0.0, 1.0, 2.0, 3.0]
    for number in range(3):
        chosen = sets.table("yacht", number, None, chooses=True)
        rows = set(chosen.y.tolist()) | set(chosen.y_test.tolist())
        assert rows.isdisjoint(judged.y_test.tolist())
        assert set(chosen.y.tolist()).isdisjoint(chosen.y_test.tolist())
        assert len(chosen.y_test) == 4


def test_figures_are_those_of_the_normal_distribution() -> None:
    mean, std = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 0.5])
    y = np.array([0.3, -2.9, 2.2])
    intervals = {
        c: (mean - norm.ppf((1 + c) / 2) * std, mean + norm.ppf((1 + c) / 2) * std)
        for c in (0.5, 0.9, 0.95)
    }
    found = Forecast(mean, std, intervals).figures(y)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert found["nll"] == pytest.approx(-norm(mean, std).logpdf(y).mean())
    grid = np.linspace(-40.0, 40.0, 400_001)
    crps = [
        np.trapezoid((norm(m, s).cdf(grid) - (grid >= t)) ** 2, grid)
        for m, s, t in zip(mean, std, y, strict=True)
    ]
    assert found["crps"] == pytest.approx(np.mean(crps), rel=1e-3)
    assert (found["coverage_50"], found["coverage_90"]) == (
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    )
    assert found["width"] == pytest.approx(np.mean(2 * norm.ppf(0.95) * std))


def test_a_contender_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    raw = SimpleNamespace(x=x, y=3.0 * x[:, 0] + 0.1, train=np.arange(50), test=np.arange(50, 60))
    monkeypatch.setitem(sets.SOURCES, "yacht", SimpleNamespace(read=lambda data_dir, number: raw))
    tasks = EXPERIMENT.tasks(Scope("small", 0, 1, None))
    assert {task.name for task in tasks} >= {"yacht-ours-s0", "yacht-gp-s0", "protein-ridge-s0"}
    for key in ("ridge", "gp", "boosting"):
        task = next(task for task in tasks if task.name == f"yacht-{key}-s0")
        assert isinstance(task, FunctionTask)
        row = fit(task.settings, Watch(tmp_path, task.name))
        assert set(experiment.METRICS) <= set(row)
        assert row["rmse"] < 3.0
