"""Checkpoint folders: atomic, checksummed, the last few and the best.

::

    RUN/checkpoints/step-00000330/tensors.safetensors   the state's tensors
                                  state.json            the rest of the state (see codec)
                                  checksum.json         marker, format version, sha256 of both,
                                                        and of the run's own files (see seal)
    RUN/checkpoints/best.json                           {"name": "step-00000330"}

A checkpoint is written into a temporary folder beside its place, every file and the folder are
synced to the disk, then the folder is renamed: at any moment a name ``step-…`` is a whole
checkpoint. There is no pickle: reading a checkpoint of unknown origin runs no code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gossamer import files
from gossamer.errors import CheckpointError, GossamerError, InvalidValue
from gossamer.train.codec import decode, encode

FORMAT = "gossamer-checkpoint"
VERSION = 1

_TENSORS, _STATE, _CHECKSUM, _BEST = (
    "tensors.safetensors",
    "state.json",
    "checksum.json",
    "best.json",
)
_NAME = re.compile(r"step-(\d{8,})")


class Found(NamedTuple):
    """A checkpoint that was looked for.

    Attributes:
        path: Its folder.
        step: The optimiser steps done when it was written.
        notice: A sentence for the user where a newer checkpoint was passed over, else ``None``.
    """

    path: Path
    step: int
    notice: str | None


def save_checkpoint(
    folder: Path,
    step: int,
    state: object,
    *,
    keep: int = 2,
    best: bool = False,
    run: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint atomically, then delete those no longer kept.

    Args:
        folder: The folder of checkpoints (``RUN/checkpoints``); made if missing.
        step: Optimiser steps done; names the checkpoint.
        state: A nested state, see :mod:`gossamer.train.codec`.
        keep: How many of the newest stay, ≥ 1. The best one stays in any case.
        best: Whether this is the best so far; the pointer ``best.json`` then names it.
        run: What is kept of the run that it belongs to: JSON values, see
            :mod:`gossamer.train.seal`.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: The disk is full, an intact checkpoint of this step exists already, or the
            folder or an entry of it is a link. What was saved before is intact.
    """
    if keep < 1:
        raise InvalidValue("keep", keep, "must be at least 1", "the newest checkpoint always stays")
    if step < 0:
        raise InvalidValue("step", step, "must not be negative")
    target = folder / f"step-{step:08d}"
    refuse_links(folder)
    if target.exists() and is_intact(target):
        raise CheckpointError(
            "checkpoint", str(target), "exists and is never overwritten", "resume from it instead"
        )
    tensors, tree = encode(state)
    temporary = folder / f"{files.TEMPORARY}{os.getpid()}-{target.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(folder)
        temporary.mkdir()
        save_file(tensors, temporary / _TENSORS)
        files.sync_file(temporary / _TENSORS)
        text = json.dumps({"state": tree}, allow_nan=False)
        files.write_synced(temporary / _STATE, text.encode())
        files.write_synced(temporary / _CHECKSUM, _checksums(temporary, step, run).encode())
        files.sync_folder(temporary)
        if target.exists():  # damaged, as asked above
            files.remove(target)
        temporary.rename(target)
        files.sync_folder(folder)
    except (OSError, SafetensorError) as error:
        files.remove(temporary)
        raise files.not_written(target, error) from error
    if best:
        mark_best(folder, target.name)
    try:
        _prune(folder, step, keep)
    except OSError as error:
        raise files.not_written(folder, error) from error
    return target


def load_checkpoint(checkpoint: Path | Found) -> Any:
    """Read a checkpoint's state after its checksums were verified.

    Args:
        checkpoint: A folder ``step-…``; or what :func:`latest` or :func:`best` found, which they
            have just verified: its bytes are not hashed again.

    Raises:
        CheckpointError: Damaged, truncated, or not a checkpoint of this format; the hint names
            the newest intact checkpoint beside it.
    """
    path = checkpoint.path if isinstance(checkpoint, Found) else checkpoint
    try:
        if not isinstance(checkpoint, Found):
            _verify(path)
        tree = json.loads((path / _STATE).read_text(encoding="utf-8"))["state"]
        return decode(load_file(path / _TENSORS), tree)
    except CheckpointError as error:
        raise _with_neighbour(path, error.rule) from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, GossamerError) as error:
        raise _with_neighbour(path, f"is damaged ({error})") from error


def latest(folder: Path) -> Found | None:
    """The newest intact checkpoint, or ``None`` where none was ever written.

    Raises:
        CheckpointError: There are checkpoints, but none is intact.
    """
    reasons: list[str] = []
    for path in reversed(_all(folder)):
        try:
            _verify(path)
        except CheckpointError as error:
            reasons.append(f"{path.name} {error.rule}")
            continue
        notice = f"{'; '.join(reasons)}; going on from {path.name}" if reasons else None
        return Found(path, _step(path), notice)
    if reasons:
        raise CheckpointError(
            "checkpoints",
            str(folder),
            f"hold no intact one: {reasons[0]}",
            "start a new run folder",
        )
    return None


def run_of(checkpoint: Path) -> object:
    """What a checkpoint keeps of its run; ``None`` where it keeps nothing, or is damaged."""
    try:
        stated = json.loads((checkpoint / _CHECKSUM).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return stated.get("run") if isinstance(stated, dict) else None


def newest(folder: Path) -> Path | None:
    """The newest checkpoint by its name alone; ``None`` where there is none."""
    paths = _all(folder)
    return paths[-1] if paths else None


def newest_step(folder: Path) -> int | None:
    """Step of the newest checkpoint by its name alone; ``None`` where there is none."""
    path = newest(folder)
    return None if path is None else _step(path)


def best(folder: Path) -> Found | None:
    """The checkpoint that ``best.json`` names, or ``None`` where there is no pointer.

    Raises:
        CheckpointError: The pointer or the checkpoint it names is damaged or gone.
    """
    if not (folder / _BEST).exists():
        return None
    name = _best_name(folder)
    if name is None:
        raise CheckpointError(
            _BEST, str(folder / _BEST), "names no checkpoint", "use the latest one instead"
        )
    _verify(folder / name)
    return Found(folder / name, _step(folder / name), None)


def mark_best(folder: Path, name: str) -> None:
    """Point ``best.json`` at a checkpoint, atomically."""
    files.write_json(folder / _BEST, {"name": name})


def is_intact(path: Path) -> bool:
    """Whether a folder is a whole checkpoint of this format."""
    try:
        _verify(path)
    except CheckpointError:
        return False
    return True


def refuse_links(folder: Path) -> None:
    """Raise where a folder of checkpoints, or an entry of it or of a checkpoint, is a link."""
    if folder.is_symlink():
        raise files.is_a_link(folder)
    files.refuse_links(folder, *_all(folder))


def size_in_bytes(path: Path) -> int:
    """Bytes of a checkpoint's files together."""
    return sum(file.stat().st_size for file in path.iterdir())


def _all(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_step)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checksums(folder: Path, step: int, run: Mapping[str, Any] | None = None) -> str:
    sums = {name: files.sha256(folder / name) for name in (_TENSORS, _STATE)}
    stated = {"format": FORMAT, "version": VERSION, "step": step, "sha256": sums}
    return json.dumps(stated if run is None else {**stated, "run": run})


def _verify(path: Path) -> None:
    """Raise a CheckpointError whose rule says in a few words what is wrong with the folder."""
    if not path.is_dir():
        raise CheckpointError("checkpoint", str(path), "does not exist")
    try:
        text = (path / _CHECKSUM).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            "checkpoint", str(path), f"is not a Gossamer checkpoint (no {_CHECKSUM})"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError("checkpoint", str(path), f"is damaged ({error})") from error
    try:
        stated = json.loads(text)
    except ValueError:
        raise CheckpointError(
            "checkpoint", str(path), f"is damaged ({_CHECKSUM} is not JSON)"
        ) from None
    if not isinstance(stated, dict) or stated.get("format") != FORMAT:
        raise CheckpointError("checkpoint", str(path), "is not a Gossamer checkpoint (no marker)")
    if stated.get("version") != VERSION:
        raise CheckpointError(
            "checkpoint",
            str(path),
            f"has format version {stated.get('version')}, this Gossamer reads {VERSION}",
        )
    if _NAME.fullmatch(path.name) and stated.get("step") != _step(path):
        raise CheckpointError(
            "checkpoint",
            str(path),
            f"is of step {stated.get('step')}, not of the step in its name",
        )
    sums = stated.get("sha256")
    for name in (_TENSORS, _STATE):
        try:
            intact = isinstance(sums, dict) and sums.get(name) == files.sha256(path / name)
        except OSError as error:
            raise CheckpointError(
                "checkpoint", str(path), f"is damaged ({name}: {error.strerror})"
            ) from error
        if not intact:
            raise CheckpointError(
                "checkpoint", str(path), f"is damaged ({name} does not match its checksum)"
            )


def _with_neighbour(path: Path, rule: str) -> CheckpointError:
    others = [p.name for p in _all(path.parent) if p != path and is_intact(p)]
    hint = f"use {others[-1]} beside it" if others else "there is no intact one beside it"
    return CheckpointError("checkpoint", str(path), rule, hint)


def _best_name(folder: Path) -> str | None:
    try:
        name = json.loads((folder / _BEST).read_text(encoding="utf-8"))["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _prune(folder: Path, step: int, keep: int) -> None:
    """Keep the ``keep`` newest up to ``step``, the best, and of later ones those that are intact.

    Later ones exist only where a run went back behind damaged checkpoints; they must not count as
    the newest, or the last good one would be deleted in their favour.
    """
    paths = _all(folder)
    kept = {p.name for p in [p for p in paths if _step(p) <= step][-keep:]}
    kept.add(_best_name(folder) or "")
    for path in paths:
        if path.name not in kept and (_step(path) <= step or not is_intact(path)):
            files.remove(path)
