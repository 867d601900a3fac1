"""How a run is asked to stop: Ctrl-C, or the caller's own flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stop(Protocol):
    """Anything that can ask a run to stop, such as ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether the run should stop after the step in hand."""
        ...


class Stopped:
    """Set by Ctrl-C or by the caller's ``stop``."""

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop
        self.interrupted = False

    def is_set(self) -> bool:
        """Whether one of them asked."""
        return self.interrupted or (self._stop is not None and self._stop.is_set())


@contextmanager
def interruptible(stop: Stop | None) -> Iterator[Stopped]:
    """Within the block the first Ctrl-C only sets a flag; the second is a KeyboardInterrupt."""
    stopped = Stopped(stop)
    if threading.current_thread() is not threading.main_thread():
        yield stopped  # only the main thread may handle signals
        return

    def handle(number: int, frame: object) -> None:
        if stopped.interrupted:
            raise KeyboardInterrupt
        stopped.interrupted = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
