"""Test files, fractions, config files, time limits, and measuring on a labelled file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from gossamer.data import load
from gossamer.train import load_run

QUICK = ("--epochs", "3", "--set", "hidden=[16]", "--method", "ssvi", "--sparsity", "0.5")


def write(path: Path, rows: int, seed: int, *, classes: bool = False, target: str = "y") -> Path:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = 3.0 + 0.002 * x[:, 0] + 0.0003 * rng.normal(size=rows)
    shown = np.where(x[:, 0] > 1.2, "rare", "usual") if classes else [f"{v:.6f}" for v in y]
    lines = [f"{a:.4f},{b:.4f},{v}" for (a, b), v in zip(x, shown, strict=True)]
    path.write_text(f"a,b,{target}\n" + "\n".join(lines) + "\n")
    return path


def test_a_test_file_is_the_test_part(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.csv", 80, 0), write(tmp_path / "b.csv", 30, 1)
    words = ("train", "--data", train, "--target", "y", "--test", test, *QUICK, "--out", "run")
    answer = gossamer(*words, "--json")
    assert answer.code == 0, answer.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["facts"]["num_data"] == 72  # all but validation
    notes = json.loads((tmp_path / "run" / "preparation.json").read_text())["notes"]
    assert "test part: b.csv (30 rows)" in notes
    dataset = load(train, target="y", test=test)
    raw = np.genfromtxt(test, delimiter=",", skip_header=1)
    y = dataset.preparation.target_to_original(dataset.y_test.double()).numpy()
    assert y == pytest.approx(raw[:, 2], abs=1e-6)
    # Measured anew on the same file, the run's own metrics come back.
    again = gossamer("evaluate", "run", "--data", test, "--json").json
    for key in ("rmse", "nll", "crps", "coverage"):
        assert again[key] == pytest.approx(answer.json[key], rel=1e-6), key
    assert again["rows"] == 30
    assert gossamer("evaluate", "run", "--json").json["rmse"] == answer.json["rmse"]


def test_a_test_file_that_does_not_fit(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.csv", 80, 0), write(tmp_path / "b.csv", 30, 1, target="z")
    words = ("train", "--data", train, "--target", "y", "--out", "run")
    error = gossamer(*words, "--test", test).error
    assert "columns of b.csv = y: the target is missing and not there" in error
    assert "cannot be told beside" in gossamer(*words, "--test", test, "--test-fraction", "0").error
    error = gossamer("train", "--test", test, "--out", "run").error
    assert "is for tables; digits has its own test part" in error
    assert "must lie in [0, 1)" in gossamer(*words, "--test-fraction", "1").error
    assert not (tmp_path / "run").exists()


def test_without_a_test_part_there_are_no_test_metrics(
    gossamer: Callable[..., Any], tmp_path: Path
) -> None:
    data = write(tmp_path / "a.csv", 80, 0)
    words = ("train", "--data", data, "--target", "y", "--test-fraction", "0", *QUICK)
    answer = gossamer(*words, "--out", "run", "--json")
    assert answer.code == 0, answer.err
    assert "no test part, no test metrics" in answer.err
    assert not {"rmse", "nll", "coverage"} & set(answer.json)
    assert answer.json["nnz"] > 0
    assert (tmp_path / "run" / "report.html").exists()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["facts"]["num_data"] == 72
    assert "has no test part; give a labelled file" in gossamer("evaluate", "run").error
    assert gossamer("evaluate", "run", "--data", data, "--json").json["rmse"] < 0.1
    assert gossamer("compare", "run").code == 0
    assert "is measured beside a test part" in gossamer(*words, "--out", "x", "--ood", data).error


@pytest.mark.parametrize("fraction", [0.2, 0.4])
def test_classes_keep_their_shares(tmp_path: Path, fraction: float) -> None:
    data = write(tmp_path / "c.csv", 300, 3, classes=True)
    found = load(data, target="y", test_fraction=fraction)
    assert len(found.y_test) == round(300 * fraction)
    parts = (found.y_train, found.y_val, found.y_test)
    rare = sum(int((part == 0).sum()) for part in parts)
    for part in parts:
        assert abs(int((part == 0).sum()) - rare * len(part) / 300) <= 1.0


def test_settings_from_a_file(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 80, 0)
    (tmp_path / "run.toml").write_text(
        'data = "a.csv"\ntarget = "y"\nmethod = "ssvi"\nepochs = 9\nbatch-size = 16\n'
        'out = "run"\nhidden = [8, 8]\nlikelihood = "student_t"\n\n'
        "[method_options]\nsparsity = 0.4\n\n[likelihood_options]\ndegrees_of_freedom = 5.0\n"
    )
    answer = gossamer("train", "--config", "run.toml", "--epochs", "2", "--json")
    assert answer.code == 0, answer.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["epochs"], config["batch_size"]) == (2, 16)  # an option wins
    assert config["model_options"] == {"hidden": [8, 8]}
    assert config["method_options"] == {"sparsity": 0.4}
    assert config["likelihood_options"] == {"degrees_of_freedom": 5.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = ", "is no TOML"),
        ("epoch = 3", "did you mean epochs"),
        ("[rules]\na = 1", "is no table of settings"),
        ('ood = "digits"', "must be a list of names"),
        ("epochs = -1", "epochs = -1"),
    ],
)
def test_files_that_are_no_settings(
    gossamer: Callable[..., Any], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "run.toml").write_text(text)
    assert message in gossamer("train", "--config", "run.toml").error


def test_a_file_that_is_not_there(gossamer: Callable[..., Any]) -> None:
    assert "cannot be read" in gossamer("train", "--config", "none.toml").error


def test_time_runs_out(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", 200, 0)
    words = ("train", "--data", data, "--target", "y", *QUICK[2:], "--epochs", "100000")
    answer = gossamer(*words, "--time-limit", "0.5", "--out", "run", "--json")
    assert answer.code == 0, answer.err
    assert "time limit of 0.5 s reached after step" in answer.err
    assert answer.json["status"] == "finished"
    assert 0.5 <= answer.json["seconds"] < 30.0
    assert answer.json["rmse"] > 0.0
    again = gossamer("train", "--resume", "--out", "run", "--json")
    assert again.json["status"] == "already_finished"


def test_labelled_files_that_do_not_fit(gossamer: Callable[..., Any], trained: Path) -> None:
    Path("x.csv").write_text("a,b\n1,2\n")
    assert "must hold the target" in gossamer("evaluate", trained, "--data", "x.csv").error


def test_figures_of_numbers_have_their_units(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", 150, 0)
    words = ("train", "--data", data, "--target", "y", *QUICK, "--out", "run")
    assert gossamer(*words, "--json").code == 0
    found = gossamer("evaluate", "run", "--json").json
    dataset = load(data, target="y")
    ready = dataset.preparation
    posterior = load_run("run").posterior
    pred = posterior.predict(dataset.x_test, 5, seed=0)
    y = ready.target_to_original(dataset.y_test.double()).numpy()
    mean = ready.target_to_original(pred.mean.double()).numpy()
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, mean), rel=1e-5)
    assert found["r2"] == pytest.approx(sk.r2_score(y, mean), rel=1e-4)
    low, high = pred.interval(0.9)
    width = ready.scale_to_original((high - low).double()).mean()
    assert found["width"] == pytest.approx(float(width), rel=1e-4)
    assert found["interval_level"] == 0.9
    # The target's std is 0.002: nothing may look like 0.
    assert found["rmse"] < 0.005
    table = gossamer("evaluate", "run").out
    assert "0.0000" not in table
    shown = {line.split("  ")[0].strip(): line.split()[-1] for line in table.splitlines()}
    assert float(shown["RMSE"]) == pytest.approx(found["rmse"], rel=1e-3)
    assert "coverage of 90 %" in shown
    assert "width of 90 %" in shown
    told = gossamer("predict", "run", data, "--json").json
    assert told["interval_level"] == 0.9


def test_figures_of_rare_classes(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    data = write(tmp_path / "c.csv", 200, 0, classes=True)
    answer = gossamer("train", "--data", data, "--target", "y", *QUICK, "--out", "run", "--json")
    found = answer.json
    dataset = load(data, target="y")
    pred = load_run("run").posterior.predict(dataset.x_test, 5, seed=0)
    y, score = dataset.y_test.numpy(), pred.probs[:, 1].numpy()
    assert found["roc_auc"] == pytest.approx(sk.roc_auc_score(y, score), abs=1e-9)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(y, score))
    matrix = found["confusion_matrix"]
    assert matrix["labels"] == ["rare", "usual"]
    assert matrix["counts"] == sk.confusion_matrix(y, pred.label.numpy(), labels=[0, 1]).tolist()
    assert gossamer("evaluate", "run", "--json").json["confusion_matrix"] == matrix
    drawn = gossamer("evaluate", "run").out
    assert "given rare" in drawn


def test_compare_is_a_leaderboard(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", 150, 0)
    for name, epochs in (("short", "1"), ("long", "40")):
        words = ("train", "--data", data, "--target", "y", *QUICK[2:], "--epochs", epochs)
        assert gossamer(*words, "--out", name, "--no-report", "--json").code == 0
    rows = gossamer("compare", "short", "long", "--json").json
    assert [row["rank"] for row in rows] == [1, 2]
    assert rows[0]["nll"] < rows[1]["nll"]
    assert all(row["seconds"] > 0 and row["predict_seconds"] > 0 for row in rows)
    worst = gossamer("compare", "short", "long", "--sort", "r2", "--json").json
    assert worst[0]["r2"] > worst[1]["r2"]
    given = gossamer("compare", "short", "long", "--sort", "none", "--json").json
    assert [row["name"] for row in given] == ["short", "long"]
    assert "rank" not in given[0]
    table = gossamer("compare", "short", "long").out
    assert table.splitlines()[0].split()[0] == "#"
    for heading in ("fit time", "predict time", "coverage of 90 %"):
        assert heading in table
    assert "better side" in gossamer("compare", "short", "--sort", "coverage").error
