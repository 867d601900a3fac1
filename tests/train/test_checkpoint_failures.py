"""Full disks and kills: what was saved before stays whole."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gossamer.errors import CheckpointError
from gossamer.train.checkpoint import best, is_intact, latest, load_checkpoint, save_checkpoint


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, step, {"w": torch.full((10,), float(step))}, keep=1, best=True)


def assert_is_state(folder: Path, step: int) -> None:
    state = load_checkpoint(folder / f"step-{step:08d}")
    assert state["w"].tolist() == [float(step)] * 10


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".gossamer-tmp-")]


def failing(call: int) -> Callable[[int], None]:
    count = 0

    def fsync(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fsync


@pytest.mark.parametrize("call", range(1, 6))
def test_a_full_disk_is_an_error_and_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(tmp_path, 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(call))
        with pytest.raises(CheckpointError, match="No space left on device") as caught:
            save(tmp_path, 20)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []
    assert_is_state(tmp_path, 10)
    found = latest(tmp_path)
    assert found is not None
    assert found.notice is None
    assert best(tmp_path) == (tmp_path / "step-00000010", 10, None)


CHILDREN = """
import os, resource, signal, sys
from pathlib import Path
import torch
from gossamer.errors import CheckpointError
from gossamer.train.checkpoint import save_checkpoint

def save(folder, step):
    save_checkpoint(folder, step, {"w": torch.full((10,), float(step))}, keep=1, best=True)

def die_at(call):
    count, real = 0, os.fsync
    def fsync(descriptor):
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)
    os.fsync = fsync

def write_too_much(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    for state in ({"w": torch.zeros(10_000)}, {"text": "x" * 10_000}):
        try:
            save_checkpoint(folder, 2, state)
        except CheckpointError as error:
            print(error, flush=True)

for call in range(8):
    child = os.fork()
    if child == 0:
        folder = Path(sys.argv[1]) / str(call)
        save(folder, 1)
        if call == 0:
            write_too_much(folder)
            os._exit(0)
        die_at(call)
        save(folder, 2)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and resource limits")
def test_real_writes_that_do_not_fit_or_are_killed(tmp_path: Path) -> None:
    """fsync 1-4 come before the rename, 5 right after it, 6 and 7 write the pointer."""
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, str(tmp_path)], capture_output=True, text=True, check=True
    )
    tensors, text, *codes = done.stdout.splitlines()
    for line in (tensors, text):
        assert "could not be written" in line
        assert "File too large" in line
    assert codes == ["0"] + [str(int(signal.SIGKILL))] * 7
    assert sorted(p.name for p in (tmp_path / "0").iterdir()) == ["best.json", "step-00000001"]
    assert_is_state(tmp_path / "0", 1)
    for call in range(1, 8):
        folder = tmp_path / str(call)
        found = latest(folder)
        assert found is not None
        assert (found.step, found.notice) == (1 if call <= 4 else 2, None)
        assert_is_state(folder, found.step)
        pointed = best(folder)
        assert pointed is not None
        assert pointed.step == (1 if call <= 6 else 2)
        save(folder, 3)
        assert leftovers(folder) == []
        assert is_intact(folder / "step-00000003")
