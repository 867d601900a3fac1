from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest

from gossamer.errors import CheckpointError
from gossamer.train.record import Record, read_records


def write(path: Path, steps: list[int], *, resume_step: int | None = None) -> None:
    with Record(path, resume_step=resume_step) as record:
        for step in steps:
            record.write("epoch", step, {"epoch": step // 10, "train": {"loss": step / 3}})


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    write(path, [10, 20])
    assert read_records(path) == [
        {"kind": "epoch", "step": 10, "epoch": 1, "train": {"loss": 10 / 3}},
        {"kind": "epoch", "step": 20, "epoch": 2, "train": {"loss": 20 / 3}},
    ]


def test_a_line_is_readable_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with Record(path) as record:
        record.write("swap", 3, {"fraction": 0.5})
        record.sync()
        assert [r["fraction"] for r in read_records(path)] == [0.5]


def test_resume_cuts_off_what_came_after_the_step(tmp_path: Path) -> None:
    straight, resumed = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write(straight, [10, 20, 30, 40])
    write(resumed, [10, 20, 30])
    write(resumed, [30, 40], resume_step=20)
    assert resumed.read_bytes() == straight.read_bytes()


def test_resume_cuts_off_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    write(path, [10, 20])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "epoch", "st')
    assert len(read_records(path)) == 2
    write(path, [30], resume_step=20)
    assert path.read_bytes().startswith(whole)
    assert [r["step"] for r in read_records(path)] == [10, 20, 30]


def test_resume_from_before_the_first_record_and_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    write(path, [10], resume_step=0)
    assert [r["step"] for r in read_records(path)] == [10]
    write(path, [5], resume_step=0)
    assert [r["step"] for r in read_records(path)] == [5]


def test_a_float_that_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with Record(path) as record:
        record.write("epoch", 1, {"a": math.nan, "b": [math.inf, 1.0], "c": (-math.inf,)})
    assert json.loads(path.read_text()) == {
        "kind": "epoch",
        "step": 1,
        "a": None,
        "b": [None, 1.0],
        "c": [None],
    }


@pytest.mark.parametrize("line", ["not json", "[1]", '{"kind": "epoch"}', '{"step": "1"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "record.jsonl"
    write(path, [10])
    path.write_text(path.read_text() + line + "\n" + path.read_text())
    with pytest.raises(CheckpointError, match=r"line 2: is damaged"):
        read_records(path)


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file"):
        read_records(tmp_path / "record.jsonl")
    with pytest.raises(CheckpointError, match="could not be written"):
        Record(tmp_path / "missing" / "record.jsonl")


def test_a_full_disk_is_a_checkpoint_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    record = Record(tmp_path / "record.jsonl")
    with pytest.raises(CheckpointError, match="No space left on device"):
        record.sync()
    record.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_line_that_does_not_fit_is_a_checkpoint_error() -> None:
    message = "No space left on device"
    with pytest.raises(CheckpointError, match=message), Record(Path("/dev/full")) as record:
        record.write("epoch", 1, {})
