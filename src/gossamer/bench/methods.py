"""Whole methods side by side at one sparsity: steps for ``bench step``, bytes for ``bench memory``.

``step`` and ``memory`` measure what the layers are worth against dense ones. Here all contenders
have the same sparse layers, so that what differs is the method: its noise, its optimiser, its KL.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gossamer.bench import targets
from gossamer.bench.allocations import Allocations, unique_bytes
from gossamer.bench.networks import (
    LENET,
    LR,
    NUM_DATA,
    QUICK_LENET,
    SWAP_STEP,
    Network,
    networks,
)
from gossamer.bench.result import (
    Entry,
    Finding,
    Measured,
    Row,
    sized_rows,
    timed_rows,
)
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.swapping import add, averaged
from gossamer.bench.timing import Effort, Run, Timing, interleave
from gossamer.inference import build
from gossamer.inference.gradient import GradientMethod
from gossamer.optim import NaturalGradient

# A bound eight per cent above 1 needs a steadier median than one at a multiple of the baseline.
USUAL = Effort(rounds=9, seconds=8.0)
BATCH, QUICK_BATCH = 128, 8
SPARSITY = 0.95
UNIFORM, ERK = "uniform_dense_first", "erk"

RIGL, SSVI = Entry("rigl", SPARSITY), Entry("ssvi", SPARSITY)
NGVI, IVON = Entry("ngvi", SPARSITY), Entry("ngvi, ivon", SPARSITY)
METHODS: dict[Entry, tuple[str, dict[str, Any]]] = {
    RIGL: ("rigl", {}),
    NGVI: ("ngvi", {}),
    IVON: ("ngvi", {"update": "ivon", "natural_lr": LR}),
    SSVI: ("ssvi", {}),
}
"""Name in the registry and settings of every contender; the others are the defaults."""


class MethodStep:
    """Training steps of a method of the registry, as a fit takes them.

    Args:
        entry: Key of ``METHODS``.
        network: What is trained.
        distribution: Of weights over the layers.
        batch: Inputs and classes.
    """

    def __init__(
        self, entry: Entry, network: Network, distribution: str, batch: tuple[Tensor, Tensor]
    ) -> None:
        name, settings = METHODS[entry]
        method = build(
            name,
            network.build(),
            num_data=NUM_DATA,
            # So long a run is always at its beginning, where swaps are largest.
            total_steps=1000 * SWAP_STEP,
            update_every=SWAP_STEP,
            sparsity=SPARSITY,
            sparsity_distribution=distribution,
            lr=LR,
            **settings,
        )
        assert isinstance(method, GradientMethod)
        self.method, self.batch = method, batch

    def plain(self) -> None:
        """A step without a swap."""
        self.method.step(self.batch)

    def swap(self) -> None:
        """A step with one."""
        subspace = self.method.subspace
        assert subspace is not None
        subspace.load_state_dict({**subspace.state_dict(), "steps": SWAP_STEP - 1})
        self.plain()


class Counted:
    """A run that notes the processor time of each of its calls, of all threads together.

    Where other processes take turns on the same cores the clock counts them too; this does not.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds: list[float] = []

    def __call__(self) -> None:
        """Run once."""
        began = time.process_time()
        self.run()
        self.seconds.append(time.process_time() - began)

    def timing(self) -> Timing:
        """Without the first call, which ``interleave`` does not time either."""
        return Timing(tuple(self.seconds[1:]))


def plans(*, quick: bool) -> tuple[tuple[Network, str], ...]:
    """The networks, each with the distribution of weights over its layers."""
    resnet, mlp = networks(quick=quick)
    return (resnet, UNIFORM), (mlp, ERK), (QUICK_LENET if quick else LENET, ERK)


def measure_steps(settings: Settings, threads: int, tell: Tell) -> Measured:
    """The step of every method on every network."""
    rows: list[Row] = []
    findings: list[Finding] = []
    size = QUICK_BATCH if settings.quick else BATCH
    for network, distribution in plans(quick=settings.quick):
        case = f"{network.name}, batch {size}, {distribution}, methods"
        tell(f"{case}, {threads} thread(s)")
        batch = network.batch(size)
        runs: dict[Entry, Run] = {}
        for entry in METHODS:
            add(runs, entry, MethodStep(entry, network, distribution, batch))
        counted = {entry: Counted(run) for entry, run in runs.items()}
        wall = averaged(interleave(counted, settings.effort(USUAL)))
        used = averaged({entry: run.timing() for entry, run in counted.items()})
        rows += timed_rows(case, wall, RIGL, threads)
        name = f"{network.name} {100 * SPARSITY:g} %, {distribution}: step of"
        for entry in (NGVI, IVON, SSVI):
            said = f"{name} {entry.contender}, times rigl's"
            goal = None if entry is SSVI else targets.NGVI_STEP
            findings.append(Finding(said, threads, _times(wall, entry), target=goal))
            findings.append(Finding(f"{said}, processor time", threads, _times(used, entry)))
    return Measured(tuple(rows), tuple(findings))


def _times(timings: dict[Entry, Timing], entry: Entry) -> float:
    return timings[entry].median / timings[RIGL].median


@dataclass(frozen=True)
class Bytes:
    """Bytes that a method holds between two steps; what two of them share counts once.

    Attributes:
        parameters: Of network and likelihood.
        gradients: Theirs.
        state: Tensors of the optimiser's state.
    """

    parameters: int
    gradients: int
    state: int

    @property
    def total(self) -> int:
        """All three; buffers, which are indices and statistics, are not in it."""
        return self.parameters + self.gradients + self.state


def held_bytes(method: GradientMethod) -> Bytes:
    """Counted from the tensors, after a step."""
    parameters = [p for group in method.optimizer.param_groups for p in group["params"]]
    states = method.optimizer.state.values()
    return Bytes(
        unique_bytes(parameters),
        unique_bytes(p.grad for p in parameters if p.grad is not None),
        unique_bytes(t for state in states for t in state.values() if isinstance(t, Tensor)),
    )


def draw_bytes(method: GradientMethod) -> float:
    """Peak of what a draw of ``ngvi`` holds beside that: means and noise, until the step."""
    optimizer = method.optimizer
    assert isinstance(optimizer, NaturalGradient)

    def draw() -> None:
        with optimizer.sampled():
            pass

    return Allocations.during(draw).peak


def measure_bytes(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Parameters, gradients and state of every method on every network."""
    rows: list[Row] = []
    findings: list[Finding] = []
    for network, distribution in plans(quick=settings.quick):
        tell(f"state of methods on {network.name}")
        held: dict[Entry, Bytes] = {}
        batch = network.batch(2)  # the state does not depend on its size
        for entry in METHODS:
            step = MethodStep(entry, network, distribution, batch)
            step.plain()
            held[entry] = held_bytes(step.method)
        what = f"parameters, gradients and optimiser state, {network.name}, methods"
        sizes = {entry: float(found.total) for entry, found in held.items()}
        rows += sized_rows(what, sizes, RIGL, threads)
        states = {entry: float(found.state) for entry, found in held.items()}
        rows += sized_rows(f"optimiser state alone, {network.name}, methods", states, RIGL, threads)
        for entry in (NGVI, IVON):
            said = f"{what}: share of {entry.contender} in ssvi's"
            findings.append(Finding(said, threads, sizes[entry] / sizes[SSVI], "%"))
    return Measured(tuple(rows), tuple(findings))
