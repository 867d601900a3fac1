"""The table of cvadam2023/fashion: its rows, its verdicts by hand, and all lines on tiny images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.errors import InvalidData
from gossamer.estimates import Estimate
from gossamer.experiments import Line, Scope, find_experiment, run_experiment
from gossamer.experiments.cvadam2023 import fashion
from gossamer.experiments.cvadam2023.fashion import EXPERIMENT, SAMPLES, base_config, tasks
from gossamer.inference import resolve_config
from gossamer.inference.chain import ChainConfig, sample_steps
from gossamer.train import train

DENSE = ["sgd", "csgld", "cv_sghmc", "cv_adam"]
SPARSE = [f"{pruning}-{share}" for pruning in ("dfp", "dpf") for share in (70, 80, 90)]


def test_rows_differ_in_method_and_seed_only() -> None:
    assert find_experiment("cvadam2023/fashion") is EXPERIMENT
    found = tasks(Scope("small", 4, 2, "D"))
    assert [row.line for row in found] == [key for key in DENSE + SPARSE for _ in range(2)]
    assert [row.config.seed for row in found] == [4, 5] * 10
    plain = base_config("D")
    for row in found:
        same = replace(row.config, seed=0, method=plain.method, method_options={})
        assert same == plain
        assert row.config.evaluate_on == "test"


def test_all_samples_that_predict_are_from_after_the_pruning() -> None:
    """``predict`` takes the latest ones: as many as were kept after ``prune_end``."""
    for row in tasks(Scope("small")):
        config = resolve_config(row.config.method, **row.config.method_options)
        if not isinstance(config, ChainConfig) or row.line == "cv_adam":
            continue
        total = 12 * 157  # 10,000 images in batches of 64
        late = [step for step in sample_steps(config, total) if step > total / 2]
        assert len(late) == SAMPLES
        assert getattr(config, "prune_end", 0.5) == 0.5


def line(key: str, accuracy: float, error: float = 0.002, sparsity: float = 0.0) -> Line:
    values = {
        "accuracy": Estimate(accuracy, error, 3),
        "sparsity": Estimate(sparsity, 0.0, 3),
    }
    return Line(key, key, (0, 1, 2), values)


def test_verdicts_by_hand() -> None:
    results = {key: line(key, 0.88) for key in DENSE}
    for key in SPARSE:
        results[key] = line(key, 0.87, sparsity=int(key[-2:]) / 100 + 0.001)
    dense, *alike, reached = EXPERIMENT.conclude.checks
    assert dense.function(results) == (True, "CV-SGHMC - DFP 90 % = 1.00 points")
    assert [check.function(results)[0] for check in (*alike, reached)] == [True] * 4
    worse = {**results, "dfp-90": line("dfp-90", 0.84, sparsity=0.89)}
    assert dense.function(worse)[0] is False
    assert [check.function(worse)[0] for check in alike] == [True, True, False]
    # √(0.002² + 0.002²) = 0.0028
    assert alike[2].function(worse)[1] == "DFP - DPF = -3.00 ± 0.28 points"
    assert reached.function(worse) == (False, "dfp-90 -0.0100")


def test_it_runs_and_tells_the_sparsity_of_the_networks_that_predict(
    fashion_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank_report: None
) -> None:
    """DPF holds all weights; its row still says what takes part."""
    small = replace(base_config(fashion_dir), limit_train=320, epochs=4, batch_size=32)
    monkeypatch.setattr(fashion, "base_config", lambda data_dir: small)
    scope = Scope("small", data_dir=fashion_dir)
    outcome = run_experiment(EXPERIMENT, scope, out=tmp_path / "table", jobs=1)
    lines = {row["key"]: row for row in outcome.values["rows"]}
    assert list(lines) == DENSE + SPARSE
    total = lines["sgd"]["nnz"]
    for key in DENSE:
        assert (lines[key]["sparsity"], lines[key]["nnz"]) == (0.0, total)
    for key in SPARSE:
        # Whole groups leave, the largest of which are input channels of conv2 (1,250 weights).
        beyond = lines[key]["sparsity"] - int(key[-2:]) / 100
        assert -1e-5 <= beyond <= 1250 / total
        assert lines[key]["nnz"] == pytest.approx((1 - lines[key]["sparsity"]) * total, abs=0.5)


def test_it_needs_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    with pytest.raises(InvalidData, match="needs a data folder: give --data-dir"):
        train(tasks(Scope("small"))[0].config, tmp_path / "run")
