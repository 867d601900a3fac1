"""Processor time of a training step, all contenders in turn in one process; bytes and FLOPs.

A task times its own training too, but beside whatever else the machine does; ratios are of steps
that were taken in turn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.experiments.fits import fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.task import Values
from gossamer.inference import Method
from gossamer.inference.batch import Batch
from gossamer.nn import summary
from gossamer.train import RunConfig

ROUNDS, STEPS = 9, 4
"""Rounds over all contenders, and steps of each in a round."""


@dataclass(frozen=True)
class Contest:
    """What is timed; JSON values.

    Attributes:
        configs: Runs by contender.
    """

    configs: dict[str, dict[str, Any]]


def cost(settings: Contest, watch: Watch) -> Values:
    """By contender: ``seconds`` of a step, ``ratio`` to RigL's, ``bytes`` and ``flops``."""
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
            **_size(methods[key], shape),
        }
        for key, values in seconds.items()
    }


def _size(method: Method, shape: tuple[int, ...]) -> Values:
    """Bytes of parameters and optimiser state, and FLOPs of a training step per example."""
    members = getattr(method, "members", [method])
    flops = 0
    for member in members:
        found = summary(member.model, shape)
        flops += sum(row.training_flops or 0 for row in found.rows)
    return {
        "parameter_bytes": sum(_parameters(member.model) for member in members),
        "state_bytes": sum(_state(member) for member in members),
        "flops": flops,
    }


def _parameters(model: nn.Module) -> int:
    distinct = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in distinct.values())


def _state(method: Any) -> int:
    held = [
        value
        for state in method.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    average = getattr(method, "average", None)
    more = _parameters(method.model) if average is not None else 0
    return sum(t.numel() * t.element_size() for t in held) + more
