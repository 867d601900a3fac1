"""Files that are whole or not there: temp file beside, fsync, rename, fsync of the folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from gossamer.errors import CheckpointError

TEMPORARY = ".tmp-"
"""How every unfinished file or folder is named; whatever starts so may be deleted."""


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically: a reader sees the old file or the new one, never a part.

    JSON has no NaN and no infinity: a float that is not finite is written as ``null``.

    Raises:
        CheckpointError: The disk is full or the folder not writable; the old file is untouched.
    """
    text = json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        write_synced(temporary, text.encode())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise not_written(path, error) from error


def read_json(path: Path) -> Any:
    """Read a JSON file of a run.

    Raises:
        CheckpointError: The file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            path.name, str(path), f"cannot be read ({error.strerror})", "is this a run folder?"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            path.name, str(path), "is damaged: not JSON", "take the file from a backup"
        ) from error


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the disk has a file that someone else wrote."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the disk has a folder's entries: a rename lives in the folder, not the file."""
    if sys.platform == "win32":  # has no such call; the rename itself is durable there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(path: Path, error: OSError | Exception) -> CheckpointError:
    """The error of a full disk or a folder without write permission."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return CheckpointError(
        path.name,
        str(path),
        f"could not be written ({reason})",
        "free space or permissions, then continue with --resume; what was saved before is intact",
    )


def finite(value: object) -> object:
    """A copy of a JSON value in which every float that is not finite is ``None``."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writes left behind; nobody reads a name that starts so."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def remove(path: Path) -> None:
    """Delete a file or a folder; a folder is first renamed, so that none is ever half there."""
    if path.is_dir():
        aside = path
        if not path.name.startswith(TEMPORARY):
            aside = path.with_name(f"{TEMPORARY}removed-{path.name}")
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
