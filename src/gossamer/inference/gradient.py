"""What methods that follow a gradient share: optimiser, schedules, the step, saving.

Variational ones add a prior, an initial posterior and a KL that warms up.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.schedule import Constant, CosineDecay, Schedule, Warmed, linear_warmup
from gossamer.core.swap import Budget
from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference.averaging import TailAverage
from gossamer.inference.batch import Batch
from gossamer.inference.group import ALONE, Group
from gossamer.inference.method import StepInfo
from gossamer.inference.objective import ELBO
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.remarks import remark_on_end
from gossamer.inference.state import (
    common_state,
    load_common_state,
    not_own_state,
    require_own_state,
)
from gossamer.inference.step import Step, StepConfig
from gossamer.inference.subspace import Subspace, SwapRule
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_bayesian, weights_of
from gossamer.nn.candidates import convertible_weights
from gossamer.nn.convert import AbsentVariance
from gossamer.nn.prior import POSTERIOR_SHARE, PosteriorStd, PriorStd
from gossamer.ops import AUTO
from gossamer.prediction import NoiseDraws, Posterior


@dataclass(frozen=True, kw_only=True)
class DescentConfig(StepConfig):
    """Settings of the steps on weights, whatever takes them.

    Attributes:
        lr: Learning rate of weights and biases; ``None`` takes ``default_lr``.
        lr_factor: Times that; ``None`` is ``AUTO_FACTOR`` of the config where ``lr`` is not given,
            else 1.
        lr_schedule: ``cosine`` to 0 over the run, or ``constant``.
        lr_warmup: Share of the run over which the learning rate rises from 0, on top of that.
        lr_floor: What ``cosine`` falls to, as a share of ``lr``; with ``average`` it gets there
            where the average begins.
        average: Share of the run, at its end, over which weights are averaged; the mean predicts.
            It takes a network's memory more. 0 for none.
        weight_decay: On means and deterministic weights, never on σ.
        decay_biases: Decay biases and normalisation too.
    """

    lr: float | None = None
    lr_factor: float | None = None
    lr_schedule: Literal["cosine", "constant"] = "cosine"
    lr_warmup: float = 0.0
    lr_floor: float = 0.0
    average: float = 0.0
    weight_decay: float = 3e-4
    decay_biases: bool = False

    AUTO_FACTOR: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "lr_factor", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        for name in ("lr_warmup", "average"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InvalidValue(
                    name, getattr(self, name), "must lie in [0, 1), a share of the run"
                )
        if not 0.0 <= self.lr_floor <= 1.0:
            raise InvalidValue("lr_floor", self.lr_floor, "must lie in [0, 1], a share of lr")
        if self.average > 0.0 and self.lr_floor == 0.0 and self.lr_schedule == "cosine":
            raise InvalidValue(
                "average",
                self.average,
                "of steps of length 0 is no average",
                "set lr_floor, to 0.6 say",
            )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(DescentConfig):
    """Settings of the optimiser, shared by methods that take one of torch's.

    Attributes:
        optimizer: ``adam`` or ``sgd``.
        std_lr: Learning rate of the softplus pre-image of σ; ``lr`` if ``None``.
        momentum: For ``sgd``.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    std_lr: float | None = None
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("std_lr", "momentum"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")


DENSE_LR = 2e-3
"""Adam's learning rate for a dense network."""


def default_lr(model: nn.Module) -> float:
    """``DENSE_LR`` / √density: sparse weights are larger by 1/√density, and so are their steps."""
    supports = [weight.layer.support for weight in weights_of(model)]
    density = sum(s.nnz for s in supports) / max(sum(s.numel for s in supports), 1)
    return DENSE_LR / sqrt(density) if supports else DENSE_LR


def base_lr(config: DescentConfig, model: nn.Module) -> float:
    """The learning rate of weights and biases before its schedule."""
    auto, lr = (config.AUTO_FACTOR, default_lr(model)) if config.lr is None else (1.0, config.lr)
    return lr * (auto if config.lr_factor is None else config.lr_factor)


def make_optimizer(config: OptimizerConfig, model: nn.Module, likelihood: Likelihood) -> Optimizer:
    """The optimiser of a config over the parameters of model and likelihood."""
    lr = base_lr(config, model)
    groups = parameter_groups(
        model,
        lr=lr,
        std_lr=config.std_lr,
        weight_decay=config.weight_decay,
        decay_biases=config.decay_biases,
    )
    extra = list(likelihood.parameters())
    if extra:
        groups.append({"name": "likelihood", "params": extra, "lr": lr, "weight_decay": 0.0})
    if config.optimizer == "adam":
        return torch.optim.Adam(groups)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum)
    raise UnknownName("optimizer", str(config.optimizer), ("adam", "sgd"))


class GradientMethod:
    """A method that minimises an ELBO (or a plain likelihood) by gradients, with or without swaps.

    Args:
        name: Key in the registry.
        model: Converted network.
        likelihood: How outputs and targets meet.
        elbo: The objective.
        config: Optimiser settings.
        total_steps: Optimiser steps of the run, for the learning-rate schedule.
        optimizer: Over the parameters of model and likelihood; that of ``config`` by default.
        passes: Passes over a batch that a step averages, see ``_contexts``.
        swaps: How the support moves, or ``None`` for a fixed one.
        budget: How many weights each layer keeps then; its own number by default.
        skip_step_on_swap: Leave the optimiser step out where a swap is due, as the SSVI authors do.
        group: The processes that train together.
        generator: Of random swaps; seeded from torch's generator if ``None``.
    """

    may_cycle = True
    """Whether a copy of the network at the end of a cycle is all that predicts."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        elbo: ELBO,
        config: DescentConfig,
        total_steps: int,
        *,
        optimizer: Optimizer | None = None,
        passes: int = 1,
        swaps: SwapRule | None = None,
        budget: Budget | None = None,
        skip_step_on_swap: bool = False,
        group: Group = ALONE,
        generator: torch.Generator | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.likelihood = likelihood
        self.elbo = elbo
        self.config = config
        self.total_steps = total_steps
        if optimizer is None:
            assert isinstance(config, OptimizerConfig)
            optimizer = make_optimizer(config, model, likelihood)
        self.optimizer = optimizer
        self.base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.lr_schedule = lr_schedule(config, total_steps)
        self.skip_step_on_swap = skip_step_on_swap
        self.subspace = None
        if swaps is not None:
            self.subspace = Subspace(
                model,
                self.optimizer,
                total_steps=total_steps,
                rule=swaps,
                budget=budget,
                group=group,
                accumulate=config.accumulate * passes,
                generator=generator,
            )
        self.passes = passes
        self.average = None
        if config.average > 0.0:
            rest = 0.0 if swaps is None else swaps.end_fraction
            self.average = TailAverage(
                model, likelihood, config.average, total_steps, rest, self._as_predicted
            )
        self.steps = 0
        self._step = Step(model, likelihood, self.optimizer, elbo, config, group)

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One optimiser step on a batch of inputs and targets, then a swap if one is due."""
        batch, subspace = Batch.of(batch), self.subspace
        remark_on_end(self.steps, self.total_steps, self.name)
        # The schedule counts steps: not the parts of one, nor those of a step that failed.
        self.elbo.calls = self.steps * self.elbo.accumulate
        factor = self.lr_schedule(self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.base_lr, strict=True):
            group["lr"] = lr * factor
        skips = self.skip_step_on_swap and subspace is not None and subspace.is_due
        taken = self._step.take(batch, inside=self._contexts(), moves=not skips)
        swap = None if subspace is None else subspace.step(lambda: self._step.mean_nll(batch))
        self.steps += 1
        self.elbo.calls = self.steps * self.elbo.accumulate
        if self.average is not None:
            self.average.follow(self.steps, batch.x)
        return StepInfo.of(taken, lr=self.base_lr[0] * factor, swap=swap)

    def _contexts(self) -> Sequence[AbstractContextManager[None]]:
        """Where each pass over the batch runs; methods that draw weights draw them here."""
        return ()

    def posterior(self) -> Posterior:
        """See ``Method.posterior``."""
        network = self._as_predicted(self.predicting)
        return Posterior(NoiseDraws(network), self.predicting_likelihood)

    def _as_predicted(self, network: nn.Module) -> nn.Module:
        """The network whose draws predict; where the posterior lives elsewhere it comes in here."""
        return network

    @property
    def predicting(self) -> nn.Module:
        """The network that predicts: the mean over the last steps once it has begun."""
        mean = None if self.average is None else self.average.network
        return self.model if mean is None else mean

    @property
    def predicting_likelihood(self) -> Likelihood:
        """The likelihood that goes with it."""
        mean = None if self.average is None else self.average.likelihood
        return self.likelihood if mean is None else mean

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        state = {
            **common_state(self),
            "elbo": self.elbo.state_dict(),
            "subspace": None if self.subspace is None else self.subspace.state_dict(),
        }
        return state if self.average is None else {**state, "average": self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        require_own_state(self, state)
        parts = (("subspace", self.subspace), ("average", self.average))
        if any((state.get(part) is None) != (own is None) for part, own in parts):
            raise not_own_state(self.name)
        load_common_state(self, state)
        self.elbo.load_state_dict(state["elbo"])
        if self.subspace is not None:
            self.subspace.load_state_dict(state["subspace"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


def lr_schedule(config: DescentConfig, total_steps: int) -> Schedule:
    """From steps to the factor of the learning rate."""
    if config.lr_schedule == "cosine":
        falling = total_steps - round(config.average * total_steps)
        decay: Schedule = CosineDecay(max(1, falling), config.lr_floor)
    elif config.lr_schedule == "constant":
        decay = Constant()
    else:
        raise UnknownName("lr_schedule", str(config.lr_schedule), ("cosine", "constant"))
    rising = round(config.lr_warmup * total_steps)
    return decay if rising == 0 else Warmed(decay, rising)


@dataclass(frozen=True, kw_only=True)
class VariationalConfig(OptimizerConfig):
    """Settings of prior, posterior and KL; the optimiser's are inherited. See docs/defaults.md.

    Attributes:
        prior_std: ``"scaled"``, a number, or ``"empirical"``: per layer, that of its weights.
        posterior_std: Initial σ: ``"scaled"``, a number, or (mean, spread).
        posterior_share: What ``"scaled"`` is of the prior's standard deviation.
        initial_mean_std: Redraw the means from N(0, this²) instead of keeping the network's own
            initialisation.
        kl_weight: β at the end of the warm-up; ``None``: ``KL_WEIGHT``, or the config's
            ``NOISE_KL_WEIGHT`` where the likelihood has a scale of noise.
        kl_warmup: Share of the run over which β rises from 0.
        temperature: Of the posterior.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    std_lr: float | None = 1e-2
    prior_std: PriorStd = "scaled"
    posterior_std: PosteriorStd = "scaled"
    posterior_share: float = POSTERIOR_SHARE
    initial_mean_std: float | None = None
    kl_weight: float | None = None
    kl_warmup: float = 0.5
    temperature: float = 1.0
    backend: str = AUTO

    AUTO_FACTOR: ClassVar[float] = 2.0
    NOISE_KL_WEIGHT: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("initial_mean_std", "kl_weight", "temperature"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if not 0.0 <= self.kl_warmup <= 1.0:
            raise InvalidValue(
                "kl_warmup", self.kl_warmup, "must lie in [0, 1], a share of the run"
            )


KL_WEIGHT = 0.01
"""β for labels and counts. The learnt noise of real targets falls to nothing with it:
docs/defaults.md."""


PAPER: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.01,
    "std_lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "decay_biases": True,
    "prior_std": 0.005,
    "posterior_std": (0.0006, 0.0005),
    "initial_mean_std": 0.01,
    "kl_weight": 0.01,
    "kl_warmup": 0.5,
}
"""Prior, posterior and optimiser of the SSVI authors' CIFAR runs, dense and sparse."""


def bayesian_copy(
    config: VariationalConfig,
    model: nn.Module,
    sparsity: float,
    sparsity_distribution: str = "erk",
    *,
    absent_variance: AbsentVariance = "none",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A Bayesian copy of ``model`` with the prior and initial posterior of ``config``."""
    redraw = config.initial_mean_std is not None
    if redraw:
        model = _redrawn(model, float(config.initial_mean_std or 0.0), generator)
    return to_bayesian(
        model,
        sparsity,
        sparsity_distribution=sparsity_distribution,
        rescale=not redraw,
        prior_std=config.prior_std,
        posterior_std=config.posterior_std,
        posterior_share=config.posterior_share,
        absent_variance=absent_variance,
        backend=config.backend,
        generator=generator,
    )


def warmed_elbo(
    config: VariationalConfig,
    bnn: nn.Module,
    likelihood: Likelihood,
    num_data: int,
    total_steps: int,
) -> ELBO:
    """The objective: β rises linearly from 0 to ``kl_weight`` over ``kl_warmup`` of the run."""
    weight = config.kl_weight
    if weight is None:
        weight = config.NOISE_KL_WEIGHT if likelihood.has_noise else KL_WEIGHT
    schedule = linear_warmup(round(config.kl_warmup * total_steps), end=weight)
    return ELBO(
        bnn,
        num_data,
        schedule,
        temperature=config.temperature,
        accumulate=config.accumulate,
    )


def _redrawn(model: nn.Module, std: float, generator: torch.Generator | None) -> nn.Module:
    """A copy whose convertible weights are drawn from N(0, std²)."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in convertible_weights(model):
            weight.normal_(0.0, std, generator=generator)
    return model
