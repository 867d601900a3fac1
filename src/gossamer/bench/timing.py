"""Interleaved timing: all contenders in one process, in turn, round after round.

On a shared machine the speed drifts by tens of per cent within minutes. Contenders that take turns
meet the same drift, so that the ratio of their medians is far steadier than the medians are.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from gossamer.errors import InvalidValue

Run = Callable[[], object]
Clock = Callable[[], float]
Key = TypeVar("Key", bound=Hashable)

MAX_ROUNDS = 200


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Timed runs of every contender, at least.
        seconds: Go on beyond them until this much time is spent, up to ``MAX_ROUNDS``: short runs
            need more of them for a steady median.
    """

    rounds: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MAX_ROUNDS:
            raise InvalidValue("rounds", self.rounds, f"must lie in [1, {MAX_ROUNDS}]")


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender's runs, in the order of the rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the runs."""
        return median(self.seconds)

    @property
    def best(self) -> float:
        """The shortest run."""
        return min(self.seconds)


def interleave(
    contenders: Mapping[Key, Run], effort: Effort, *, clock: Clock = time.perf_counter
) -> dict[Key, Timing]:
    """Times contenders in turn, after one untimed round.

    Each round starts with another contender and every other round goes backwards, so that nobody
    always meets the caches, and the threads not yet asleep, that the same other one left behind.

    Args:
        contenders: What to run, by name.
        effort: How often.
        clock: Seconds; replaced in tests.

    Returns:
        A timing for every name, in the order of ``contenders``.
    """
    names = list(contenders)
    seconds: dict[Key, list[float]] = {name: [] for name in names}
    for run in contenders.values():
        run()
    spent, rounds = 0.0, 0
    with _no_garbage_collection():
        while rounds < effort.rounds or (spent < effort.seconds and rounds < MAX_ROUNDS):
            first = rounds % len(names)
            order = names[first:] + names[:first]
            for name in reversed(order) if rounds % 2 else order:
                began = clock()
                contenders[name]()
                seconds[name].append(clock() - began)
                spent += seconds[name][-1]
            rounds += 1
            gc.collect(0)  # the young only: a full collection takes longer than most rounds
    return {name: Timing(tuple(found)) for name, found in seconds.items()}


def geometric_mean(ratios: Iterable[float]) -> float:
    """The mean for ratios; NaN of none."""
    values = list(ratios)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The line of least squares through points (x, y): intercept and slope."""
    pairs = list(points)
    mean_x = sum(x for x, _ in pairs) / len(pairs)
    mean_y = sum(y for _, y in pairs) / len(pairs)
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    if spread == 0.0:
        raise InvalidValue("points", pairs, "a line needs two different x")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    return mean_y - slope * mean_x, slope


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Within the context torch, and the native engine with it, uses ``count`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection inside a run would be charged to whoever happens to run."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
