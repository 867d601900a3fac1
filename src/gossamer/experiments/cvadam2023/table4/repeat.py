"""One repeat of a simulated example: trained, then judged on its test points."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.experiments.cvadam2023.table4.problem import (
    LiveInputs,
    Problem,
    method_of,
    read_inputs,
    train_epoch,
)
from gossamer.experiments.cvadam2023.table4.settings import RepeatSettings
from gossamer.experiments.cvadam2023.table4.starts import best_chain
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.metrics import variable_selection
from gossamer.prediction import ClassPrediction, RealPrediction, predict

HELD_OUT = 0.1
"""Share of the training points that is held out from all chains, also from the one that is left:
the error on it decides which go on. Test points have no part in it."""


@dataclass(eq=False)
class Chain:
    """A run under way, with the state of its own noise.

    Attributes:
        method: The sampler.
        data: What it is trained on.
        order: Generator of the order of its batches.
        noise: State of torch's generator when it last stopped.
        epochs: Run so far.
    """

    method: EMMCMC
    data: LiveInputs
    order: torch.Generator
    noise: Tensor
    epochs: int = 0

    @classmethod
    def begin(cls, about: RepeatSettings, problem: Problem) -> Chain:
        """A chain from the problem's weights; its noise goes on where torch's generator stands."""
        data = LiveInputs(problem.x, problem.y, about.batch_size)
        return cls(method_of(about, problem), data, problem.order, torch.get_rng_state())

    def train_to(self, epochs: int, after_epoch: Callable[[], None] = lambda: None) -> None:
        """Go on to this number of epochs.

        Raises:
            NonFinite: The chain diverges.
        """
        torch.set_rng_state(self.noise)
        for _ in range(self.epochs, epochs):
            train_epoch(self.method, self.data, self.order)
            after_epoch()
        self.noise = torch.get_rng_state()
        self.epochs = max(epochs, self.epochs)

    def error(self, x: Tensor, y: Tensor) -> float:
        """Mean negative log-likelihood of the present network."""
        self.method.model.eval()
        with torch.no_grad(), self.method.pruner.effective():
            return float(-self.method.likelihood.log_lik(self.method.model(x), y).mean())


def begin(about: RepeatSettings, problem: Problem, after_epoch: Callable[[], None]) -> Chain:
    """The best of the candidates, trained so far as it took to know, or the only one.

    Args:
        about: How many there are, and when some of them end.
        problem: All training points.
        after_epoch: Called after every epoch of every candidate.

    Raises:
        NonFinite: All of them diverged.
    """
    if about.candidates == 1:
        return Chain.begin(about, problem)
    rows = round((1.0 - HELD_OUT) * len(problem.x))
    held_out = problem.x[rows:], problem.y[rows:]
    return best_chain(
        about.candidates,
        _rounds(about),
        begin=lambda number: Chain.begin(about, problem.candidate(about, number, rows)),
        train_to=lambda chain, epochs: chain.train_to(epochs, after_epoch),
        error=lambda chain: chain.error(*held_out),
    )


def carry_out(about: RepeatSettings, watch: Watch) -> Values:
    """One repeat: from its settings to its row."""
    began = time.perf_counter()
    total, done = _epochs_in_all(about), 0

    def after_epoch() -> None:
        nonlocal done
        done += 1
        watch.tell(done / total)

    problem = Problem.of(about)
    chain = begin(about, problem, after_epoch)
    chain.train_to(about.epochs, after_epoch)
    method = chain.method
    seconds = time.perf_counter() - began
    return {
        "example": about.example,
        "method": about.method,
        "repeat": about.repeat,
        **scores(method, problem),
        **selection(method, problem),
        "nnz": method.pruner.remaining,
        "epochs": about.epochs,
        "seconds": seconds,
    }


def _rounds(about: RepeatSettings) -> list[tuple[int, int]]:
    return [(min(epochs, about.epochs), left) for epochs, left in about.rounds]


def _epochs_in_all(about: RepeatSettings) -> int:
    """Epochs of all chains together."""
    if about.candidates == 1:
        return about.epochs
    total, chains, before = 0, about.candidates, 0
    for epochs, left in _rounds(about):
        total += chains * (epochs - before)
        chains, before = left, epochs
    return total + about.epochs - before


def selection(method: EMMCMC, problem: Problem) -> Values:
    """What was selected, counted from 1 as the paper does, and how well."""
    selected = read_inputs(method).tolist()
    true = problem.simulation.example.true_variables
    found = variable_selection(selected, true, problem.simulation.num_features)
    return {
        "fdr": found.fdr,
        "fndr": found.fndr,
        "miss_rate": found.miss_rate,
        "selected": [i + 1 for i in selected],
        "num_selected": found.selected,
    }


def scores(method: EMMCMC, problem: Problem) -> dict[str, float]:
    """Test error of the last sample, of those of the last cycle and of all that were kept."""
    x = torch.from_numpy(problem.simulation.x_test)
    y = torch.from_numpy(problem.simulation.y_test)
    name = "mse" if problem.is_regression else "accuracy"
    kept = {"": 1, "_cycle": method.config.samples_per_cycle, "_ensemble": len(method.samples)}
    return {f"{name}{suffix}": score(method, x, y, count) for suffix, count in kept.items()}


def score(method: EMMCMC, x: Tensor, y: Tensor, num_samples: int) -> float:
    """Mean squared error or accuracy of the average over the last samples of the chain."""
    found = predict(method, x, num_samples, keep_samples=False)
    if isinstance(found, ClassPrediction):
        return float((found.label.reshape(y.shape) == y).double().mean())
    assert isinstance(found, RealPrediction)
    return float((found.mean.reshape(y.shape).double() - y.double()).square().mean())
