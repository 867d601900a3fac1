from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gossamer.cli import train as train_command
from gossamer.train import PlainProgress

TINY = ("--epochs", "2", "--limit-train", "200", "--set", "hidden=[16]", "--no-report")
DESIGN_KEYS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece"),
    *("marginal_calibration_error", "nnz", "sparsity", "seconds"),
)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_json_has_the_agreed_keys_and_the_default_folder(gossamer: Callable[..., Any]) -> None:
    answer = gossamer(
        "train",
        "--method",
        "ssvi",
        "--sparsity",
        "0.9",
        *TINY,
        "--seed",
        "3",
        "--json",
        "--ood",
        "digits",
        "--shift",
        "noise",
        "--shift",
        "blur",
    )
    assert answer.code == 0
    run = Path("runs/digits-mlp-ssvi-0.9-s3")
    found = answer.json
    assert found["run"] == str(run)
    assert found["status"] == "finished"
    assert set(DESIGN_KEYS) | {"auroc", "aupr", "fpr95", "checkpoint_bytes"} <= set(found)
    assert {"auroc_energy", "aurc", "eaurc", "shift_nll", "shift_blur_5_ece"} <= set(found)
    assert found["nnz"] == round(0.1 * (64 * 16 + 16 * 10))
    stored = json.loads((run / "metrics.json").read_text())
    assert {key: found[key] for key in stored} == stored
    config = json.loads((run / "config.json").read_text())
    assert config["method_options"] == {"sparsity": 0.9}
    assert config["model_options"] == {"hidden": [16]}
    assert (config["epochs"], config["limit_train"], config["ood"]) == (2, 200, ["digits"])
    assert config["shift"] == ["noise", "blur"]


def test_people_get_figures_progress_lines_and_a_report(gossamer: Callable[..., Any]) -> None:
    words = [word for word in TINY if word != "--no-report"]
    answer = gossamer("train", *words, "--method", "sgd", "--out", "run")
    assert answer.code == 0
    assert "accuracy" in answer.out
    assert "run/report.html" in answer.out
    assert "200 examples, 2 epochs" in answer.err
    assert (Path("run") / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_quiet_says_nothing_beside_the_result(gossamer: Callable[..., Any]) -> None:
    answer = gossamer("train", *TINY, "--quiet", "--json", "--out", "run")
    assert answer.code == 0
    assert answer.err == ""
    assert answer.json["run"] == "run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data", "nothing"), "data set = nothing: is not known; choose one of:"),
        (("--data", "no.csv", "--target", "y"), "file = no.csv: does not exist"),
        (("--data", "mnist"), "give --data-dir DIR or set GOSSAMER_DATA"),
        (("--model", "nothing"), "model = nothing: is not known"),
        (("--method", "nothing"), "method = nothing: is not known"),
        (("--preset", "nothing"), "preset of ssvi = nothing: is not known"),
        (("--likelihood", "nothing"), "likelihood = nothing: is not known"),
        (("--likelihood", "gaussian"), "does not fit classification"),
        (("--noise", "nothing"), "noise = nothing: must be 'weight' or 'local' or 'both'"),
        (("--task", "regression"), "task = regression: digits is for classification"),
        (("--backend", "nothing"), "nothing: is not known"),
        (("--ood", "nothing"), "data set = nothing: is not known"),
        (("--shift", "fog"), "shift = fog: is not known; choose one of: all, blur, contrast"),
        (
            ("--data", "diabetes", "--shift", "noise", "--shift", "blur"),
            "shift = blur: is for images, this is a table; use noise",
        ),
        (("--set", "nothing=1"), "setting = nothing: is no setting"),
        (("--set", "kl_weight"), "--set = kl_weight: must read key=value"),
        (("--method", "ssvi", "--set", "removal=nothing"), "removal = nothing: is not known"),
        (("--set", "hidden=12"), "hidden = 12: must be a list of whole numbers; e.g. [64, 64]"),
        (("--sparsity", "1"), "sparsity = 1: must lie in [0, 1)"),
        (("--sparsity", "-1"), "sparsity = -1: must lie in [0, 1)"),
        (("--sparsity", "most"), "sparsity = most: must be a number; see gossamer methods ngvi"),
        (("--sparsity", "0.9999"), "one would be empty; use at most"),
        (("--method", "dense_vi", "--sparsity", "0.5"), "of dense_vi"),
        (("--batch-size", "201"), "batch_size = 201: must not exceed the number of training"),
        (("--epochs", "many"), "epochs = many: must be a whole number"),
        (("--lr", "-1"), "lr = -1: must be a number > 0"),
        (("--validation-fraction", "1"), "validation_fraction = 1: must lie in [0, 1)"),
        (("--device", "gpu"), "device = gpu: must be auto, cpu, cuda, cuda:N or mps"),
        (("--resume",), "does not exist; start it without --resume"),
    ],
)
def test_a_wrong_input_is_one_line_and_leaves_nothing_behind(
    gossamer: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in gossamer("train", *TINY, "--out", "run", *words).error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("inf", "column 'a', row 30 = inf: must be finite"),
        ("1,5", "column 'a', row 30 = 1,5: is not a number"),
    ],
)
def test_a_bad_cell_of_a_table_is_named(
    gossamer: Callable[..., Any], tmp_path: Path, cell: str, said: str
) -> None:
    rows = [f"{i / 7},{'yes' if i % 2 else 'no'}" for i in range(60)]
    rows[30] = f'"{cell}",no'
    Path("own.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    words = ("train", "--data", "own.csv", "--epochs", "1", "--out", "run")
    assert said in gossamer(*words, "--target", "b").error
    assert "target: must name a column" in gossamer(*words).error
    assert "target column = c: is not known" in gossamer(*words, "--target", "c").error
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


def test_an_existing_run_is_not_touched(
    gossamer: Callable[..., Any], trained: Path, tmp_path: Path
) -> None:
    before = snapshot(trained)
    error = gossamer("train", *TINY, "--out", trained).error
    assert "never overwritten; continue it with --resume or choose another --out" in error
    assert snapshot(trained) == before


def test_a_foreign_folder_is_not_touched(gossamer: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("all of it")
    for words in (TINY, (*TINY, "--resume"), ("--resume",)):
        assert "home" in gossamer("train", *words, "--out", "home").error
    assert snapshot(tmp_path) == {"home/thesis.tex": b"all of it"}


def test_resume_of_a_finished_run_answers_again(
    gossamer: Callable[..., Any], trained: Path
) -> None:
    before = snapshot(trained)
    answer = gossamer("train", "--resume", "--out", trained, "--json", "--no-report")
    assert answer.code == 0
    assert answer.json["status"] == "already_finished"
    assert answer.json["accuracy"] == json.loads(before["metrics.json"])["accuracy"]
    assert snapshot(trained) == before


def test_resume_with_another_setting_is_refused(
    gossamer: Callable[..., Any], trained: Path
) -> None:
    error = gossamer("train", "--resume", "--out", trained, "--epochs", "9").error
    assert error.startswith("epochs = 9: differs from the run's own, 2")
    error = gossamer("train", "--resume", "--out", trained, "--shift", "all").error
    assert error.startswith("shift = ['all']: differs from the run's own, []")
    error = gossamer("train", "--resume", "--out", trained, "--sparsity", "0.5").error
    assert error.startswith("method_options.sparsity = 0.5: differs")


def test_resume_of_a_damaged_run_is_refused(
    gossamer: Callable[..., Any], trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, "run")
    Path("run/metrics.json").unlink()
    for file in Path("run/checkpoints").glob("*/tensors.safetensors"):
        file.write_bytes(b"x" + file.read_bytes()[1:])
    error = gossamer("train", "--resume", "--out", "run", "--quiet").error
    assert "hold no intact one" in error
    Path("run/config.json").write_text("{")
    assert "is damaged: not JSON" in gossamer("train", "--resume", "--out", "run").error


class Interrupting(PlainProgress):
    """Presses Ctrl-C at a step; twice where it is told so."""

    def __init__(self, at: int, times: int = 1) -> None:
        super().__init__()
        self.at, self.times = at, times

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        if step == self.at:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def test_interrupt_then_resume_with_out_alone_equals_a_straight_run(
    gossamer: Callable[..., Any], trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "default_progress", lambda: Interrupting(3))
        answer = gossamer("train", *TINY, "--out", "run", "--json")
    assert answer.code == 130
    assert answer.json == {"run": "run", "status": "interrupted", "epoch": 0, "step": 3}
    assert "go on with: gossamer train --resume --out run" in answer.err
    answer = gossamer("train", "--resume", "--out", "run", "--json", "--no-report")
    assert answer.code == 0
    straight = json.loads((trained / "metrics.json").read_text())
    resumed = answer.json
    wall_clock = (
        "seconds",
        "checkpoint_bytes",
        "predict_seconds",
    )  # the checkpoint holds the seconds as text
    for key in set(straight) - set(wall_clock):
        assert resumed[key] == straight[key], key


def test_a_second_interrupt_stops_at_once_and_says_how_to_go_on(
    gossamer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_command, "default_progress", lambda: Interrupting(3, times=2))
    answer = gossamer("train", *TINY, "--out", "run", "--json")
    assert (answer.code, answer.out) == (130, "")
    last = answer.err.splitlines()[-1]
    assert last == "gossamer: interrupted; go on with: gossamer train --resume --out run"
