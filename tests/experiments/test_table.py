from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from gossamer.errors import UnknownName
from gossamer.estimates import Estimate
from gossamer.experiments import (
    STUDIES,
    TABLES,
    Line,
    RichTableProgress,
    Study,
    Table,
    at_least,
    at_most,
    default_table_progress,
    find_experiment,
    repeated,
)
from gossamer.experiments.progress import PlainTableProgress
from gossamer.experiments.result import TableResult
from gossamer.experiments.table import read_expected
from gossamer.train import RunConfig


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
    rows = repeated("a", "A", RunConfig(epochs=3), seed=5, repeats=3)
    assert [row.run for row in rows] == ["a-s5", "a-s6", "a-s7"]
    differences = {rows[0].config.first_difference(row.config) for row in rows[1:]}
    assert {difference[0] for difference in differences if difference} == {"seed"}


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
@pytest.mark.parametrize("data_dir", [None, "somewhere"])
def test_every_registered_table_is_sound(table: Table, data_dir: str | None) -> None:
    for scale in table.scales:
        rows = table.rows(scale=scale, seed=3, repeats=2, data_dir=data_dir)
        assert len({row.run for row in rows}) == len(rows)
        keys = [row.key for row in rows]
        assert [key for key in dict.fromkeys(keys) for _ in range(2)] == keys
        assert {row.config.seed for row in rows} == {3, 4}
        assert set(table.expected) <= set(keys)
    assert find_experiment(table.key) is table


def test_every_registered_study_is_found() -> None:
    assert all(isinstance(find_experiment(key), Study) for key in STUDIES)
    with pytest.raises(UnknownName, match="gossamer/demo"):
        find_experiment("gossamer/nothing")


def test_expected_figures_may_be_missing() -> None:
    assert read_expected("nobody2099") == {}
    assert TABLES["gossamer/demo"].expected["ssvi-95"]["accuracy"] == 0.97


def test_the_demo_checks_sparsity_exactly() -> None:
    check = TABLES["gossamer/demo"].checks[-1]

    def results(nnz: float, sparsity: float, error: float = 0.0) -> dict[str, Line]:
        values = {"nnz": Estimate(nnz, error, 3), "sparsity": Estimate(sparsity, 0.0, 3)}
        return {key: Line(key, key, (0, 1, 2), values) for key in ("ssvi-95", "rigl-95")}

    assert check.function(results(4224, 1 - 4224 / 84480)) == (
        True,
        "ssvi-95 4,224 of 84,480, rigl-95 4,224 of 84,480",
    )
    assert not check.function(results(4225, 1 - 4225 / 84480))[0]
    assert not check.function(results(4224, 1 - 4224 / 84480, error=1.0))[0]


def test_the_reference_stands_beside_ours() -> None:
    table = TABLES["gossamer/demo"]
    lines = (line("ssvi-95", accuracy=0.98, ece=0.05), line("rigl-95"))
    result = TableResult(table, "small", lines, (), (), None)
    headings, rows = result.reference_cells()
    assert headings[2:] == ["target", "ours", "±", "difference", "n"]
    assert rows[0] == ["ssvi-95", "accuracy", "0.9700", "0.9800", "0.0100", "+0.01", "2"]
    assert rows[1][-2:] == ["+0.01", "2"]
    assert rows[2] == ["ssvi-95", "sparsity", "0.95", "–", "–", "–", "0"]
    assert result.to_json()["rows"][0]["target"]["ece"] == 0.04
    assert "| ssvi-95 | ECE | 0.0400 | 0.0500 |" in result.to_markdown()


def test_bars_on_a_terminal() -> None:
    screen = io.StringIO()
    progress = RichTableProgress(Console(file=screen, force_terminal=True, width=100))
    progress.start(3, 1)
    progress.update("a-s0", 0.5, "acc 0.9")
    progress.update("a-s1", 0.25, "acc [0.8]")
    progress.finish("a-s0", "accuracy [0.95]")
    progress.close()
    progress.close()
    shown = screen.getvalue()
    assert "2/3 runs" in shown
    assert "a-s0: accuracy [0.95]" in shown
    assert "a-s1" in shown


def test_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    progress = default_table_progress()
    assert isinstance(progress, PlainTableProgress)
    progress.start(3, 1)
    progress.update("a-s0", 0.5, "acc 0.9")
    progress.finish("a-s0", "accuracy 0.95")
    progress.close()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "3 runs, 1 of them finished before\n[2/3] a-s0: accuracy 0.95\n"
