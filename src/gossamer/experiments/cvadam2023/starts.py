"""Several chains begin, the best goes on.

A tenth of the training points is held out from all chains, also from the one that is left: the
error on it decides which go on. Test points have no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import NonFinite
from gossamer.experiments.cvadam2023.simulated import (
    LiveInputs,
    Problem,
    method_of,
    relu_network,
    train_epoch,
)
from gossamer.inference.methods.em_mcmc import EMMCMC

HELD_OUT = 0.1
"""Share of the training points."""


@dataclass(eq=False)
class Chain:
    """A run under way, with the state of its own noise.

    Attributes:
        method: The sampler.
        data: What it is trained on.
        order: Generator of the order of its batches.
        noise: State of torch's generator when it last stopped.
        epochs: Run so far.
        diverged: Whether it can go on no longer.
    """

    method: EMMCMC
    data: LiveInputs
    order: torch.Generator
    noise: Tensor
    epochs: int = 0
    diverged: bool = False

    @classmethod
    def begin(cls, about: dict[str, Any], problem: Problem) -> Chain:
        """A chain from the problem's weights; its noise goes on where torch's generator stands."""
        data = LiveInputs(problem.x, problem.y, about["batch_size"])
        return cls(method_of(about, problem), data, problem.order, torch.get_rng_state())

    def train_to(self, epochs: int) -> None:
        """Go on to this number of epochs.

        Raises:
            NonFinite: The chain diverges.
        """
        torch.set_rng_state(self.noise)
        for _ in range(self.epochs, epochs):
            train_epoch(self.method, self.data, self.order)
        self.noise = torch.get_rng_state()
        self.epochs = max(epochs, self.epochs)

    def error(self, x: Tensor, y: Tensor) -> float:
        """Mean negative log-likelihood of the present network; infinite where it has diverged."""
        if self.diverged:
            return inf
        self.method.model.eval()
        with torch.no_grad(), self.method.pruner.effective():
            found = float(-self.method.likelihood.log_lik(self.method.model(x), y).mean())
        return found if isfinite(found) else inf


def best_chain(about: dict[str, Any], problem: Problem) -> Chain:
    """The chain that is left after all rounds, or the only one.

    Args:
        about: Settings; ``candidates`` chains begin, after each of the ``rounds``, epochs and a
            number, that many are left.
        problem: All training points.

    Raises:
        NonFinite: All of them diverged.
    """
    if about["candidates"] == 1:
        return Chain.begin(about, problem)
    rows = round((1.0 - HELD_OUT) * len(problem.x))
    held_out = problem.x[rows:], problem.y[rows:]
    chains = [
        Chain.begin(about, _start(about, problem, rows, n)) for n in range(about["candidates"])
    ]
    failure: NonFinite | None = None
    for epochs, left in about["rounds"]:
        for chain in chains:
            try:
                chain.train_to(min(epochs, about["epochs"]))
            except NonFinite as error:
                chain.diverged, failure = True, error
        chains = sorted(chains, key=lambda chain: chain.error(*held_out))[:left]
    if chains[0].diverged and failure is not None:
        raise failure
    return chains[0]


def _start(about: dict[str, Any], problem: Problem, rows: int, number: int) -> Problem:
    """The problem on its first rows with first weights of its own; seeds torch's generator."""
    words = np.random.SeedSequence((about["seed"], about["example"], 1 + number)).generate_state(2)
    torch.manual_seed(int(words[0]))
    per_epoch = -(-rows // about["batch_size"])
    return replace(
        problem,
        x=problem.x[:rows],
        y=problem.y[:rows],
        network=relu_network(problem.simulation.example.widths(about["num_features"])),
        order=torch.Generator().manual_seed(int(words[1])),
        steps=about["epochs"] * per_epoch,
        steps_per_epoch=per_epoch,
    )
