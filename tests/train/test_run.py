from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer.files
import gossamer.train.assembly
import gossamer.train.evaluation
from gossamer.errors import NonFinite
from gossamer.files import FolderLock
from gossamer.inference import StepInfo
from gossamer.inference.gradient import GradientMethod
from gossamer.train import (
    PlainProgress,
    RunConfig,
    SilentProgress,
    evaluate,
    load_checkpoint,
    load_dataset,
    load_run,
    read_records,
    train,
)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_leaves_the_files_of_the_contract(tmp_path: Path, small: RunConfig) -> None:
    out = tmp_path / "deep" / "run"
    result = train(small, out)
    assert sorted(p.name for p in out.iterdir()) == [
        "checkpoints",
        "config.json",
        "curves.json",
        "environment.json",
        "metrics.json",
        "posterior.safetensors",
        "preparation.json",
        "record.jsonl",
    ]
    config = read(out / "config.json")
    assert {k: config[k] for k in small.to_json()} == small.to_json()
    assert config["gossamer"]
    assert config["facts"]["num_data"] == 300
    assert config["facts"]["method_settings"]["removal"] == "snr_abs"
    assert {"python", "torch", "gossamer", "platform", "threads"} <= set(
        read(out / "environment.json")
    )
    assert read(out / "preparation.json") == load_dataset(small).preparation.to_json()
    assert read(out / "metrics.json") == result.metrics
    assert (result.status, result.epoch, result.step) == ("finished", 3, 15)


def test_metrics_and_curves_have_their_keys(tmp_path: Path, small: RunConfig) -> None:
    metrics = train(small, tmp_path).metrics
    assert metrics is not None
    assert set(metrics) == {
        *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece"),
        *("roc_auc", "average_precision"),
        *(
            "marginal_calibration_error",
            "nnz",
            "sparsity",
            "seconds",
            "checkpoint_bytes",
            "predict_seconds",
        ),
        *("aurc", "eaurc", "aurc_entropy", "aurc_mutual_information", "aurc_energy"),
    }
    assert metrics["nnz"] == round(0.2 * (64 * 16 + 16 * 10))
    assert metrics["sparsity"] == 1 - metrics["nnz"] / (64 * 16 + 16 * 10)
    newest = tmp_path / "checkpoints" / "step-00000015"
    assert metrics["checkpoint_bytes"] == sum(p.stat().st_size for p in newest.iterdir())
    curves = read(tmp_path / "curves.json")
    assert set(curves) == {"confusion", "reliability", "entropy", "selective", "layers", "weights"}
    assert sum(layer["nnz"] for layer in curves["layers"]) == metrics["nnz"]
    assert sum(curves["weights"]["mean_hist"]["counts"]) == metrics["nnz"]
    assert sum(curves["weights"]["std_hist"]["counts"]) == metrics["nnz"]


def test_the_record_tells_epochs_and_swaps(tmp_path: Path, small: RunConfig) -> None:
    train(small, tmp_path)
    records = read_records(tmp_path / "record.jsonl")
    epochs = [r for r in records if r["kind"] == "epoch"]
    assert [(r["epoch"], r["step"]) for r in epochs] == [(1, 5), (2, 10), (3, 15)]
    assert set(epochs[0]["train"]) == {"loss", "nll", "kl", "kl_weight", "accuracy"}
    assert set(epochs[0]["val"]) == {"accuracy", "nll", "ece"}
    assert {"sparsity", "nnz", "lr", "seconds"} <= set(epochs[0])
    swaps = [r for r in records if r["kind"] == "swap"]
    assert [r["step"] for r in swaps] == [3, 6, 9]  # every 3, before 0.75 of 15
    for swap in swaps:
        assert 0 < swap["fraction"] < 0.3
        for layer in swap["layers"].values():
            assert 0 <= layer["added"] == layer["removed"] <= 0.3 * layer["nnz"]


def test_the_records_means_weigh_examples_not_batches(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 examples in batches of 64 leave a last one of 44."""
    seen: list[tuple[float, int]] = []
    real = GradientMethod.step

    def step(self: GradientMethod, batch: tuple[torch.Tensor, torch.Tensor]) -> StepInfo:
        info = real(self, batch)
        seen.append((info.nll, len(batch[0])))
        return info

    monkeypatch.setattr(GradientMethod, "step", step)
    train(dataclasses.replace(small, epochs=1), tmp_path)
    assert [count for _, count in seen] == [64, 64, 64, 64, 44]
    expected = math.fsum(nll * count for nll, count in seen) / 300
    [epoch] = [r for r in read_records(tmp_path / "record.jsonl") if r["kind"] == "epoch"]
    # A sum of five float64 products rounds at most a few times in the 16th digit.
    assert epoch["train"]["nll"] == pytest.approx(expected, rel=1e-14)


def test_the_best_is_the_checkpoint_of_least_validation_nll(
    tmp_path: Path, small: RunConfig
) -> None:
    config = dataclasses.replace(small, epochs=4, lr=0.3, select="best")  # too fast on purpose
    train(config, tmp_path)
    epochs = [r for r in read_records(tmp_path / "record.jsonl") if r["kind"] == "epoch"]
    least = min(epochs, key=lambda r: r["val"]["nll"])
    name = f"step-{least['step']:08d}"
    assert read(tmp_path / "checkpoints" / "best.json") == {"name": name}
    assert load_checkpoint(tmp_path / "checkpoints" / name)["epoch"] == least["epoch"]


def test_select_best_tests_the_best_state(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlls = itertools.cycle([3.0, 1.0, 2.0])
    monkeypatch.setattr(
        gossamer.train.evaluation, "validate", lambda *args, **kwargs: {"nll": next(nlls)}
    )
    tested = train(dataclasses.replace(small, select="best"), tmp_path / "best").metrics
    second = train(
        dataclasses.replace(small, keep_checkpoints=9), tmp_path / "last", stop=_After(10)
    )
    assert second.status == "interrupted"
    loaded = load_run(tmp_path / "last")
    assert loaded.step == 10
    expected, _ = evaluate(loaded.posterior, load_dataset(small), num_samples=2, seed=small.seed)
    assert tested is not None
    assert {k: tested[k] for k in expected} == expected


class _After:
    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_checkpoints_come_when_they_are_due(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(small, epochs=5, checkpoint_every=2, keep_checkpoints=9)
    train(config, tmp_path)
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000010", "step-00000020", "step-00000025"]


def test_the_test_part_is_touched_once(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    dataset = load_dataset(small)

    class Guarded:
        def __getattr__(self, name: str) -> Any:
            if name.endswith("_test"):
                touched.append(name)
            return getattr(dataset, name)

    monkeypatch.setattr(gossamer.train.assembly, "load_dataset", lambda config: Guarded())
    train(small, tmp_path)
    assert sorted(touched) == ["x_test", "y_test"]


def test_while_settings_are_chosen_the_test_part_is_not_looked_at(
    tmp_path: Path, small: RunConfig
) -> None:
    config = dataclasses.replace(small, evaluate_on="validation")
    result = train(config, tmp_path / "run")
    run, dataset = load_run(tmp_path / "run"), load_dataset(config)
    expected, _ = evaluate(
        run.posterior, dataset, part="val", num_samples=config.num_samples, seed=config.seed
    )
    assert result.metrics is not None
    assert result.metrics["nll"] == expected["nll"]
    assert result.message.startswith("validation: accuracy")


def test_a_loss_that_is_not_finite_stops_the_run(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GradientMethod.step

    def step(self: GradientMethod, batch: tuple[torch.Tensor, torch.Tensor]) -> StepInfo:
        info = real(self, batch)
        return dataclasses.replace(info, loss=math.nan) if self.steps == 7 else info

    monkeypatch.setattr(GradientMethod, "step", step)
    with pytest.raises(NonFinite, match="loss = nan: at step 7"):
        train(small, tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").glob("step-*")] == ["step-00000005"]


class Watch(SilentProgress):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.figures: set[str] = set()

    def start(self, total: int, done: int = 0) -> None:
        self.calls.append(("start", total, done))

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        self.calls.append(("update", epoch, step))
        self.figures |= set(info)

    def close(self) -> None:
        self.calls.append(("close",))


def test_progress_is_told_every_step(tmp_path: Path, small: RunConfig) -> None:
    watch = Watch()
    train(small, tmp_path, progress=watch)
    steps = [("update", (step - 1) // 5 + 1, step) for step in range(1, 16)]
    assert watch.calls[:16] == [("start", 15, 0), *steps]
    assert set(watch.calls[16:]) == {("close",)}
    assert watch.figures == {"accuracy", "nll", "kl", "sparsity"}


def test_progress_is_closed_when_training_fails(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: GradientMethod, batch: object) -> StepInfo:
        raise NonFinite("loss", math.nan, "broken")

    monkeypatch.setattr(GradientMethod, "step", broken)
    watch = Watch()
    with pytest.raises(NonFinite):
        train(small, tmp_path, progress=watch)
    assert watch.calls[-1] == ("close",)
    with FolderLock(tmp_path):  # released
        assert (tmp_path / "config.json").exists()


def test_without_a_terminal_there_is_a_first_and_a_last_line(
    tmp_path: Path, small: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small, tmp_path, progress=PlainProgress())
    shown = capsys.readouterr()
    assert shown.out == ""
    first, last = shown.err.splitlines()
    assert first == f"ssvi on digits: 300 examples, 3 epochs, 15 steps; run folder {tmp_path}"
    assert last.startswith("test: accuracy 0.")


def test_a_last_batch_of_one_example_is_left_out(tmp_path: Path, small: RunConfig) -> None:
    config = dataclasses.replace(
        small, model="resnet20", model_options={}, limit_train=65, epochs=1
    )
    assert train(config, tmp_path).step == 1


@pytest.mark.parametrize("every", [1, 3])
def test_patience_ends_a_run_early_and_its_last_state_is_saved(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """The validation NLL is least after the second epoch; a second sitting knows that."""
    config = dataclasses.replace(small, epochs=9, patience=3, checkpoint_every=every)
    nlls = itertools.chain([2.0, 1.0], itertools.repeat(1.0))
    monkeypatch.setattr(
        gossamer.train.evaluation, "validate", lambda *args, **kwargs: {"nll": next(nlls)}
    )
    stopped = train(config, tmp_path / "a", stop=_After(20))
    assert (stopped.status, stopped.epoch) == ("interrupted", 3)
    result = train(None, tmp_path / "a", resume=True)
    assert (result.status, result.epoch, result.step) == ("finished", 5, 25)
    assert load_checkpoint(tmp_path / "a" / "checkpoints" / "step-00000025")["epoch"] == 5
    again = train(None, tmp_path / "a", resume=True)
    assert (again.status, again.epoch, again.step) == ("already_finished", 5, 25)
    (tmp_path / "a" / "metrics.json").unlink()  # killed before the last file was written
    again = train(None, tmp_path / "a", resume=True)
    assert (again.status, again.epoch) == ("finished", 5)


def test_loading_a_run_hashes_each_byte_once(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(small, tmp_path)
    hashed: list[str] = []
    real = gossamer.files.sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(gossamer.files, "sha256", counted)
    load_run(tmp_path)
    assert hashed == [], "a finished run is read from its posterior alone"
    (tmp_path / "posterior.safetensors").unlink()
    load_run(tmp_path)
    assert sorted(hashed) == ["state.json", "tensors.safetensors"]
