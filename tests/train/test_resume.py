"""A run in several sittings equals a straight one, bit for bit, however a sitting ended."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer.train.assembly
from gossamer.data import DataSet
from gossamer.errors import CheckpointError, InvalidData, InvalidValue
from gossamer.train import RunConfig, RunResult, latest, train
from train.sittings import Watch, assert_same_run, unseal


def interrupt(config: RunConfig, out: Path, at: int, *, resume: bool = False) -> RunResult:
    """Ctrl-C during a step."""
    watch = Watch(at, lambda: signal.raise_signal(signal.SIGINT))
    result = train(config, out, progress=watch, resume=resume)
    assert watch.messages[-1] == result.message
    return result


@pytest.mark.parametrize("at", [1, 7, 10, 14])
def test_ctrl_c_saves_and_a_resume_equals_a_straight_run(
    tmp_path: Path, small: RunConfig, at: int
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(small, straight)
    handler = signal.getsignal(signal.SIGINT)
    result = interrupt(small, broken, at)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (result.status, result.step, result.epoch) == ("interrupted", at, at // 5)
    assert result.metrics is None
    assert f"gossamer train --resume --out {broken}" in result.message
    found = latest(broken / "checkpoints")
    assert found is not None
    assert found.step == at
    again = interrupt(small, broken, at=at + 1, resume=True)
    if at < 14:
        assert (again.status, again.step) == ("interrupted", at + 1)
        assert train(small, broken, resume=True).status == "finished"
    else:  # the last step of all: there is nothing left to interrupt
        assert again.status == "finished"
    assert_same_run(straight, broken)


def test_a_run_with_the_options_of_its_posterior_resumes(tmp_path: Path, small: RunConfig) -> None:
    """An empirical prior has no state; factors of absent weights have, and the optimiser's too."""
    options = {**small.method_options, "prior_std": "empirical", "absent_variance": "all"}
    config = dataclasses.replace(small, method="ssvi", method_options=options)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(config, straight)
    assert interrupt(config, broken, 7).status == "interrupted"
    assert train(config, broken, resume=True).status == "finished"
    assert_same_run(straight, broken)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, small: RunConfig) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small, tmp_path / "a", progress=Watch(8, twice))
    train(small, tmp_path / "a", resume=True)
    train(small, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_stop_between_checkpoints_does_not_change_the_best(
    tmp_path: Path, small: RunConfig
) -> None:
    """Stopped at an epoch's end where no checkpoint is due: that one must not compete."""
    config = dataclasses.replace(small, epochs=5, checkpoint_every=2, select="best")
    train(config, tmp_path / "a")
    stop = threading.Event()
    result = train(config, tmp_path / "b", progress=Watch(15, stop.set), stop=stop)
    assert (result.step, result.epoch) == (15, 3)
    train(config, tmp_path / "b", resume=True)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    a, b = (json.loads((tmp_path / n / "checkpoints" / "best.json").read_text()) for n in "ab")
    assert a == b


def test_batchnorm_and_augmentation_resume_in_mid_epoch(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gossamer.train.assembly.load

    def augmented(*args: Any, **kwargs: Any) -> DataSet:
        return dataclasses.replace(real(*args, **kwargs), augment="crop_flip")

    monkeypatch.setattr(gossamer.train.assembly, "load", augmented)
    config = dataclasses.replace(small, model="resnet20", model_options={}, epochs=1)
    train(config, tmp_path / "a")
    interrupt(config, tmp_path / "b", at=2)
    train(config, tmp_path / "b", resume=True)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_training_in_a_thread_is_stopped_by_the_event(tmp_path: Path, small: RunConfig) -> None:
    stop, results = threading.Event(), []

    def work() -> None:
        results.append(train(small, tmp_path, progress=Watch(6, stop.set), stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [(r.status, r.step) for r in results] == [("interrupted", 6)]


def test_a_damaged_newest_checkpoint_is_told_and_made_again(
    tmp_path: Path, small: RunConfig
) -> None:
    interrupt(small, tmp_path / "a", at=12)
    damaged = tmp_path / "a" / "checkpoints" / "step-00000012" / "tensors.safetensors"
    damaged.write_bytes(b"")
    watch = Watch()
    train(small, tmp_path / "a", resume=True, progress=watch)
    assert "step-00000012 is damaged" in watch.messages[0]
    assert "going on from step-00000010" in watch.messages[0]
    train(small, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_full_disk_leaves_a_run_that_goes_on(
    tmp_path: Path, small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, real = 0, os.fsync

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == 17:  # inside the second checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            train(small, tmp_path / "a")
    assert "\n" not in str(caught.value)
    train(small, tmp_path / "a", resume=True)
    train(small, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_finished_run_says_so_and_returns_its_metrics(tmp_path: Path, small: RunConfig) -> None:
    first = train(small, tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    watch = Watch()
    again = train(small, tmp_path, resume=True, progress=watch)
    assert (again.status, again.metrics) == ("already_finished", first.metrics)
    assert (again.epoch, again.step) == (3, 15)
    assert "is finished already" in watch.messages[0]
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_other_settings_are_refused_by_name(tmp_path: Path, small: RunConfig) -> None:
    interrupt(small, tmp_path, at=2)
    other = small.with_overrides(["method_options.sparsity=0.5"])
    with pytest.raises(InvalidValue) as caught:
        train(other, tmp_path, resume=True)
    assert caught.value.name == "method_options.sparsity"
    assert "differs from the run's own, 0.8" in str(caught.value)


def test_without_settings_the_runs_own_are_taken(tmp_path: Path, small: RunConfig) -> None:
    interrupt(small, tmp_path / "a", at=2)
    assert train(None, tmp_path / "a", resume=True).status == "finished"
    train(small, tmp_path / "b")
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_changed_data_are_refused(tmp_path: Path, small: RunConfig) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{i},{(i * 7) % 13},{'ab'[i % 2]}" for i in range(60)]
    table.write_text("\n".join(["u,v,label", *rows]))
    config = dataclasses.replace(
        small, data=str(table), target="label", batch_size=8, limit_train=None
    )
    interrupt(config, tmp_path / "run", at=2)
    table.write_text("\n".join(["u,v,label", *rows[:-1], "1000,3,a"]))
    with pytest.raises(InvalidData, match="is not what the run began with"):
        train(config, tmp_path / "run", resume=True)


def test_another_machine_is_told(tmp_path: Path, small: RunConfig) -> None:
    interrupt(small, tmp_path, at=2)
    path = tmp_path / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 64}))
    watch = Watch()
    train(small, tmp_path, resume=True, progress=watch)
    assert watch.messages[0].startswith("threads was 64 and is 1: going on, but bit-for-bit")


def test_the_callers_generator_is_given_back(tmp_path: Path, small: RunConfig) -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    train(small, tmp_path)
    assert torch.rand(3).equal(expected)


def test_a_run_that_was_saved_with_settings_that_are_gone_goes_on(
    tmp_path: Path, small: RunConfig
) -> None:
    """CV-Adam once had settings of chains, which it ignored; they stand in old run folders."""
    config = dataclasses.replace(small, method="cv_adam", method_options={})
    train(config, tmp_path / "straight")
    assert interrupt(config, tmp_path / "old", 7).status == "interrupted"
    file = tmp_path / "old" / "config.json"
    values = json.loads(file.read_text())
    values["facts"]["method_settings"] |= {"samples_per_cycle": 3, "freeze": None, "explore": 0.0}
    file.write_text(json.dumps(values))
    unseal(tmp_path / "old")
    assert train(None, tmp_path / "old", resume=True).status == "finished"
    straight, old = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("straight", "old")
    )
    assert {
        k: v
        for k, v in straight.items()
        if k not in ("seconds", "checkpoint_bytes", "predict_seconds")
    } == {
        k: v for k, v in old.items() if k not in ("seconds", "checkpoint_bytes", "predict_seconds")
    }
