"""A simulated example as it is trained: data, network, sampler, batches, and the fit of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.data import batches
from gossamer.data.readers.synthetic import Simulation, make
from gossamer.experiments.cvadam2023.table4.settings import SETTINGS_OF, RepeatSettings, example_of
from gossamer.inference import Batch, build
from gossamer.inference.chain import AUTHORS
from gossamer.inference.methods.em_mcmc import EMMCMC
from gossamer.likelihoods import Gaussian, make_likelihood
from gossamer.models.mlps import mlp
from gossamer.nn import sparse_layers
from gossamer.train import Epoch, Fit, Observer, resolve_device
from gossamer.train.loop import Validate

FIRST_LAYER = "1"
"""Name of the first layer, whose columns are the inputs; ``0`` makes vectors of them."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, first weights and the generator of the order, all from the seed.

    Attributes:
        simulation: Raw data, not standardised.
        x: Inputs [N, p], on the device.
        y: Targets [N], there too.
        network: ReLU network of the paper's widths, there too; its weights are drawn on the CPU.
        order: Generator of the order of the batches, of the CPU.
        steps: Of the run.
        steps_per_epoch: Batches.
    """

    simulation: Simulation
    x: Tensor
    y: Tensor
    network: nn.Sequential
    order: torch.Generator
    steps: int
    steps_per_epoch: int

    @classmethod
    def of(cls, about: RepeatSettings) -> Problem:
        """The problem of a repeat. Seeds torch's generator too, from which the noise comes."""
        simulation = make(
            example_of(about.example),
            about.num_train,
            about.num_test,
            about.num_features,
            seed=about.seed,
        )
        device = resolve_device(about.device)
        x = torch.from_numpy(simulation.x_train).to(device)
        y = torch.from_numpy(simulation.y_train).float().to(device)
        return cls._begun(simulation, x, y, about, (about.seed, about.example))

    def candidate(self, about: RepeatSettings, number: int, rows: int) -> Problem:
        """The problem on its first rows, with weights, order and noise of a candidate's own."""
        seeds = (about.seed, about.example, 1 + number)
        return self._begun(self.simulation, self.x[:rows], self.y[:rows], about, seeds)

    @classmethod
    def _begun(
        cls,
        simulation: Simulation,
        x: Tensor,
        y: Tensor,
        about: RepeatSettings,
        seeds: tuple[int, ...],
    ) -> Problem:
        # Weights and noise, and the order: independent of one another and of the data.
        streams = np.random.SeedSequence(seeds).generate_state(2)
        torch.manual_seed(int(streams[0]))
        per_epoch = -(-len(x) // about.batch_size)
        return cls(
            simulation,
            x,
            y,
            paper_network(simulation).to(x.device),
            torch.Generator().manual_seed(int(streams[1])),
            about.epochs * per_epoch,
            per_epoch,
        )

    @property
    def is_regression(self) -> bool:
        """Whether the target is real."""
        return self.simulation.example.task == "regression"


def paper_network(simulation: Simulation) -> nn.Sequential:
    """The ReLU network of the example's widths."""
    example = simulation.example
    return mlp(input_shape=(simulation.num_features,), output_size=1, hidden=example.hidden)


def method_of(about: RepeatSettings, problem: Problem) -> EMMCMC:
    """Algorithm 3 with the authors' settings."""
    chosen = SETTINGS_OF[about.example]
    # The squared error without ½ is the Gaussian likelihood of variance ½.
    likelihood = Gaussian(0.5**0.5) if problem.is_regression else make_likelihood("bernoulli")
    method = build(
        "em_mcmc",
        problem.network,
        num_data=len(problem.x),
        total_steps=problem.steps,
        likelihood=likelihood.to(problem.x.device),
        **AUTHORS,
        pruning=about.method,
        cycles=about.cycles,
        lr=chosen.lr,
        weight_decay=chosen.slab_decay,
        spike_decay=about.spike_decay,
        spike_threshold=chosen.spike_threshold,
        prune_threshold=about.prune_threshold,
        prune_end=1.0,
        warmup=warmup_share(about.warmup_epochs * problem.steps_per_epoch, problem.steps),
    )
    assert isinstance(method, EMMCMC)
    return method


def warmup_share(warmup_steps: int, steps: int) -> float:
    """The share of a run that ends just before a step: half a step early, beyond any rounding."""
    return min(1.0, max(0.0, (warmup_steps - 0.5) / steps))


class LiveInputs:
    """Batches that load only the inputs which the network still reads; all others are 0.

    Under DFP inputs leave for good, and loading the others is then most of what an epoch costs.

    Args:
        x: Inputs [N, p].
        y: Targets [N].
        batch_size: Rows.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int) -> None:
        self._x, self._y, self._size = x, y, batch_size
        self._live = x
        self._columns: Tensor | None = None
        self._buffer: Tensor | None = None

    def narrow(self, columns: Tensor) -> None:
        """From now on only these columns [k] are read; worth it where they are few."""
        if self._columns is not None and len(columns) == len(self._columns):
            return
        if 4 * len(columns) > self._x.shape[1]:
            return
        self._columns = columns
        self._live = self._x.index_select(1, columns)
        self._buffer = self._x.new_zeros(self._size, self._x.shape[1])

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a whole epoch."""
        return -(-len(self._x) // self._size)

    def epoch(self, order: torch.Generator, start: int = 0) -> Iterator[Batch]:
        """See :class:`gossamer.train.Feed`. A batch is gone when the next one is asked for."""
        for x, y in batches(self._live, self._y, self._size, order, start=start):
            if self._buffer is None or self._columns is None:
                yield Batch(x, y)
                continue
            rows = self._buffer[: len(x)]
            rows.index_copy_(1, self._columns, x)
            yield Batch(rows, y)


def read_inputs(method: EMMCMC) -> Tensor:
    """Inputs whose column of the first layer is not hard-masked: int64 [k], counted from 0."""
    layer = sparse_layers(method.model)[FIRST_LAYER]
    indices = method.snapshot().get(f"{FIRST_LAYER}.indices")
    num_features = layer.layout.shape[1]
    if indices is None:
        return torch.arange(num_features)
    columns: Tensor = torch.unique(indices.long() % num_features)
    return columns


def forget_left(method: EMMCMC, data: LiveInputs) -> None:
    """Under DFP inputs that have left are no longer loaded; under DPF they may come back."""
    if method.config.pruning == "dfp":
        data.narrow(read_inputs(method))


class _Narrowing(Observer):
    """Forgets after every epoch the inputs that have left."""

    def __init__(self, method: EMMCMC, data: LiveInputs) -> None:
        self._method, self._data = method, data

    def on_epoch(self, fit: Fit, epoch: Epoch) -> None:
        forget_left(self._method, self._data)


def chain_of(
    about: RepeatSettings,
    problem: Problem,
    *,
    validate: Validate | None = None,
    observers: Sequence[Observer] = (),
) -> Fit:
    """A chain from the problem's weights; its noise goes on where torch's generator stands.

    Args:
        about: The settings.
        problem: What it is trained on.
        validate: Its standing among others, asked where it stops and at its end.
        observers: Who watches.
    """
    method = method_of(about, problem)
    data = LiveInputs(problem.x, problem.y, about.batch_size)
    return Fit(
        method,
        data,
        epochs=about.epochs,
        order=problem.order,
        validate=validate,
        validate_every=about.epochs,
        observers=[_Narrowing(method, data), *observers],
    )
