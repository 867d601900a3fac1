"""Processor time of a training step, all contenders in turn in one process; bytes and FLOPs.

A task times its own training too, but beside whatever else the machine does; ratios are of steps
that were taken in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gossamer.experiments.fits import fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values
from gossamer.inference import Method
from gossamer.inference.batch import Batch
from gossamer.nn import summary
from gossamer.train import RunConfig

ROUNDS, STEPS = 9, 4
"""Rounds over all contenders, and steps of each in a round."""

_FEW, _SHORT = 8, 60
"""Rows of a batch and steps of the run whose bytes are counted: SWAG then has all its points."""


@dataclass(frozen=True)
class Contest:
    """What is timed; JSON values.

    Attributes:
        configs: Runs by contender.
    """

    configs: dict[str, dict[str, Any]]


def cost(settings: Contest, watch: Watch) -> Values:
    """By contender: ``seconds`` of a step, ``ratio`` to RigL's, ``flops`` of it, ``bytes``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # or the processor time of waiting threads would count
    try:
        return _cost(settings, watch)
    finally:
        torch.set_num_threads(threads)


def _cost(settings: Contest, watch: Watch) -> Values:
    methods: dict[str, Method] = {}
    batches: list[Batch] = []
    shape: tuple[int, ...] = ()
    for key, values in settings.configs.items():
        assembly, fit = fit_of(RunConfig.from_json(values))
        methods[key] = assembly.method
        if not batches:
            order = torch.Generator().manual_seed(0)
            feed = fit.feed.epoch(order, 0)
            batches = [batch for batch, _ in zip(feed, range(STEPS), strict=False)]
            shape = tuple(assembly.dataset.x_train.shape[1:])
    seconds: dict[str, list[float]] = {key: [] for key in methods}
    for number in range(ROUNDS + 1):
        for key, method in methods.items():
            began = time.process_time()
            for batch in batches:
                method.step(batch)
            spent = (time.process_time() - began) / len(batches)
            if number:  # the first round also builds what later ones find
                seconds[key].append(spent)
        watch.tell((number + 1) / (ROUNDS + 1))
    rigl = seconds["rigl"]
    return {
        key: {
            "seconds": median(values),
            # Of ratios within a round: what slows the machine slows both.
            "ratio": median(a / b for a, b in zip(values, rigl, strict=True)),
            "flops": _flops(methods[key], shape),
            "bytes": _bytes(settings.configs[key]),
        }
        for key, values in seconds.items()
    }


def _flops(method: Method, shape: tuple[int, ...]) -> int:
    """Of a training step, per example."""
    members = getattr(method, "members", [method])
    rows = [row for member in members for row in summary(member.model, shape).rows]
    return sum(row.training_flops or 0 for row in rows)


def _bytes(values: dict[str, Any]) -> int:
    """Of all tensors that a run holds at its end: weights, supports, optimiser, what it collects.

    They do not depend on the data, so a run of a few small batches tells.
    """
    config = replace(
        RunConfig.from_json(values), batch_size=_FEW, limit_train=_FEW * _SHORT // 2, epochs=2
    )
    assembly, fit = fit_of(config)
    fit.run()
    held = {t.data_ptr(): t for t in _tensors(assembly.method.state_dict()) if t.numel()}
    return sum(t.numel() * t.element_size() for t in held.values())


def _tensors(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        if state.dtype != torch.uint8:  # the states of generators: some kB, of no interest here
            yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)
