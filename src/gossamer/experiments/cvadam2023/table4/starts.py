"""Several chains begin, the best goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import TypeVar

from gossamer.errors import NonFinite

C = TypeVar("C")


def best_chain(
    candidates: int,
    rounds: Sequence[tuple[int, int]],
    *,
    begin: Callable[[int], C],
    train_to: Callable[[C, int], None],
    error: Callable[[C], float],
) -> C:
    """The chain that is left after all rounds.

    Args:
        candidates: Chains that begin.
        rounds: Epochs and a number: when all are trained so far, so many go on.
        begin: From a number, counted from 0, to a chain.
        train_to: Trains a chain to a number of epochs; a chain that raises ``NonFinite`` is out.
        error: Of a chain: the smallest go on; one that is not finite counts as infinite.

    Raises:
        NonFinite: All of them diverged.
    """
    chains = [begin(number) for number in range(candidates)]
    diverged: dict[int, NonFinite] = {}

    def rank(chain: C) -> float:
        found = inf if id(chain) in diverged else error(chain)
        return found if isfinite(found) else inf

    for epochs, left in rounds:
        for chain in chains:
            try:
                train_to(chain, epochs)
            except NonFinite as failure:
                diverged[id(chain)] = failure
        chains = sorted(chains, key=rank)[:left]
    if id(chains[0]) in diverged:
        raise diverged[id(chains[0])]
    return chains[0]
