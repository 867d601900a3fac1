"""Average steps: plain ones and the few that swap, timed apart and put together by their shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from gossamer.bench.networks import with_swaps
from gossamer.bench.result import Entry
from gossamer.bench.timing import Run, Timing

SWAP = "swap step, "
"""Begins the names of timings that are only part of a row."""


class Swapping(Protocol):
    """Training steps of a network whose support moves."""

    def plain(self) -> None:
        """A step without a swap."""
        ...

    def swap(self) -> None:
        """A step with one."""
        ...


def add(runs: dict[Entry, Run], entry: Entry, step: Swapping) -> None:
    """Let both kinds of steps of a contender run."""
    runs[entry] = step.plain
    runs[replace(entry, contender=SWAP + entry.contender)] = step.swap


def averaged(timings: dict[Entry, Timing]) -> dict[Entry, Timing]:
    """Timings of average steps: each round's plain and swap step, in their shares."""
    found = {}
    for entry, timing in timings.items():
        if entry.contender.startswith(SWAP):
            continue
        swap = timings.get(replace(entry, contender=SWAP + entry.contender), timing)
        pairs = zip(timing.seconds, swap.seconds, strict=True)
        found[entry] = Timing(tuple(with_swaps(plain, other) for plain, other in pairs))
    return found
