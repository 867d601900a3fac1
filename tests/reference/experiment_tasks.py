"""Tasks for experiments: other processes must be able to import them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.errors import NonFinite
from gossamer.experiments import Watch


@dataclass(frozen=True)
class Work:
    """Settings: a number to square, where to leave a mark, and what else happens."""

    number: int
    kind: str
    marks: str
    seed: int = 0


def work(settings: Work, watch: Watch) -> dict[str, Any]:
    """Leaves a mark for every time it is done, then does what the settings say."""
    with Path(settings.marks).open("a") as file:
        file.write(f"{settings.number}\n")
    kind = settings.kind
    if kind == "sleeps":
        for _ in range(6000):
            time.sleep(0.1)
            watch.tell(0.5, "asleep")
    if kind == "waits":  # until the first one is at work and has said so
        while "0" not in Path(settings.marks).read_text().split():
            time.sleep(0.05)
        time.sleep(1.0)
    if kind == "slow":
        time.sleep(0.2)
    if kind == "diverges":
        raise NonFinite("loss", "nan", "must be finite")
    if kind == "fails":
        raise ValueError("no such luck")
    if kind == "dies":
        os._exit(7)
    return {
        "square": settings.number**2,
        "threads": torch.get_num_threads(),
        "malloc": os.environ.get("MALLOC_MMAP_MAX_"),
        "process": os.getpid(),
        "bad": float("nan"),
    }
