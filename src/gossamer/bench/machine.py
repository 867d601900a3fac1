"""Where a benchmark ran: a figure without its machine is none."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

from gossamer.ops import library
from gossamer.train.environment import environment

RIVALS = ("sparseprop", "sparselab", "bayesian-torch")


def describe() -> dict[str, Any]:
    """Processor, load, instruction set of the engine, versions of torch and of the rivals."""
    return {
        **environment(),
        "processor": _processor(),
        "cores": cores(),
        "load": load(),
        "isa": library.isa(),
        "rivals": {name: _version(name) for name in RIVALS},
    }


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Processes that ran or waited during the last minute, where the system counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _processor() -> str | None:
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return None
    for line in info.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
