"""Memory that the process keeps between the steps of a training run."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let malloc reuse freed memory instead of giving it back to the system.

    glibc maps blocks of 32 MB and more anew each time they are asked for, and the system clears
    every page of them, which costs as much as a good part of a sparse convolution. Only for a
    process that is ours: a command's, never that of an importing program.

    Returns:
        Whether this system's allocator took it; another one than glibc's is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
