"""What a benchmark may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.bench.timing import Effort
from gossamer.errors import InvalidValue

Tell = Callable[[str], None]
"""Hears what is being measured."""


@dataclass(frozen=True)
class Settings:
    """Settings that all suites share.

    Attributes:
        quick: Small shapes and one round: shows that everything runs, measures nothing.
        threads: Numbers of threads to measure at, one after the other.
        rounds: Timed runs of every contender, exactly; by default each suite's own number.
    """

    quick: bool = False
    threads: tuple[int, ...] = (1,)
    rounds: int | None = None

    def __post_init__(self) -> None:
        if not self.threads or min(self.threads) < 1:
            raise InvalidValue("threads", self.threads, "must be at least 1")
        if self.rounds is not None:
            Effort(self.rounds)  # or a plain error

    def effort(self, usual: Effort) -> Effort:
        """How long to measure where a suite would measure ``usual``."""
        if self.rounds is not None:
            return Effort(self.rounds)
        return Effort(1) if self.quick else usual
