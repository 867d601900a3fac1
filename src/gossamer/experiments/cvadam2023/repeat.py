"""One repeat of a simulated example: trained, then judged on its test points."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from gossamer.experiments.cvadam2023.simulated import Problem, read_inputs
from gossamer.experiments.cvadam2023.starts import best_chain
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.metrics import variable_selection
from gossamer.prediction import ClassPrediction, RealPrediction, predict


def carry_out(about: dict[str, Any]) -> dict[str, Any]:
    """One repeat: from its settings to its row."""
    began = time.perf_counter()
    problem = Problem.of(about)
    chain = best_chain(about, problem)
    chain.train_to(about["epochs"])
    method = chain.method
    seconds = time.perf_counter() - began
    return {
        "example": about["example"],
        "method": about["method"],
        "repeat": about["repeat"],
        **scores(method, problem),
        **selection(method, problem),
        "nnz": method.pruner.remaining,
        "epochs": about["epochs"],
        "seconds": seconds,
    }


def selection(method: EMMCMC, problem: Problem) -> dict[str, Any]:
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
