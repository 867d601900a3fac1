"""A run in several sittings equals a straight one, bit for bit, however a sitting ended."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer.train.assembly
from gossamer.data import DataSet
from gossamer.errors import CheckpointError, InvalidData, InvalidValue
from gossamer.train import (
    RunConfig,
    RunResult,
    SilentProgress,
    latest,
    load_checkpoint,
    read_records,
    train,
)
from train.bits import same

WALL_CLOCK = ("seconds", "epoch_seconds", "checkpoint_bytes")
"""What may differ: times, and the bytes that their digits take."""


class Watch(SilentProgress):
    """Keeps messages, and does something at one step."""

    def __init__(self, at: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.at, self.act = at, act
        self.messages: list[str] = []

    def update(self, epoch: int, step: int, info: Mapping[str, float | None]) -> None:
        if step == self.at:
            self.act()

    def message(self, text: str) -> None:
        self.messages.append(text)


def outcome(path: Path) -> dict[str, Any]:
    """All that must be equal: newest state, record, metrics, curves."""
    found = latest(path / "checkpoints")
    assert found is not None
    return {
        "step": found.step,
        "state": timeless(load_checkpoint(found.path)),
        "record": [timeless(r) for r in read_records(path / "record.jsonl")],
        "metrics": timeless(json.loads((path / "metrics.json").read_text())),
        "curves": json.loads((path / "curves.json").read_text()),
    }


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in WALL_CLOCK}


def assert_same_run(a: Path, b: Path) -> None:
    left, right = outcome(a), outcome(b)
    different = [key for key in left if not same(left[key], right[key])]
    assert different == []


METHODS: dict[str, dict[str, Any]] = {
    "ssvi": {},
    "ssvi, random addition": {"addition": "random"},
    "ssvi, multi-step addition": {"addition": "grad_multi", "num_draws": 2},
    "ssvi, paper": {
        "preset": "paper",
        "update_every": 4,
        "sparsity_distribution": "uniform",
    },
    "rigl": {},
    "dense_vi": {"sparsity": None, "update_every": None},
    "sgd": {"update_every": None},
}


def of_method(config: RunConfig, name: str) -> RunConfig:
    changes = dict(METHODS[name])
    preset = changes.pop("preset", "default")
    options = {**config.method_options, **changes}
    return dataclasses.replace(
        config,
        method=name.partition(",")[0],
        preset=preset,
        method_options={k: v for k, v in options.items() if v is not None},
    )


KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from gossamer.data import load
from gossamer.train import RunConfig, SilentProgress, train

load("digits")  # once for all children, as is what the first optimiser imports
torch.optim.Adam([torch.zeros(1, requires_grad=True)])

class KillAt(SilentProgress):
    def __init__(self, at):
        self.at = at
    def update(self, epoch, step, info):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

def kill_at_fsync(call):
    count, real = 0, os.fsync
    def fsync(descriptor):
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)
    os.fsync = fsync

for job in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        if job["fsync"]:
            kill_at_fsync(job["fsync"])
        config = RunConfig.from_json(job["config"])
        train(config, job["out"], progress=KillAt(job["step"]), resume=job["resume"])
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def kill_each(jobs: list[dict[str, Any]]) -> None:
    """Run each job in a process of its own that kills itself without warning."""
    full = [{"fsync": 0, "step": -1, "resume": False, **job} for job in jobs]
    command = [sys.executable, "-c", KILLED, json.dumps(full)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(int(signal.SIGKILL))] * len(jobs), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_five_epochs_a_kill_and_a_resume_equal_ten_epochs(tmp_path: Path, small: RunConfig) -> None:
    """Killed three steps into epoch 6, after swaps that no checkpoint has seen."""
    configs = {name: dataclasses.replace(of_method(small, name), epochs=10) for name in METHODS}
    kill_each(
        [
            {"config": config.to_json(), "out": str(tmp_path / f"{name} killed"), "step": 28}
            for name, config in configs.items()
        ]
    )
    for name, config in configs.items():
        killed, straight = tmp_path / f"{name} killed", tmp_path / name
        found = latest(killed / "checkpoints")
        assert found is not None
        assert found.step == 25
        assert not (killed / "metrics.json").exists()
        result = train(config, killed, resume=True)
        assert (result.status, result.epoch, result.step) == ("finished", 10, 50)
        train(config, straight)
        assert_same_run(straight, killed)
        kinds = {r["kind"] for r in read_records(straight / "record.jsonl")}
        assert kinds == (
            {"epoch", "swap"} if "update_every" in config.method_options else {"epoch"}
        )


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_inside_checkpoint_writes_again_and_again(tmp_path: Path, small: RunConfig) -> None:
    """fsync 1-6 are of the start, 7 of the record, 8-11 of a checkpoint, 12 of its rename, 13 and
    14 of the pointer; then from 15 on those of the second checkpoint."""
    straight = tmp_path / "straight"
    train(small, straight)
    jobs: list[dict[str, Any]] = [
        {"config": small.to_json(), "out": str(tmp_path / f"killed {call}"), "fsync": call}
        for call in (3, 8, 11, 12, 13, 17)
    ]
    kill_each([*jobs, {**jobs[-1], "resume": True, "fsync": 6}])
    for job in jobs:
        train(small, job["out"], resume=True)
        assert_same_run(straight, Path(job["out"]))


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
