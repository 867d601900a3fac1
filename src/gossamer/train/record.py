"""``record.jsonl``: one JSON object per line, appended as the run goes.

Every record has a ``kind`` and a ``step``. A run that goes on from a checkpoint first cuts off the
records after the checkpoint's step, so that the record of a resumed run equals that of a straight
one, wall-clock fields (``seconds``) apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any

from gossamer.errors import CheckpointError
from gossamer.files import finite, not_written, open_unlinked


class Record:
    """Appends records to a file; each line reaches the operating system before ``write`` returns.

    Args:
        path: The file; made if missing.
        resume_step: Cut off what was recorded after this step; ``None`` keeps everything.
    """

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        self._path = path
        if resume_step is not None and path.exists():
            _cut(path, resume_step)
        self._digest, self._lines = hashlib.sha256(), 0
        if path.is_file():
            self._count(_content(path))
        try:
            self._file: TextIOWrapper = open(  # noqa: SIM115 (closed by its owner)
                path, "a", encoding="utf-8", buffering=1, newline="\n", opener=_unlinked
            )
        except OSError as error:
            raise not_written(path, error) from error

    def write(self, kind: str, step: int, fields: Mapping[str, object]) -> None:
        """Append one record.

        Args:
            kind: What it tells of: ``"epoch"`` or ``"swap"``.
            step: Optimiser steps done. Steps never decrease along the file.
            fields: The rest; a float that is not finite is written as ``null``.

        Raises:
            CheckpointError: The disk is full.
        """
        record = finite({"kind": kind, "step": step, **fields})
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise not_written(self._path, error) from error
        self._count(line.encode())

    @property
    def sealed(self) -> dict[str, Any]:
        """Number and SHA-256 of all lines so far, by which a checkpoint knows them again."""
        return {"lines": self._lines, "sha256": self._digest.hexdigest()}

    def _count(self, content: bytes) -> None:
        self._digest.update(content)
        self._lines += content.count(b"\n")

    def sync(self) -> None:
        """Wait until the disk has all records; called before a checkpoint that counts on them."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise not_written(self._path, error) from error

    def close(self) -> None:
        """Close the file; a line left torn by a full disk is cut off on resume."""
        try:
            self._file.close()
        except OSError as error:
            raise not_written(self._path, error) from error

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except CheckpointError:
            if error is None:  # else the first error is the one to tell
                raise


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of a file, in order; the torn last line of a killed run is left out.

    Raises:
        CheckpointError: The file is missing, or a line before the last is damaged.
    """
    return [record for record, _ in _lines(path)]


def _cut(path: Path, step: int) -> None:
    end = 0
    for record, line_end in _lines(path):
        if record["step"] > step:
            break
        end = line_end
    descriptor = open_unlinked(path, os.O_RDWR)
    try:
        os.truncate(descriptor, end)
    finally:
        os.close(descriptor)


def _unlinked(path: str, flags: int) -> int:
    return open_unlinked(Path(path), flags)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            path.name, str(path), f"cannot be read ({error.strerror})", "is this a run folder?"
        ) from error


def _lines(path: Path) -> list[tuple[dict[str, Any], int]]:
    """The records, each with the byte offset at which its line ends."""
    content = _content(path)
    found: list[tuple[dict[str, Any], int]] = []
    lines = content.split(b"\n")
    end = 0
    for number, line in enumerate(lines[:-1], start=1):  # a whole line ends in a newline
        end += len(line) + 1
        try:
            record = json.loads(line)
            valid = isinstance(record["step"], int) and isinstance(record["kind"], str)
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise CheckpointError(
                path.name,
                f"line {number}",
                "is damaged: not a record",
                f"delete the line in {path}",
            )
        found.append((record, end))
    return found
