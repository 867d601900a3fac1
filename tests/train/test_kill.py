"""A killed run goes on as if nothing had happened, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.train import RunConfig, latest, read_records, train
from train.sittings import assert_same_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

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
    "rigl, members": {"run": {"members": 2}},
    "ngvi, members": {"run": {"members": 2}},
    "ssvi, cycles": {"run": {"members": 2, "harvest": "cycles"}},
    "ensemble": {"update_every": None, "run": {"members": 2}},
}


def of_method(config: RunConfig, name: str) -> RunConfig:
    changes = dict(METHODS[name])
    preset, run = changes.pop("preset", "default"), changes.pop("run", {})
    options = {**config.method_options, **changes}
    return dataclasses.replace(
        config,
        method=name.partition(",")[0],
        preset=preset,
        method_options={k: v for k, v in options.items() if v is not None},
        **run,
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


FSYNCS = (3, 8, 11, 12, 13, 17)
"""Calls at which a run of three epochs dies: 1-6 are of the start, 7 of the record, 8-11 of the
first checkpoint, 12 of its rename, 13 and 14 of the pointer, from 15 on those of the second."""


def kill_each(jobs: list[dict[str, Any]]) -> None:
    """Run each job in a process of its own that kills itself without warning."""
    full = [{"fsync": 0, "step": -1, "resume": False, **job} for job in jobs]
    command = [sys.executable, "-c", KILLED, json.dumps(full)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(int(signal.SIGKILL))] * len(jobs), done.stderr


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, small: RunConfig) -> Path:
    """Run folders that were killed: one per method in epoch 6, and one per fsync."""
    folder = tmp_path_factory.mktemp("killed")
    by_step = [
        {"config": ten_epochs(small, name).to_json(), "out": str(folder / name), "step": 28}
        for name in METHODS
    ]
    by_fsync = [
        {"config": small.to_json(), "out": str(folder / str(call)), "fsync": call}
        for call in FSYNCS
    ]
    kill_each([*by_step, *by_fsync, {**by_fsync[-1], "resume": True, "fsync": 6}])
    return folder


def ten_epochs(config: RunConfig, name: str) -> RunConfig:
    return dataclasses.replace(of_method(config, name), epochs=10)


@pytest.mark.parametrize("name", METHODS)
def test_five_epochs_a_kill_and_a_resume_equal_ten_epochs(
    tmp_path: Path, killed: Path, small: RunConfig, name: str
) -> None:
    """Killed three steps into epoch 6, after swaps that no checkpoint has seen."""
    config = ten_epochs(small, name)
    found = latest(killed / name / "checkpoints")
    assert found is not None
    assert found.step == 25
    assert not (killed / name / "metrics.json").exists()
    result = train(config, killed / name, resume=True)
    assert (result.status, result.epoch, result.step) == ("finished", 10, 50)
    train(config, tmp_path)
    assert_same_run(tmp_path, killed / name)
    kinds = {r["kind"] for r in read_records(tmp_path / "record.jsonl")}
    assert kinds == ({"epoch", "swap"} if "update_every" in config.method_options else {"epoch"})


def test_killed_inside_a_write_and_again_after_the_resume(
    tmp_path: Path, killed: Path, small: RunConfig
) -> None:
    train(small, tmp_path)
    for call in FSYNCS:
        train(small, killed / str(call), resume=True)
        assert_same_run(tmp_path, killed / str(call))
