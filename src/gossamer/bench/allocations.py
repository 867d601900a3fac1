"""How much memory a piece of code takes: by torch's own account, and by the system's."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.autograd.profiler import profile

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEMORY = "[memory]"


@dataclass(frozen=True)
class Allocations:
    """What torch allocated on the CPU while something ran; the engine's own memory is not in it.

    Attributes:
        changes: Time and signed bytes of every allocation and release, in the order of time.
        calls: Begin and end of every operator call by name.
    """

    changes: tuple[tuple[int, int], ...]
    calls: tuple[tuple[str, int, int], ...]

    @classmethod
    def during(cls, run: Callable[[], object]) -> Allocations:
        """Watch ``run()``."""
        with profile(profile_memory=True) as found:
            run()
        results: Any = found.kineto_results
        changes, calls = [], []
        for event in results.events():
            if event.name() == _MEMORY:
                changes.append((event.start_ns(), event.nbytes()))
            else:
                end = event.start_ns() + event.duration_ns()
                calls.append((event.name(), event.start_ns(), end))
        return cls(tuple(sorted(changes)), tuple(calls))

    @property
    def peak(self) -> float:
        """How far the allocated bytes rise above where they are at the beginning."""
        return _rise([size for _, size in self.changes])

    def peak_in(self, operator: str) -> float:
        """The largest rise within one call of an operator; NaN if it is not called."""
        rises = [
            _rise([size for time, size in self.changes if begin <= time <= end])
            for name, begin, end in self.calls
            if name == operator
        ]
        return max(rises, default=math.nan)


def address(tensor: Tensor) -> int:
    """Where a tensor's storage begins."""
    return tensor.untyped_storage().data_ptr()


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors; what several of them share counts once."""
    storages = {address(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def resident_rise(run: Callable[[], object]) -> float:
    """How far the process's resident bytes rise above where they are now; NaN if not known."""
    try:
        # What is free but still held would hide a rise; 5 resets the peak (man 5 proc).
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5", encoding="ascii")
    except (OSError, AttributeError):
        return math.nan
    before = resident()
    run()
    return resident_peak() - before


def resident() -> float:
    """Bytes of this process in memory; its peak where the system does not tell."""
    return _resident("VmRSS")


def resident_peak() -> float:
    """The most bytes that this process ever had in memory."""
    return _resident("VmHWM")


def _resident(key: str) -> float:
    # Not getrusage where /proc tells: its peak is inherited from the process that started this one.
    if _STATUS.is_file():
        for text in _STATUS.read_text(encoding="ascii").splitlines():
            name, _, value = text.partition(":")
            if name == key:
                return 1024.0 * int(value.split()[0])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _rise(changes: list[int]) -> float:
    level = highest = 0
    for size in changes:
        level += size
        highest = max(highest, level)
    return float(highest)
