"""Schedules: pure functions of the step, so that a resumed run needs only its step count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from gossamer.errors import InvalidValue


class Schedule(Protocol):
    """A factor as a function of the step."""

    def __call__(self, step: int) -> float:
        """The factor at ``step`` (0 is before the first step)."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same factor at every step."""

    value: float = 1.0

    def __call__(self, step: int) -> float:
        """The factor."""
        return self.value


@dataclass(frozen=True)
class LinearWarmup:
    """From ``start`` to ``end`` in ``steps`` equal steps, then ``end``."""

    steps: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise InvalidValue("steps", self.steps, "must not be negative")

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        share = 1.0 if self.steps == 0 else min(step / self.steps, 1.0)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class CosineDecay:
    """From 1 to ``end`` along half a cosine over ``steps`` steps, then ``end``."""

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        share = min(step / self.steps, 1.0)
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class Warmed:
    """Another schedule, times a factor that rises from 1/``steps`` to 1 in ``steps`` steps."""

    schedule: Schedule
    steps: int

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        return self.schedule(step) * min((step + 1) / self.steps, 1.0)


@dataclass(frozen=True)
class Cyclical:
    """``cycles`` half cosines from 1 to 0, one after the other.

    ½(1 + cos(π (t mod C)/C)) with C = steps/cycles.
    """

    steps: int
    cycles: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        if not 1 <= self.cycles <= self.steps:
            raise InvalidValue("cycles", self.cycles, f"must lie in [1, steps = {self.steps}]")

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        # In integers: a rounded cycle length would miss the restart.
        share = (step * self.cycles % self.steps) / self.steps
        return 0.5 * (1.0 + math.cos(math.pi * share))


@dataclass(frozen=True)
class SwapSchedule:
    """When the support is swapped and how much of it.

    R_t = fraction/2 · (1 + cos(π t / T_end)), t in optimiser steps.

    Args:
        total_steps: Optimiser steps of the whole run.
        fraction: Share of a layer's kept weights swapped at the start.
        end_fraction: T_end as a share of ``total_steps``; no swap at or after it.
        update_every: Optimiser steps between swaps (M of Algorithm 1). ``None``: 100 as in the
            authors' runs, but never fewer than about thirty swaps in a short run.
    """

    total_steps: int
    fraction: float = 0.3
    end_fraction: float = 0.75
    update_every: int | None = None

    def __post_init__(self) -> None:
        _check_steps(self.total_steps, "total_steps")
        for name in ("fraction", "end_fraction"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise InvalidValue(f"swap {name}", value, "must lie in [0, 1]")
        if self.update_every is not None and self.update_every < 1:
            raise InvalidValue("update_every", self.update_every, "must be at least 1")

    @property
    def every(self) -> int:
        """Optimiser steps between swaps, with the default resolved."""
        if self.update_every is not None:
            return self.update_every
        return max(1, min(100, int(self.end_fraction * self.total_steps) // 30))

    @property
    def end_step(self) -> float:
        """T_end: swaps happen strictly before this step."""
        return self.end_fraction * self.total_steps

    def is_due(self, step: int) -> bool:
        """Whether a swap follows optimiser step number ``step`` (the first step is 1)."""
        return step > 0 and step % self.every == 0 and step < self.end_step

    def share(self, step: int) -> float:
        """r_t at ``step``: 0 from ``end_step`` on."""
        if step >= self.end_step:
            return 0.0
        return 0.5 * self.fraction * (1.0 + math.cos(math.pi * step / self.end_step))

    def count(self, step: int, nnz: int) -> int:
        """int(r_t · nnz): the number of weights of a layer that a swap at ``step`` removes."""
        return int(self.share(step) * nnz)

    def max_count(self, nnz: int) -> int:
        """The largest ``count`` of the whole run."""
        return int(self.fraction * nnz)


class Swaps(Protocol):
    """When the support of a run is swapped and how much of it, see ``SwapSchedule``."""

    def is_due(self, step: int) -> bool:
        """Whether a swap follows optimiser step number ``step``."""
        ...

    def share(self, step: int) -> float:
        """r_t at ``step``."""
        ...

    def count(self, step: int, nnz: int) -> int:
        """Weights of a layer that a swap at ``step`` removes."""
        ...

    def max_count(self, nnz: int) -> int:
        """The largest ``count`` of the whole run."""
        ...


def cycle_ends(steps: int, cycles: int, first: float = 0.5) -> tuple[int, ...]:
    """Steps done at the end of each cycle: the first takes ``first`` of the run, the others alike.

    Example:
        >>> cycle_ends(100, 3)
        (50, 75, 100)
    """
    _check_steps(steps)
    if cycles == 1:
        return (steps,)
    shares = [first + (1.0 - first) * number / (cycles - 1) for number in range(cycles)]
    ends = tuple(round(share * steps) for share in shares)
    if any(end <= before for before, end in zip((0, *ends), ends, strict=False)):
        raise InvalidValue("cycles", cycles, f"must leave each a step, of {steps} in all")
    return ends


@dataclass(frozen=True)
class CosineCycles:
    """A half cosine from 1 to 0 in each cycle, then 0: ½(1 + cos(π (t - start)/(end - start))).

    Args:
        ends: Steps done at the end of each cycle, rising.
    """

    ends: tuple[int, ...]

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        for start, end in zip((0, *self.ends), self.ends, strict=False):
            if step < end:
                return CosineDecay(end - start)(step - start)
        return 0.0


@dataclass(frozen=True)
class SwapCycles:
    """A ``SwapSchedule`` in each cycle: swaps begin anew with ``fraction`` and fall to 0.

    Args:
        ends: Steps done at the end of each cycle, rising.
        fraction: Share of a layer's kept weights swapped at the start of a cycle.
        end_fraction: Share of each cycle after which the support rests.
        update_every: As of ``SwapSchedule``, in each cycle.
    """

    ends: tuple[int, ...]
    fraction: float = 0.3
    end_fraction: float = 0.75
    update_every: int | None = None

    def _cycle(self, step: int) -> tuple[SwapSchedule, int]:
        """The schedule of the cycle to which a step belongs, and the step's number in it."""
        start = 0
        for end in self.ends:
            if step <= end or end == self.ends[-1]:
                break
            start = end
        rule = SwapSchedule(end - start, self.fraction, self.end_fraction, self.update_every)
        return rule, step - start

    def is_due(self, step: int) -> bool:
        """See ``SwapSchedule.is_due``."""
        rule, place = self._cycle(step)
        return rule.is_due(place)

    def share(self, step: int) -> float:
        """See ``SwapSchedule.share``."""
        rule, place = self._cycle(step)
        return rule.share(place)

    def count(self, step: int, nnz: int) -> int:
        """See ``SwapSchedule.count``."""
        return int(self.share(step) * nnz)

    def max_count(self, nnz: int) -> int:
        """See ``SwapSchedule.max_count``."""
        return int(self.fraction * nnz)


def linear_warmup(steps: int, *, start: float = 0.0, end: float = 1.0) -> LinearWarmup:
    """KL warm-up: the weight rises from ``start`` to ``end`` in ``steps`` steps, then stays."""
    return LinearWarmup(steps, start, end)


def _check_steps(steps: int, name: str = "steps") -> None:
    if steps < 1:
        raise InvalidValue(name, steps, "must be at least 1")
