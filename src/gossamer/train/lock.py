"""One process per run folder: a lock of the operating system, which ends with its process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from gossamer.errors import CheckpointError
from gossamer.train.atomic import not_written

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class RunLock:
    """Holds ``RUN/lock`` within a ``with`` block. The file holds the owner's process id.

    The lock is the operating system's, not the file's existence: it ends with the process, so a run
    that was killed can be resumed at once.

    Args:
        folder: The run folder; must exist.

    Raises:
        CheckpointError: Another process (or another ``RunLock`` of this one) holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
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
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise not_written(self._path, error) from error

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False
