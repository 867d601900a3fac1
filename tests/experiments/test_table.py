from __future__ import annotations

import math
from pathlib import Path

import pytest

from gossamer.errors import UnknownName
from gossamer.estimates import Estimate
from gossamer.experiments import (
    EXPERIMENTS,
    Experiment,
    Line,
    RunTable,
    RunTask,
    Scope,
    at_least,
    at_most,
    find_experiment,
    repeated,
)
from gossamer.experiments.table import expected_figures
from gossamer.train import RunConfig

TABLES = {key: one for key, one in EXPERIMENTS.items() if isinstance(one.conclude, RunTable)}
DEMO = TABLES["gossamer/demo"].conclude


def line(key: str = "a", **means: float) -> Line:
    return Line(key, key, (0, 1), {k: Estimate(v, 0.01, 2) for k, v in means.items()})


@pytest.mark.parametrize(("mean", "low", "high"), [(0.97, True, True), (0.98, True, False)])
def test_bounds_include_their_end(mean: float, low: bool, high: bool) -> None:
    results = {"a": line(accuracy=mean)}
    assert at_least("a", "accuracy", 0.97).function(results)[0] is low
    assert at_most("a", "accuracy", 0.97).function(results)[0] is high
    assert at_least("a", "accuracy", 0.97).function(results)[1] == f"{mean:.4f} ± 0.0100"
    assert at_least("a", "accuracy", 0.97).name == "a: accuracy ≥ 0.9700"


def test_a_metric_that_is_missing_passes_no_bound() -> None:
    results = {"a": line()}
    assert math.isnan(results["a"].mean("accuracy"))
    assert at_least("a", "accuracy", 0.0).function(results) == (False, "–")
    assert at_most("a", "accuracy", 1.0).function(results) == (False, "–")


def test_sizes_show_an_error_only_if_it_can_be_seen() -> None:
    sizes = {"nnz": Estimate(4224.0, 0.0, 2), "checkpoint_bytes": Estimate(145e3, 1.0, 2)}
    shown = Line("a", "a", (0, 1), sizes)
    assert (shown.shown("nnz"), shown.shown("checkpoint_bytes")) == ("4,224", "145 kB")


def test_repeats_differ_by_seed_only() -> None:
    rows = repeated("a", "A", RunConfig(epochs=3), Scope(seed=5, repeats=3))
    assert [row.name for row in rows] == ["a-s5", "a-s6", "a-s7"]
    differences = {rows[0].config.first_difference(row.config) for row in rows[1:]}
    assert {difference[0] for difference in differences if difference} == {"seed"}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))
@pytest.mark.parametrize("data_dir", [None, "somewhere"])
def test_every_registered_experiment_is_sound(
    experiment: Experiment, data_dir: str | None, tmp_path: Path
) -> None:
    assert find_experiment(experiment.key) is experiment
    assert set(experiment.repeats) == set(experiment.scales)
    for scale in experiment.scales or ("",):
        tasks = experiment.tasks(Scope(scale, 3, 2, data_dir))
        assert tasks
        assert len({task.name for task in tasks}) == len(tasks)
        assert all(task.found(tmp_path) is None for task in tasks)


@pytest.mark.parametrize("experiment", TABLES.values(), ids=list(TABLES))
@pytest.mark.parametrize("data_dir", [None, "somewhere"])
def test_every_registered_table_has_its_lines(experiment: Experiment, data_dir: str | None) -> None:
    for scale in experiment.scales:
        runs = experiment.tasks(Scope(scale, 3, 2, data_dir))
        assert all(isinstance(run, RunTask) for run in runs)
        keys = [run.line for run in runs]
        assert [key for key in dict.fromkeys(keys) for _ in range(2)] == keys
        assert {run.config.seed for run in runs} == {3, 4}
        assert set(expected_figures(experiment.key)) <= set(keys)


def test_an_unknown_experiment_lists_the_known() -> None:
    with pytest.raises(UnknownName, match="gossamer/demo"):
        find_experiment("gossamer/nothing")


def test_expected_figures_may_be_missing() -> None:
    assert expected_figures("nobody2099/table") == {}
    assert expected_figures("gossamer/demo")["ssvi-95"]["accuracy"] == 0.97


def test_the_demo_checks_sparsity_exactly() -> None:
    check = DEMO.checks[-1]

    def results(nnz: float, sparsity: float, error: float = 0.0) -> dict[str, Line]:
        values = {"nnz": Estimate(nnz, error, 3), "sparsity": Estimate(sparsity, 0.0, 3)}
        return {key: Line(key, key, (0, 1, 2), values) for key in ("fast", "ssvi-95", "rigl-95")}

    assert check.function(results(4224, 1 - 4224 / 84480)) == (
        True,
        "fast 4,224 of 84,480, ssvi-95 4,224 of 84,480, rigl-95 4,224 of 84,480",
    )
    assert not check.function(results(4225, 1 - 4225 / 84480))[0]
    assert not check.function(results(4224, 1 - 4224 / 84480, error=1.0))[0]


def test_the_reference_stands_beside_ours() -> None:
    lines = (line("ssvi-95", accuracy=0.98, ece=0.05), line("rigl-95"))
    expected = expected_figures("gossamer/demo")
    found = DEMO.reference_table(lines, expected)
    assert found.headings[2:] == ["target", "ours", "±", "difference", "n"]
    rows = found.rows
    assert rows[0] == ["ssvi-95", "accuracy", "0.9700", "0.9800", "0.0100", "+0.01", "2"]
    assert rows[1][-2:] == ["+0.01", "2"]
    assert rows[2] == ["ssvi-95", "sparsity", "0.95", "–", "–", "–", "0"]
    assert lines[0].to_json("target", expected["ssvi-95"])["target"]["ece"] == 0.04
    text = found.to_markdown()
    assert "| --- | --- | ---: | ---: | ---: | ---: | ---: |" in text
    assert "| ssvi-95 | ECE | 0.0400 | 0.0500 |" in text
