from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer import files
from gossamer.errors import CheckpointError
from gossamer.files import FolderLock


def test_a_second_owner_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with pytest.raises(CheckpointError, match=f"is in use by process {os.getpid()};"):
            FolderLock(tmp_path).__enter__()
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_it_is_released_by_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyError), FolderLock(tmp_path):
        raise KeyError
    with FolderLock(tmp_path) as lock:
        assert isinstance(lock, FolderLock)


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
            FolderLock(tmp_path).__enter__()
        owner.stdin.close()
        owner.wait()
    assert (tmp_path / "lock").exists()  # what the kill left behind does not matter
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"could not be written \(No such file"):
        FolderLock(tmp_path / "missing").__enter__()


def test_reading_files_needs_no_torch(tmp_path: Path) -> None:
    """The module alone: what `import gossamer` itself loads is another matter."""
    code = (
        "import sys, types, pathlib, importlib.util as u\n"
        "package = types.ModuleType('gossamer')\n"
        "package.__path__ = [str(pathlib.Path(sys.argv[1]).parent)]\n"
        "sys.modules['gossamer'] = package\n"
        "import gossamer.files as files\n"
        "files.write_json(pathlib.Path(sys.argv[2]), {'a': float('nan')})\n"
        "assert files.read_json(pathlib.Path(sys.argv[2])) == {'a': None}\n"
        "assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, files.__file__, str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_checksum_is_the_one_of_hashlib(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000  # more than one block
    (tmp_path / "a").write_bytes(content)
    assert files.sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    files.write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_written_in_pieces_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    def write_a_part() -> None:
        with files.written_whole(path) as file:
            file.write(b"new")
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        write_a_part()
    assert path.read_text() == "old"
    with files.written_whole(path) as file:
        file.write(b"new")
        file.write(b"er")
        assert path.read_text() == "old"
    assert path.read_text() == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    with pytest.raises(CheckpointError, match="symbolic link"), files.written_whole(link):
        pass
