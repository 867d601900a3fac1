from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_it_repeats_the_runs_own_metrics(gossamer: Callable[..., Any], trained: Path) -> None:
    answer = gossamer("evaluate", trained, "--json")
    assert answer.code == 0
    stored = json.loads((trained / "metrics.json").read_text())
    found = answer.json
    for key in set(stored) - {"seconds", "checkpoint_bytes", "predict_seconds"}:
        assert found[key] == stored[key], key
    assert found["seconds"] > 0


def test_noise_samples_and_outsiders_can_be_chosen(
    gossamer: Callable[..., Any], trained: Path
) -> None:
    words = ("--noise", "both", "--num-samples", "2", "--ood", "digits", "--json")
    found = gossamer("evaluate", trained, *words).json
    assert (found["noise"], found["num_samples"]) == ("both", 2)
    assert {"accuracy", "accuracy_local", "auroc", "auroc_local", "aupr", "fpr95"} <= set(found)
    # The outsiders are the test set itself: no score can tell them apart.
    for score in ("auroc", "auroc_mutual_information", "auroc_energy"):
        assert found[score] == pytest.approx(0.5, abs=1e-12)
    assert not [key for key in found if key.startswith("shift")]


def test_shifts_can_be_chosen(gossamer: Callable[..., Any], trained: Path) -> None:
    words = ("--shift", "noise", "--shift", "rotation", "--num-samples", "2", "--json")
    found = gossamer("evaluate", trained, *words).json
    shifts = {key for key in found if key.startswith("shift_")}
    assert len(shifts) == 3 + 2 * 5 * 3
    assert {"shift_accuracy", "shift_nll", "shift_ece", "shift_noise_5_ece"} <= shifts
    assert "is not known; choose one of: all" in gossamer("evaluate", trained, "--shift", "x").error
    stored = json.loads((trained / "metrics.json").read_text())
    assert not [key for key in stored if key.startswith("shift")], "the run stays as it is"


def test_people_get_a_table(gossamer: Callable[..., Any], trained: Path) -> None:
    answer = gossamer("evaluate", trained)
    assert answer.code == 0
    assert "ECE" in answer.out
    assert answer.err == ""


def test_foreign_sets_and_severities_have_tables_of_their_own(
    gossamer: Callable[..., Any], trained: Path
) -> None:
    words = ("evaluate", trained, "--ood", "digits", "--shift", "blur", "--num-samples", "2")
    values = gossamer(*words, "--json").json
    one, foreign, moved, confusion = gossamer(*words).out.split("\n\n")
    assert len(confusion.strip().splitlines()) == 1 + 10
    assert "OOD AUROC" not in one
    assert "blur" not in one
    assert "accuracy under shift" in one
    assert "AURC by mutual information" in one
    heads, line = foreign.splitlines()
    wanted = ("by entropy", "by mutual information", "by energy", "AUPR", "FPR95")
    assert [heads.index(text) for text in wanted] == sorted(heads.index(text) for text in wanted)
    keys = ("auroc", "auroc_mutual_information", "auroc_energy", "aupr", "fpr95")
    assert line.split() == ["digits", *(f"{values[key]:.4f}" for key in keys)]
    table = [line.split() for line in moved.splitlines()]
    assert table[0] == ["under", "shift", "clean", *"12345"]
    for line, key in zip(table[1:], ("accuracy", "nll", "ece"), strict=True):
        severe = [values[f"shift_blur_{severity}_{key}"] for severity in range(1, 6)]
        assert line[1:] == ["blur", *(f"{value:.4f}" for value in (values[key], *severe))]


def test_a_folder_that_is_no_run_is_refused(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    assert "config.json" in gossamer("evaluate", "nowhere").error
    (tmp_path / "home").mkdir()
    assert "is this a run folder?" in gossamer("evaluate", "home").error


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_refused(
    gossamer: Callable[..., Any], trained: Path, damage: str
) -> None:
    shutil.copytree(trained, "run")
    files = [*Path("run").glob("posterior.*"), *Path("run").glob("*/*/tensors.safetensors")]
    assert len(files) >= 2
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        if damage == "remove":
            file.unlink()
        else:
            file.write_bytes(content if damage == "flip" else content[:-10])
    error = gossamer("evaluate", "run").error
    assert "hold no intact one" in error
    assert "is damaged" in error


def test_one_damaged_checkpoint_is_passed_over_with_a_notice(
    gossamer: Callable[..., Any], trained: Path
) -> None:
    shutil.copytree(trained, "run")
    newest = max(Path("run/checkpoints").glob("step-*"))
    (newest / "state.json").write_text("{}")
    assert gossamer("evaluate", "run", "--json").json["step"] == int(newest.name[5:])
    Path("run/posterior.safetensors").write_bytes(b"")
    answer = gossamer("evaluate", "run", "--json")
    assert answer.code == 0
    assert "posterior is damaged" in answer.err
    assert f"{newest.name} is damaged" in answer.err
    assert answer.json["step"] < int(newest.name.removeprefix("step-"))


def test_unknown_choices_are_named(gossamer: Callable[..., Any], trained: Path) -> None:
    assert (
        "noise = loud: must be 'weight' or"
        in gossamer("evaluate", trained, "--noise", "loud").error
    )
    assert "num_samples = 0" in gossamer("evaluate", trained, "--num-samples", "0").error
    assert "data set = x: is not known" in gossamer("evaluate", trained, "--ood", "x").error


def test_data_that_changed_are_refused(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "x_train": draw.normal(size=(60, 3)),
        "y_train": draw.integers(0, 2, 60),
        "x_test": draw.normal(size=(20, 3)),
        "y_test": draw.integers(0, 2, 20),
    }
    np.savez(tmp_path / "own.npz", **arrays)
    words = ("--epochs", "1", "--batch-size", "16", "--set", "hidden=[8]", "--sparsity", "0.5")
    answer = gossamer(
        "train", "--data", "own.npz", *words, "--out", "run", "--no-report", "--quiet"
    )
    assert answer.code == 0
    assert gossamer("evaluate", "run", "--json").code == 0
    arrays["x_train"] = arrays["x_train"] + 1
    np.savez(tmp_path / "own.npz", **arrays)
    assert "is not what the run was trained on" in gossamer("evaluate", "run").error
