from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from gossamer.errors import CheckpointError, InvalidValue
from gossamer.report import comparison, print_comparison, read_run
from gossamer.report.compare import group_runs
from gossamer.report.quantities import format_number, format_spread, quantity


def shown(rows, *, width=160, as_json=False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_comparison(rows, console, json=as_json)
    return console.file.getvalue()


@pytest.fixture
def runs(make_run):
    values = [0.97, 0.974, 0.984]
    ssvi = [
        make_run(f"ssvi-seed{seed}", "ssvi", seed, metrics={"accuracy": value})
        for seed, value in enumerate(values)
    ]
    return [*ssvi, make_run("dense", "dense_vi"), make_run("table", "ssvi", regression=True)]


def test_seeds_are_grouped_with_mean_and_standard_error(runs):
    rows = comparison(runs)
    assert [row.name for row in rows] == ["ssvi", "dense", "table"]
    first = rows[0]
    assert (first.n, first.seeds, first.method) == (3, (0, 1, 2), "ssvi")
    assert first.runs == ("ssvi-seed0", "ssvi-seed1", "ssvi-seed2")
    accuracy = first.values["accuracy"]
    # By hand: mean 2.928 / 3; squared deviations 36e-6 + 4e-6 + 64e-6, over 2, over 3.
    assert accuracy.n == 3
    assert accuracy.mean == pytest.approx(0.976, abs=1e-15)
    assert accuracy.standard_error == pytest.approx(math.sqrt(104e-6 / 2 / 3), rel=1e-10)
    assert rows[1].n == 1
    assert rows[1].values["accuracy"].standard_error is None


def test_sparsity_and_nnz_are_exact(runs):
    row = comparison(runs)[0]
    total = 256 * 64 + 256 * 256 + 10 * 256
    assert row.values["nnz"].mean == round(total * (1 - 0.95)) == 4224
    assert row.sparsity == 1 - 4224 / total


def test_a_setting_that_an_older_run_did_not_have_splits_no_group(make_run):
    older = make_run("a", "ssvi", 0)
    younger = make_run("b", "ssvi", 1, config={"patience": None, "device": "cuda"})
    assert len(group_runs([read_run(older), read_run(younger)])) == 1


def test_no_shift_equals_an_older_run_and_another_shift_splits(make_run):
    older = make_run("a", "ssvi", 0)
    younger = make_run("b", "ssvi", 1, config={"shift": []})
    moved = make_run("c", "ssvi", 2, config={"shift": ["noise"]})
    groups = group_runs([read_run(path) for path in (older, younger, moved)])
    assert [[run.name for run in group.runs] for group in groups] == [["a", "b"], ["c"]]


def test_any_other_setting_splits_a_group(make_run):
    base = make_run("a", "ssvi", 0)
    other_rate = make_run("b", "ssvi", 1, config={"lr": 0.1})
    elsewhere = make_run("c", "ssvi", 2, config={"data_dir": "/elsewhere"})
    groups = group_runs([read_run(path) for path in (base, other_rate, elsewhere)])
    assert [[run.name for run in group.runs] for group in groups] == [["a", "c"], ["b"]]
    assert [group.label for group in groups] == ["ssvi 95 % · lr=none", "ssvi 95 % · lr=0.1"]


def test_facts_that_follow_from_the_seed_split_nothing(make_run):
    paths = [
        make_run(f"s{seed}", "ssvi", seed, config={"facts": {"data_sha256": f"{seed}", "n": 5}})
        for seed in range(3)
    ]
    (row,) = comparison(paths)
    assert row.n == 3


def test_a_run_without_config_stays_alone(make_run):
    paths = [make_run("a"), make_run("b")]
    for path in paths:
        (path / "config.json").unlink()
    rows = comparison(paths)
    assert [row.name for row in rows] == ["a", "b"]
    assert rows[0].method is None
    assert "–" in shown(rows)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["digits-seed0", "digits-seed1"], "digits"),
        (["ssvi-95-s0", "ssvi-95-s12"], "ssvi-95"),
        (["ssvi_0", "ssvi_1"], "ssvi"),
        (["table/run0", "table/run1"], "table"),
        (["0", "1"], "ssvi 95 %"),
        (["left", "right"], "ssvi 95 %"),
    ],
)
def test_name_of_a_group(make_run, names, expected):
    from dataclasses import replace

    runs = [
        replace(read_run(make_run(f"{index}", "ssvi", index)), name=name)
        for index, name in enumerate(names)
    ]
    assert [row.name for row in comparison(runs)] == [expected]


def test_table_holds_every_column(runs):
    text = shown(comparison(runs))
    for word in ("method", "data", "sparsity", "seeds", "accuracy ↑", "RMSE ↓", "NLL ↓", "ECE ↓"):
        assert word in text
    line = next(line for line in text.splitlines() if line.startswith("ssvi"))
    for cell in ("0.95", "0, 1, 2", "0.9760 ± 0.0042", "4,224", "101 kB", "13.5 ± 0.6 s"):
        assert cell in line
    table = next(line for line in text.splitlines() if line.startswith("table"))
    assert "53.20" in table
    assert "diabetes" in table


def at_terminal(rows, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison(rows, console)
    return console.file.getvalue().splitlines()


def tables(text: str) -> list[list[str]]:
    """Lines of each table: the comparison, foreign sets, means under corruption."""
    return [[line.rstrip() for line in part.splitlines()] for part in text.split("\n\n")]


def test_lines_stay_whole_in_a_file(runs):
    rows = comparison(runs)
    wide, narrow = tables(shown(rows, width=160)), tables(shown(rows, width=40))
    first = wide[0][:-1]  # without the caption, which is centred
    assert narrow[0][:-1] == first
    assert narrow[1:] == wide[1:]
    assert len(first) == 1 + len(rows)


def test_foreign_sets_stand_side_by_side_by_score(make_run):
    more = {"auroc_svhn": 0.8, "aupr_svhn": 0.7, "fpr95_svhn": 0.6, "auroc_energy_svhn": 0.85}
    local = {"auroc_local": 0.5, "aupr_local": 0.4, "fpr95_local": 0.3}
    paths = [
        make_run("a", "ssvi", metrics={**more, **local}),
        make_run("b", "sgd"),
        make_run("c", regression=True),
    ]
    table = tables(shown(comparison(paths)))[1]
    head = "run OOD set AUROC by entropy ↑ AUROC by mutual information ↑ AUROC by energy ↑"
    assert table[0].split() == [*head.split(), "AUPR", "↑", "FPR95", "↓"]
    assert [line.split() for line in table[1:]] == [
        ["a", "notmnist.npz", "0.9300", "0.9450", "0.9150", "0.9100", "0.2200"],
        ["a", "svhn", "0.8000", "–", "0.8500", "0.7000", "0.6000"],
        ["a", "notmnist.npz,", "local", "noise", "0.5000", "–", "–", "0.4000", "0.3000"],
        ["b", "notmnist.npz", "0.9300", "–", "0.9150", "0.9100", "0.2200"],
    ]


def test_foreign_sets_of_values_are_told_by_their_std(make_run):
    figures = {"auroc": 0.7, "aupr": 0.6, "fpr95": 0.5, "auroc_epistemic": 0.9}
    path = make_run("c", regression=True, metrics=figures)
    head, line = tables(shown(comparison([path])))[1]
    assert "AUROC by predicted std ↑" in head
    assert "AUROC by epistemic std ↑" in head
    assert "energy" not in head
    assert line.split()[2:] == ["0.7000", "0.9000", "0.6000", "0.5000"]


def test_means_under_corruption_follow(runs, make_run):
    measured = json.loads((runs[3] / "metrics.json").read_text())
    kept = {k: v for k, v in measured.items() if not k.startswith("shift")}
    (runs[3] / "metrics.json").write_text(json.dumps(kept))
    table = tables(shown(comparison(runs)))[2]
    assert [line.split()[0] for line in table] == ["run", "ssvi", "table"]
    assert "accuracy under shift ↑" in table[0]
    assert "coverage of 90 % under shift" in table[0]
    ssvi, values = (line.split() for line in table[1:])
    assert ssvi[1:] == ["0.7800", "–", "0.2730", "0.0390", "–"]
    assert values[1:] == ["–", "69.16", "0.2730", "–", "1.1570"]


def test_without_foreign_sets_and_shifts_there_is_one_table(make_run):
    folder = make_run("run")
    (folder / "metrics.json").write_text('{"accuracy": 0.9}')
    assert len(tables(shown(comparison([folder])))) == 1


def test_runs_become_columns_at_a_narrow_terminal(runs):
    rows = comparison(runs)
    assert at_terminal(rows, 200)[1].startswith("ssvi")
    lines = at_terminal(rows, 60)
    assert max(map(len, lines)) <= 60
    assert lines[0].split() == ["run", "ssvi", "dense", "table"]
    accuracy = next(line for line in lines if line.startswith("accuracy"))
    assert accuracy.split() == ["accuracy", "↑", "0.9760", "±", "0.0042", "0.9700", "–"]


def test_too_narrow_for_either_folds(runs):
    lines = at_terminal(comparison(runs), 30)
    assert max(map(len, lines)) <= 30
    assert len(lines) > 5


def test_columns_that_nobody_has_are_left_out(make_run):
    text = shown(comparison([make_run("run", regression=True)]))
    assert "accuracy" not in text
    assert "ECE" not in text
    assert "±" not in text


def test_a_metric_that_some_runs_lack_tells_n(make_run):
    paths = [make_run(f"s{seed}", "ssvi", seed) for seed in range(3)]
    metrics = json.loads((paths[2] / "metrics.json").read_text())
    del metrics["ece"]
    (paths[2] / "metrics.json").write_text(json.dumps(metrics))
    row = comparison(paths)[0]
    assert row.values["ece"].n == 2
    assert "(n=2)" in shown([row])


def test_json_is_strict_and_complete(make_run):
    paths = [
        make_run("a-0", "ssvi", 0, metrics={"crps": float("nan"), "passed": True, "words": "x"}),
        make_run("a-1", "ssvi", 1, metrics={"crps": float("nan")}),
    ]
    text = shown(comparison(paths), width=20, as_json=True)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (row,) = json.loads(text, parse_constant=refuse)
    assert row["name"] == "a"
    assert row["n"] == 2
    assert row["seeds"] == [0, 1]
    assert row["accuracy"] == pytest.approx(0.972, abs=1e-15)
    assert row["standard_error"]["accuracy"] == pytest.approx(0.002, rel=1e-10)
    assert row["crps"] is None
    assert row["sparsity"] == 0.95
    assert row["checkpoint_bytes"] == 24 * 4224
    assert "passed" not in row
    assert "words" not in row


def test_markup_in_names_is_not_obeyed(make_run):
    text = shown(comparison([make_run("[red]x[!red]")]))
    assert "[red]x[!red]" in text


def test_bad_runs(tmp_path):
    with pytest.raises(InvalidValue, match="at least one run"):
        comparison([])
    with pytest.raises(CheckpointError, match="is not a folder"):
        comparison([tmp_path / "x"])


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("accuracy", 0.97123, "0.9712"),
        ("rmse", 53.2, "53.20"),
        ("rmse", 12345.678, "12,345.68"),
        ("nnz", 1234567, "1,234,567"),
        ("checkpoint_bytes", 999, "999 B"),
        ("checkpoint_bytes", 101376, "101 kB"),
        ("checkpoint_bytes", 2_027_520, "2.03 MB"),
        ("checkpoint_bytes", 45_600, "45.6 kB"),
        ("checkpoint_bytes", 2_500_000_000_000, "2,500 GB"),
        ("seconds", 1234.56, "1,234.6 s"),
        ("sparsity", 0.94998765, "0.949988"),
        ("nll", float("inf"), "inf"),
        ("somewhat", 1.5, "1.5000"),
        ("aurc", 0.000123456, "0.000123"),
        ("aurc", 0.0, "0"),
        ("eaurc", 0.25, "0.2500"),
        ("aurc_entropy_local", 0.012345, "0.0123"),
        ("aurc", 1512.25, "1,512.25"),
        ("shift_noise_3_nll", 0.25, "0.2500"),
    ],
)
def test_numbers(key, value, text):
    assert format_number(key, value) == text


def test_spread_and_prefixed_names():
    assert format_spread("seconds", 13.5, 0.58) == "13.5 ± 0.6 s"
    assert format_spread("nnz", 100.0, 0.0) == "100"
    assert quantity("local.ece").label == "ECE (local)"
    assert quantity("local.ece").arrow == "↓"
    assert quantity("adaptive_ece_local").label == "adaptive ECE (local)"
    assert quantity("auroc_notmnist").label == "OOD AUROC (notmnist)"
    assert quantity("auroc_notmnist").arrow == "↑"
    assert quantity("auroc_energy_notmnist").label == "OOD AUROC by energy (notmnist)"
    assert quantity("auroc_mutual_information").label == "OOD AUROC by mutual information"
    assert quantity("auroc_energy").arrow == "↑"
    assert quantity("aurc_energy_local").label == "AURC by energy (local)"
    assert quantity("aurc").arrow == quantity("eaurc_local").arrow == "↓"
    assert quantity("epistemic_local").label == "epistemic std (local)"
    assert quantity("shift_accuracy").label == "accuracy under shift"
    assert quantity("shift_rotation_3_accuracy").label == "accuracy (rotation 3)"
    assert quantity("shift_noise_5_ece_local").label == "ECE (local) (noise 5)"
    assert quantity("shift_noise_5_ece_local").arrow == "↓"
    assert quantity("ece2").label == "ece2"
    assert quantity("new.thing").label == "new.thing"
