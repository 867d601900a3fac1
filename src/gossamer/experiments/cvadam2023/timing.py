"""What pruned inputs save: epochs of DFP against the same algorithm as dense torch code.

Both are brought past the pruning, then their epochs alternate in one process; medians count.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from gossamer.data import batches
from gossamer.experiments.cvadam2023 import simulated
from gossamer.experiments.cvadam2023.dense_reference import DenseEMMCMC


def settings(*, seed: int) -> dict[str, Any]:
    """Example 1 under DFP; of the authors' 3,000 epochs a few are run."""
    about = simulated.settings(1, "dfp", 0, seed=seed)
    return {**about, "kind": "timing", "epochs_before": 150, "epochs_timed": 50}


def dense(about: dict[str, Any], problem: simulated.Problem) -> DenseEMMCMC:
    """The reference with the settings of :func:`simulated.method_of`."""
    chosen = simulated.SETTINGS_OF[about["example"]]
    return DenseEMMCMC(
        copy.deepcopy(problem.network),
        num_data=len(problem.x),
        total_steps=problem.steps,
        warmup_steps=about["warmup_epochs"] * problem.steps_per_epoch,
        cycles=about["cycles"],
        pruning=about["method"],
        lr=chosen.lr,
        slab_decay=chosen.slab_decay,
        spike_decay=about["spike_decay"],
        spike_threshold=chosen.spike_threshold,
        prune_threshold=about["prune_threshold"],
        regression=problem.is_regression,
    )


def carry_out(about: dict[str, Any]) -> dict[str, Any]:
    """Seconds per epoch of both, before and after the pruning."""
    problem = simulated.Problem.of(about)
    method, reference = simulated.method_of(about, problem), dense(about, problem)
    data = simulated.LiveInputs(problem.x, problem.y, about["batch_size"])

    def sparse_epoch() -> None:
        simulated.train_epoch(method, data, problem.order)

    def dense_epoch() -> None:
        for batch in batches(problem.x, problem.y, about["batch_size"], problem.order):
            reference.step(batch)

    warmup = about["warmup_epochs"]
    first = _alternate(sparse_epoch, dense_epoch, warmup)
    _alternate(sparse_epoch, dense_epoch, about["epochs_before"] - warmup)
    later = _alternate(sparse_epoch, dense_epoch, about["epochs_timed"])
    return {
        "example": about["example"],
        "method": about["method"],
        "epochs_timed": about["epochs_timed"],
        "seconds_per_epoch": later[0],
        "seconds_per_epoch_dense": later[1],
        "ratio": later[1] / later[0],
        "seconds_per_epoch_warmup": first[0],
        "seconds_per_epoch_warmup_dense": first[1],
        "seconds_dense": warmup * first[1] + (about["epochs"] - warmup) * later[1],
        "inputs_read": len(simulated.read_inputs(method)),
        "threads": torch.get_num_threads(),
    }


def describe(row: dict[str, Any]) -> str:
    """The measurement in a sentence."""
    return (
        f"Time per epoch of Example 1 under DFP, one thread, medians of {row['epochs_timed']} "
        f"alternating epochs: {1e3 * row['seconds_per_epoch']:.1f} ms once {row['inputs_read']} "
        f"inputs are left, against {1e3 * row['seconds_per_epoch_dense']:.1f} ms of the same "
        f"algorithm as dense torch code ({row['ratio']:.2f} times as long); before the pruning "
        f"{1e3 * row['seconds_per_epoch_warmup']:.1f} ms against "
        f"{1e3 * row['seconds_per_epoch_warmup_dense']:.1f} ms. At that pace a repeat in dense "
        f"code takes {row['seconds_dense']:.0f} s."
    )


def _alternate(
    one: Callable[[], None], two: Callable[[], None], epochs: int
) -> tuple[float, float]:
    """Medians of the seconds of both, turn by turn."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(epochs):
        for run, seconds in zip((one, two), spent, strict=True):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    return median(spent[0]), median(spent[1])
