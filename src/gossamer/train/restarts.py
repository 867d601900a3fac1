"""Several fits begin, the best go on: the validation part decides which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

from gossamer.errors import InvalidValue, NonFinite
from gossamer.train.loop import Fit


@dataclass(frozen=True)
class Restarts:
    """How many fits begin and how many of them go on.

    Attributes:
        begin: Fits that begin, each with weights, order and noise of its own.
        keep: When some of them end, and how many go on from there. When is a share of the epochs,
            or, from 1 on, a number of epochs. The last of these leaves one.

    Example:
        >>> Restarts(begin=8, keep=((1 / 6, 3), (1 / 2, 1))).rounds(60)
        ((10, 3), (30, 1))
    """

    begin: int
    keep: tuple[tuple[float, int], ...] = ((0.25, 1),)

    def __post_init__(self) -> None:
        if self.begin < 2:
            raise InvalidValue("begin", self.begin, "must be at least 2", "use no restarts for one")
        whens, left = [when for when, _ in self.keep], [self.begin, *(n for _, n in self.keep)]
        if not self.keep or min(whens) <= 0:
            raise InvalidValue("keep", self.keep, "must say when, above 0, and how many go on")
        if any(after >= before for before, after in pairwise(left)):
            raise InvalidValue("keep", self.keep, f"must leave fewer each time, from {self.begin}")
        if left[-1] != 1:
            raise InvalidValue("keep", self.keep, "must leave one in the end", "e.g. ((0.25, 1),)")

    def rounds(self, epochs: int) -> tuple[tuple[int, int], ...]:
        """Epochs done and fits left, for each round of a run of so many epochs.

        Raises:
            InvalidValue: A round does not come after the one before it.
        """
        found = [
            (min(epochs, max(1, round(when if when >= 1 else when * epochs))), left)
            for when, left in self.keep
        ]
        ends = [end for end, _ in found]
        if ends != sorted(set(ends)):
            raise InvalidValue(
                "keep", self.keep, f"ends after epochs {ends} of {epochs}", "let them grow"
            )
        return tuple(found)


class Race:
    """Fits that compete. Each has its own noise, so that none depends on how the others fare.

    Args:
        start: A fresh fit by its number; it seeds torch's generators itself.
        restarts: How many, and when some of them end.
        epochs: Of a whole fit.
    """

    def __init__(self, start: Callable[[int], Fit], restarts: Restarts, epochs: int) -> None:
        self._start = start
        self._rounds = restarts.rounds(epochs)
        self._round = 0
        self._spent = 0.0
        self.fits: dict[int, Fit] = {number: start(number) for number in range(restarts.begin)}

    @property
    def seconds(self) -> float:
        """What all fits took, also those that ended."""
        return self._spent + sum(fit.seconds for fit in self.fits.values())

    @property
    def leader(self) -> Fit:
        """The best so far; in the end the one that is left."""
        return min(self.fits.values(), key=_standing)

    def run(self) -> bool:
        """Go on until one fit is left, ``leader``; it stands at the end of the last round.

        Fits whose loss is not finite leave at once.

        Returns:
            Whether the race is decided; ``False`` where an observer stopped it before.

        Raises:
            NonFinite: All of them diverged.
        """
        for epochs, left in self._rounds[self._round :]:
            for number, fit in list(self.fits.items()):
                try:
                    if not fit.run(until=epochs):
                        return False
                except NonFinite:
                    self._drop(number)
                    if not self.fits:
                        raise
            ranked = sorted(self.fits, key=lambda number: _standing(self.fits[number]))
            for number in ranked[left:]:
                self._drop(number)
            self._round += 1
        return True

    def _drop(self, number: int) -> None:
        self._spent += self.fits.pop(number).seconds

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on."""
        fits = {str(number): fit.state_dict() for number, fit in self.fits.items()}
        return {"round": self._round, "spent": self._spent, "fits": fits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self._round, self._spent = state["round"], state["spent"]
        self.fits = {int(number): self._start(int(number)) for number in state["fits"]}
        for number, fit in self.fits.items():
            fit.load_state_dict(state["fits"][str(number)])


def _standing(fit: Fit) -> float:
    """Validation NLL of the present state, as far as it is known."""
    return fit.history[-1].nll if fit.history else inf
