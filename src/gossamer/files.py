"""Files for every part of the house: whole or not there, checksummed, guarded by a lock.

A file is written beside its place, synced and renamed, and then the folder is synced: a reader sees
the old file or the new one. Nothing is written, cut or deleted through a symbolic link, and nothing
deleted that does not carry our mark: folders come in archives from elsewhere, and archives hold
links. Nothing here needs torch, so that a report reads and writes files on a machine without it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from gossamer.errors import CheckpointError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


TEMPORARY = ".gossamer-tmp-"
"""How every unfinished file or folder is named: a mark that nobody else uses, since whatever starts
so may be deleted. Earlier versions wrote ``.tmp-``, which is anybody's: such names are left alone.
"""

_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)  # which Windows has not
_BINARY: int = getattr(os, "O_BINARY", 0)  # which only Windows has


def open_unlinked(path: Path, flags: int) -> int:
    """``os.open`` that refuses a path whose last part is a symbolic link.

    Raises:
        CheckpointError: It is one.
        OSError: It cannot be opened.
    """
    if path.is_symlink():
        raise is_a_link(path)
    try:
        return os.open(path, flags | _NO_LINKS, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became one in between
            raise is_a_link(path) from error
        raise


def refuse_links(*folders: Path) -> None:
    """Raise where an entry of one of these folders is a symbolic link; they may be missing.

    Raises:
        CheckpointError: It names the entry.
    """
    for folder in folders:
        for path in sorted(_links_in(folder)):
            raise is_a_link(path)


def is_a_link(path: Path) -> CheckpointError:
    """The error of an entry that leads elsewhere."""
    return CheckpointError(
        path.name,
        str(path),
        "is a symbolic link, through which nothing is written or deleted",
        "put the file itself in its place, or remove the link",
    )


def _links_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return


def write_json(path: Path, value: object) -> None:
    """Write strict JSON atomically: a reader sees the old file or the new one, never a part.

    JSON has no NaN and no infinity: a float that is not finite is written as ``null``.

    Raises:
        CheckpointError: The disk is full or the folder not writable; the old file is untouched.
    """
    text = json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise not_written(path, error) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part.

    Raises:
        CheckpointError: There is a link in its place, which would be lost.
        OSError: It cannot be written; the old file is untouched.
    """
    if path.is_symlink():
        raise is_a_link(path)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        temporary.unlink(missing_ok=True)  # of a process of this number that was killed
        write_synced(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, which takes its name when all of it is there.

    Raises:
        CheckpointError: There is a link in its place, which would be lost.
        OSError: It cannot be written; the old file is untouched, as after any other error.
    """
    if path.is_symlink():
        raise is_a_link(path)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        temporary.unlink(missing_ok=True)  # of a process of this number that was killed
        descriptor = open_unlinked(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
    """Write a new file and wait until the disk has it; what is there already is refused."""
    descriptor = open_unlinked(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY)
    with os.fdopen(descriptor, "wb") as file:
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


def sha256(path: Path) -> str:
    """Checksum of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Delete what our killed writes left in a folder of ours; nobody reads a name that starts so.

    Only where the folder is locked or known to have no other writer.
    """
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def remove(path: Path) -> None:
    """Delete a file or a folder; a folder is first renamed, so that none is ever half there.

    Of a link only the link goes.
    """
    if path.is_dir() and not path.is_symlink():
        aside = path
        if not path.name.startswith(TEMPORARY):
            aside = path.with_name(f"{TEMPORARY}removed-{path.name}")
            path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class FolderLock:
    """Holds the file ``lock`` of a folder within a ``with`` block.

    The file holds the owner's process id. The lock is the operating system's, not the file's
    existence: it ends with the process, so a run that was killed can be resumed at once.

    Args:
        folder: It must exist.

    Raises:
        CheckpointError: Another process (or another ``FolderLock`` of this one) holds it, or the
            file is a link: it would be emptied.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        while self._descriptor is None:
            descriptor = self._open()
            try:
                _try_lock(descriptor)
            except OSError:
                owner = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                raise CheckpointError(
                    "run folder",
                    str(self._path.parent),
                    f"is in use by process {owner or 'unknown'}",
                    "wait for it, stop it, or choose another --out",
                ) from None
            if self._is_current(descriptor):
                self._descriptor = descriptor
            else:  # its owner deleted it between our opening and our locking: it guards nothing
                os.close(descriptor)
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            if sys.platform != "win32":  # which cannot delete an open file
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        try:
            return open_unlinked(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise not_written(self._path, error) from error

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.lstat())
        except FileNotFoundError:
            return False


def gossamer_version() -> str:
    """The installed version; ``"unknown"`` where the package runs from a folder."""
    try:
        return version("gossamer")
    except PackageNotFoundError:
        return "unknown"
