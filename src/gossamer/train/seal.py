"""Which files a checkpoint was saved beside: one of another run, however like it, is not the run's.

::

    checksum.json  "run": {"config.json": sha256 of its content without the device,
                           "preparation.json": sha256,
                           "record.jsonl": {"lines": n, "sha256": of the first n lines}}

The posterior of a finished run tells the first two as ``about["files"]``. Checkpoints and
posteriors of earlier versions have no such entry and are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gossamer.errors import CheckpointError
from gossamer.files import read_json, sha256
from gossamer.train.folder import RunFolder

RECORD = "record.jsonl"


def sums_of(folder: RunFolder) -> dict[str, str]:
    """The checksums of what never changes in a run, by the files' names."""
    try:
        return {
            folder.config.name: _settings_sum(folder.config),
            folder.preparation.name: sha256(folder.preparation),
        }
    except OSError as error:
        name = Path(error.filename).name
        raise CheckpointError(
            name,
            str(error.filename),
            f"cannot be read ({error.strerror})",
            "take the file from a backup",
        ) from error


def _settings_sum(path: Path) -> str:
    """Of the settings in one form, without the device: a run may go on elsewhere."""
    settings = {**read_json(path), "device": None}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def require_own_files(folder: RunFolder, stated: object, by: str) -> None:
    """Raise where the settings or the preparation are not those that were sealed.

    Args:
        folder: The run.
        stated: ``sums_of`` as it was; anything else is of an earlier version, and nothing is asked.
        by: What holds it, for the message.

    Raises:
        CheckpointError: It names the file.
    """
    if not isinstance(stated, Mapping):
        return
    for name, found in sums_of(folder).items():
        if name in stated and stated[name] != found:
            raise _foreign(folder.path / name, by)


def require_own_record(folder: RunFolder, stated: object, by: str) -> None:
    """Raise unless the record begins with the lines that a checkpoint counts on.

    Args:
        folder: The run.
        stated: ``"run"`` of the checkpoint's checksum.json; as in ``require_own_files``.
        by: What holds it, for the message.

    Raises:
        CheckpointError: Lines are missing or other than they were.
    """
    sealed = stated.get(RECORD) if isinstance(stated, Mapping) else None
    if not isinstance(sealed, Mapping):
        return
    digest, lines = hashlib.sha256(), 0
    try:
        with folder.record.open("rb") as file:
            for line in islice(file, int(sealed["lines"])):
                digest.update(line)
                lines += 1
    except (OSError, KeyError, TypeError, ValueError):
        lines = -1
    if lines != sealed.get("lines") or digest.hexdigest() != sealed.get("sha256"):
        raise _foreign(folder.record, by)


def _foreign(path: Path, by: str) -> CheckpointError:
    return CheckpointError(
        path.name,
        str(path),
        f"is not the one that {by} was saved with",
        "take the file from a backup; that of another run, or one edited by hand, will not do",
    )


def run_entry(sums: Mapping[str, str], record: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps of its run."""
    return {**sums, RECORD: dict(record)}
