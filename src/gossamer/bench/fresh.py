"""Memory of one task in a process of its own.

Peaks never come down again within a process, and what earlier contenders left in the allocator
would be taken for free.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gossamer.bench.allocations import Allocations, resident, resident_peak, resident_rise
from gossamer.bench.methods import NGVI, MethodStep, draw_bytes, plans
from gossamer.bench.networks import DenseStep, SparseStep, networks
from gossamer.errors import GossamerError
from gossamer.nn import sparse_layers

_CHILD = "from gossamer.bench.fresh import answer; answer()"
_SCORES = "gossamer::catch_streamed"
"""The operator that computes addition scores."""


def in_fresh_process(task: str, **arguments: Any) -> dict[str, float]:
    """What a task of ``TASKS`` returns in a new interpreter."""
    words = [sys.executable, "-c", _CHILD, task, json.dumps(arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise GossamerError(f"measurement of {task}", None, f"failed: {said[-1]}")
    found: dict[str, float | None] = json.loads(done.stdout.splitlines()[-1])
    return {key: math.nan if value is None else value for key, value in found.items()}


def answer() -> None:
    """Run the task that the command line names: the other end of ``in_fresh_process``."""
    found = TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps({key: None if math.isnan(value) else value for key, value in found.items()}))


def peak(
    *, contender: str, quick: bool, batch: int, sparsity: float, distribution: str, threads: int
) -> dict[str, float]:
    """Resident bytes before anything is built, and their peak in three training steps.

    The last step of a sparse network swaps.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network, _ = networks(quick=quick)
    bare = resident()
    data = network.batch(batch)
    step: DenseStep | SparseStep
    if contender == "dense VI":
        step = DenseStep.variational(network.build(), data)
        last = step.plain
    else:
        step = SparseStep(network.build(), sparsity, distribution, data)
        last = step.swap
    step.plain()
    step.plain()
    last()
    return {"bare": bare, "peak": resident_peak()}


def growth(*, size: int, batch: int, sparsity: float, threads: int) -> dict[str, float]:
    """Bytes that the addition scores of a square layer take.

    Returns:
        ``temporaries``: peak of torch's allocations while scores are computed; ``buffers``: what
        holds the caught scores until the swap; ``resident``: how much more an armed pass adds to
        the process than a plain one, all included; ``exchange``: peak of the swap that follows.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    data = (torch.randn(batch, size), torch.randint(size, (batch,)))
    dense = nn.Linear(size, size, bias=False)
    step = SparseStep(dense, sparsity, "uniform", data, backend="native")
    del dense

    def differentiate() -> None:
        # Without the KL, whose own temporaries would hide those of the scores.
        step.optimizer.zero_grad()
        F.cross_entropy(step.model(step.x), step.y).backward()  # type: ignore[no-untyped-call]

    def armed() -> None:
        step.arm()
        differentiate()

    def exchange() -> None:
        step.optimizer.step()
        step.subspace.step()

    step.plain()
    plain = resident_rise(differentiate)
    rise = resident_rise(armed)
    scores = Allocations.during(armed)
    caught = [layer.growth for layer in sparse_layers(step.model).values() if layer.growth]
    return {
        "temporaries": scores.peak_in(_SCORES),
        "buffers": float(sum(t.nbytes for one in caught for t in one.buffers)),
        "resident": rise - plain,
        "exchange": Allocations.during(exchange).peak,
    }


def draw(*, quick: bool, threads: int) -> dict[str, float]:
    """Bytes that a draw of ``ngvi`` holds until the step, by the name of the network."""
    torch.set_num_threads(threads)
    found = {}
    for network, distribution in plans(quick=quick):
        step = MethodStep(NGVI, network, distribution, network.batch(2))
        step.plain()
        found[network.name] = draw_bytes(step.method)
    return found


TASKS: dict[str, Callable[..., dict[str, float]]] = {
    "peak": peak,
    "growth": growth,
    "draw": draw,
}
"""What can be measured in a fresh process."""
