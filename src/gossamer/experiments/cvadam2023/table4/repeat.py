"""One repeat of a simulated example: trained, then judged on its test points."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gossamer.experiments.cvadam2023.table4.problem import Problem, chain_of, read_inputs
from gossamer.experiments.cvadam2023.table4.settings import RepeatSettings
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values
from gossamer.inference import Method
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.metrics import variable_selection
from gossamer.prediction import ClassPrediction, RealPrediction, predict
from gossamer.train import Epoch, Fit, Observer, Race, Restarts
from gossamer.train.evaluation import Metrics

HELD_OUT = 0.1
"""Share of the training points that is held out from all chains, also from the one that is left:
the error on it decides which go on. Test points have no part in it."""


def best_chain(about: RepeatSettings, problem: Problem, observers: Sequence[Observer] = ()) -> Fit:
    """The best of the candidates, trained so far as it took to know, or the only one.

    Args:
        about: How many there are, and when some of them end.
        problem: All training points.
        observers: Who watches all of them.

    Raises:
        NonFinite: All of them diverged.
    """
    if about.candidates == 1:
        return chain_of(about, problem, observers=observers)
    rows = round((1.0 - HELD_OUT) * len(problem.x))
    validate = partial(held_out_error, x=problem.x[rows:], y=problem.y[rows:])

    def start(number: int) -> Fit:
        own = problem.candidate(about, number, rows)
        return chain_of(about, own, validate=validate, observers=observers)

    race = Race(start, _restarts(about), about.epochs)
    race.run()
    return race.leader


def held_out_error(method: Method, x: Tensor, y: Tensor) -> Metrics:
    """Mean negative log-likelihood of the present network: what decides among chains."""
    assert isinstance(method, EMMCMC)
    method.model.eval()
    with torch.no_grad(), method.pruner.effective():
        return {"nll": float(-method.likelihood.log_lik(method.model(x), y).mean())}


class _Told(Observer):
    """Tells how much is done of the epochs of all chains together."""

    def __init__(self, watch: Watch, total: int) -> None:
        self._watch, self._total, self._done = watch, total, 0

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        self._done += 1
        self._watch.tell(self._done / self._total)


def carry_out(about: RepeatSettings, watch: Watch) -> Values:
    """One repeat: from its settings to its row."""
    began = time.perf_counter()
    problem = Problem.of(about)
    chain = best_chain(about, problem, [_Told(watch, _epochs_in_all(about))])
    chain.run()
    method = chain.method
    assert isinstance(method, EMMCMC)
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


def _restarts(about: RepeatSettings) -> Restarts:
    return Restarts(about.candidates, about.rounds)


def _epochs_in_all(about: RepeatSettings) -> int:
    """Epochs of all chains together."""
    if about.candidates == 1:
        return about.epochs
    total, chains, before = 0, about.candidates, 0
    for epochs, left in _restarts(about).rounds(about.epochs):
        total += chains * (epochs - before)
        chains, before = left, epochs
    return total + about.epochs - before


def selection(method: EMMCMC, problem: Problem) -> Values:
    """What was selected, counted from 1 as the paper does, and how well."""
    selected = read_inputs(method).cpu().tolist()
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
    x = torch.from_numpy(problem.simulation.x_test).to(problem.x.device)
    y = torch.from_numpy(problem.simulation.y_test).to(problem.x.device)
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
