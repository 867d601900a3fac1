"""What methods share whose optimiser draws noise: the prior, a step size in cycles, the step.

CV-Adam (a Gaussian around a trained mean) and the chains build on it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.core.schedule import Cyclical
from gossamer.errors import InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.group import ALONE, Group
from gossamer.inference.method import StepInfo
from gossamer.inference.objective import Energy, Objective
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.remarks import remark_on_end
from gossamer.inference.state import common_state, load_common_state, require_own_state
from gossamer.inference.step import Step, StepConfig
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse, weights_of
from gossamer.nn.prior import resolve_prior_std
from gossamer.ops import AUTO
from gossamer.optim import Langevin


@dataclass(frozen=True, kw_only=True)
class SamplerConfig(StepConfig):
    """Settings of network, prior and step size.

    Attributes:
        lr: Step at the start of a cycle: Δt², or the plain step of ``csgld`` and ``cv_adam``.
            ``None`` depends on the likelihood: the step for real targets is smaller than that for
            labels, because the curvature of a Gaussian likelihood is one over the noise's square.
        temperature: 1 for the posterior.
        weight_decay: δ/N, the prior's precision over the number of data; ``None`` is that of the
            prior of variational inference, which follows the width of a layer.
        decay_biases: Whether biases and normalisation have that prior too.
        cycles: Half cosines of the step size.
        sparsity: Share of weights removed before training; 0 is dense.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    label_lr: ClassVar[float] = 0.1
    real_lr: ClassVar[float] = 0.01

    lr: float | None = None
    temperature: float = 1.0
    weight_decay: float | None = None
    decay_biases: bool = False
    cycles: int = 4
    sparsity: float = 0.0
    sparsity_distribution: str = "erk"
    backend: str = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "temperature", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if self.cycles < 1:
            raise InvalidValue("cycles", self.cycles, "must be at least 1")

    def step_for(self, likelihood: Likelihood) -> float:
        """The step at the start of a cycle."""
        if self.lr is not None:
            return self.lr
        return self.label_lr if likelihood.has_labels else self.real_lr


def sparse_copy(
    config: SamplerConfig, model: nn.Module, generator: torch.Generator | None = None
) -> nn.Module:
    """A copy of ``model`` with deterministic layers on a support that ``generator`` draws."""
    return to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )


def sampler_groups(
    config: SamplerConfig, model: nn.Module, likelihood: Likelihood, num_data: int
) -> list[dict[str, Any]]:
    """Parameter groups of a sampler; the likelihood's are trained without noise.

    Biases have the weights' decay, a standard normal prior where that is ``None``, or none.
    """
    given = config.weight_decay
    groups = parameter_groups(
        model,
        lr=config.step_for(likelihood),
        weight_decay=1.0 / num_data if given is None else given,
        decay_biases=config.decay_biases,
    )
    if given is None:
        groups = with_scaled_prior(groups, model, num_data)
    extra = list(likelihood.parameters())
    if extra:
        groups.append({"name": "likelihood", "params": extra, "weight_decay": 0.0, "noisy": False})
    return groups


def with_scaled_prior(
    groups: list[dict[str, Any]], model: nn.Module, num_data: int
) -> list[dict[str, Any]]:
    """Parameter groups in which every layer's weights have the prior of variational inference.

    That is N(0, 1/(kept inputs per output)), docs/defaults.md, so that δ/N is the kept inputs per
    output over the number of data. Weights of other modules have a standard normal prior.

    Args:
        groups: As ``parameter_groups`` makes them.
        model: Sparse layers.
        num_data: N.

    Raises:
        InvalidValue: A layer's prior is too narrow for the step size.
    """
    decays = {}
    for weight in weights_of(model):
        layout = weight.layer.layout
        std = resolve_prior_std("scaled", layout, weight.layer.nnz / layout.numel)
        decays[id(weight.values)] = 1.0 / (num_data * std**2)
    found = []
    for group in groups:
        if group["name"] != "weights":
            found.append(group)
            continue
        for parameter in group["params"]:
            decay = decays.get(id(parameter), 1.0 / num_data)
            if decay * group["lr"] > 1.0:
                raise InvalidValue(
                    "lr",
                    group["lr"],
                    f"is too large a step for a prior of δ/N = {decay:.3g}, the scaled one of a "
                    f"layer of {parameter.numel()} weights for {num_data} examples",
                    f"set lr below {1.0 / decay:.2g}, or weight_decay",
                )
            found.append({**group, "params": [parameter], "weight_decay": decay})
    return found


class SamplerMethod:
    """A method whose optimiser is a sampler, with a step size in cycles.

    Args:
        name: Key in the registry.
        model: Converted network.
        likelihood: How outputs and targets meet.
        optimizer: The sampler, over the parameters of both.
        config: Settings.
        total_steps: Steps of the run.
        energy: The loss; the mean negative log-likelihood if ``None``, the sampler adds the prior.
        group: The processes that train together.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        optimizer: Langevin,
        config: SamplerConfig,
        total_steps: int,
        *,
        energy: Objective | None = None,
        group: Group = ALONE,
    ) -> None:
        if config.cycles > total_steps:
            raise InvalidValue(
                "cycles", config.cycles, f"must not exceed the {total_steps} steps of the run"
            )
        self.name = name
        self.model = model
        self.likelihood = likelihood
        self.optimizer = optimizer
        self.config = config
        self.schedule = Cyclical(total_steps, config.cycles)
        self.base_lr = [float(group["lr"]) for group in optimizer.param_groups]
        self.steps = 0
        energy = energy or Energy(model, num_data=1)
        self._step = Step(model, likelihood, optimizer, energy, config, group)

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One step of the sampler on a batch of inputs and targets."""
        batch = Batch.of(batch)
        remark_on_end(self.steps, self.schedule.steps, self.name)
        factor = self._schedule()
        effective = self._effective()
        taken = self._step.take(batch, inside=() if effective is None else (effective,))
        self.steps += 1
        note = self._watched(batch, taken.nll)
        self._after_step(batch.x.shape[0])
        return StepInfo.of(taken, lr=self.base_lr[0] * factor, note=note)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        return common_state(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        require_own_state(self, state)
        load_common_state(self, state)

    def _effective(self) -> AbstractContextManager[None] | None:
        """Where forward and backward run; pruned methods mask weights inside."""
        return None

    def _watched(self, batch: Batch, nll: float) -> str | None:
        """What should be said of the step that was just taken."""
        return None

    def _after_step(self, rows: int) -> None:
        """What a method does between steps."""

    def _schedule(self) -> float:
        """Set the step size of this step; its factor."""
        factor = self.schedule(self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.base_lr, strict=True):
            group["lr"] = lr * factor
        return factor
