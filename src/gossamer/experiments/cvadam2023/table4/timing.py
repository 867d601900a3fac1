"""What pruned inputs save: epochs of DFP against the same algorithm as dense torch code.

Both are brought past the pruning, then their epochs alternate in one process; medians count. Both
take bare steps: what a fit does beside them would count on one side only.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from statistics import median

import torch

from gossamer.data import batches
from gossamer.experiments.cvadam2023.table4.dense_reference import DenseEMMCMC
from gossamer.experiments.cvadam2023.table4.problem import (
    LiveInputs,
    Problem,
    forget_left,
    method_of,
    read_inputs,
)
from gossamer.experiments.cvadam2023.table4.settings import SETTINGS_OF, RepeatSettings
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values


@dataclass(frozen=True, kw_only=True)
class TimingSettings(RepeatSettings):
    """All that decides the measurement; of the authors' 3,000 epochs a few are run.

    Attributes:
        kind: Tells its file from a repeat's.
        epochs_before: Until the pruning is over.
        epochs_timed: After that.
    """

    kind: str = "timing"
    epochs_before: int = 150
    epochs_timed: int = 50


def dense(about: RepeatSettings, problem: Problem) -> DenseEMMCMC:
    """The reference with the settings of :func:`method_of`."""
    chosen = SETTINGS_OF[about.example]
    return DenseEMMCMC(
        copy.deepcopy(problem.network),
        num_data=len(problem.x),
        total_steps=problem.steps,
        warmup_steps=about.warmup_epochs * problem.steps_per_epoch,
        cycles=about.cycles,
        pruning=about.method,
        lr=chosen.lr,
        slab_decay=chosen.slab_decay,
        spike_decay=about.spike_decay,
        spike_threshold=chosen.spike_threshold,
        prune_threshold=about.prune_threshold,
        regression=problem.is_regression,
    )


def carry_out(about: TimingSettings, watch: Watch) -> Values:
    """Seconds per epoch of both, before and after the pruning."""
    problem = Problem.of(about)
    method, reference = method_of(about, problem), dense(about, problem)
    data = LiveInputs(problem.x, problem.y, about.batch_size)
    total, done = about.epochs_before + about.epochs_timed, 0

    def sparse_epoch() -> None:
        for batch in data.epoch(problem.order):
            method.step(batch)
        forget_left(method, data)

    def dense_epoch() -> None:
        for batch in batches(problem.x, problem.y, about.batch_size, problem.order):
            reference.step(batch)

    def alternate(epochs: int) -> tuple[float, float]:
        """Medians of the seconds of both, turn by turn."""
        nonlocal done
        spent: tuple[list[float], list[float]] = ([], [])
        for _ in range(epochs):
            for run, seconds in zip((sparse_epoch, dense_epoch), spent, strict=True):
                began = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - began)
            done += 1
            watch.tell(done / total)
        return median(spent[0]), median(spent[1])

    warmup = about.warmup_epochs
    first = alternate(warmup)
    alternate(about.epochs_before - warmup)
    later = alternate(about.epochs_timed)
    return {
        "example": about.example,
        "method": about.method,
        "epochs_timed": about.epochs_timed,
        "seconds_per_epoch": later[0],
        "seconds_per_epoch_dense": later[1],
        "ratio": later[1] / later[0],
        "seconds_per_epoch_warmup": first[0],
        "seconds_per_epoch_warmup_dense": first[1],
        "seconds_dense": warmup * first[1] + (about.epochs - warmup) * later[1],
        "inputs_read": len(read_inputs(method)),
        "threads": torch.get_num_threads(),
    }


def describe(row: Values) -> str:
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
