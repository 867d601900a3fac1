from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.errors import CheckpointError
from gossamer.train.lock import RunLock


def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with pytest.raises(CheckpointError, match=f"is in use by process {os.getpid()};"):
            RunLock(tmp_path).__enter__()
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
    with RunLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_it_is_released_by_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyError), RunLock(tmp_path):
        raise KeyError
    with RunLock(tmp_path) as lock:
        assert isinstance(lock, RunLock)


HOLD = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(os.getpid(), file=file, flush=True)
print("held", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_another_process_is_refused_until_the_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=f"in use by process {owner.pid}"):
            RunLock(tmp_path).__enter__()
        owner.stdin.close()
        owner.wait()
    assert (tmp_path / "lock").exists()  # what the kill left behind does not matter
    with RunLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"could not be written \(No such file"):
        RunLock(tmp_path / "missing").__enter__()
