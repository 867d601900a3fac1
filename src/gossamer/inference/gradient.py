"""What methods that follow a gradient share.

Optimiser, learning-rate schedule, one training step, saving.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.core.schedule import Constant, CosineDecay, Schedule
from gossamer.errors import InvalidValue, NonFinite, UnknownName
from gossamer.inference.method import StepInfo
from gossamer.inference.objective import ELBO, require_finite
from gossamer.inference.parameters import parameter_groups
from gossamer.inference.subspace import Subspace
from gossamer.likelihoods import Likelihood
from gossamer.nn import Noise, restore_engines, sampling, sparse_layers, weight_groups


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimiser, shared by all gradient methods.

    Attributes:
        optimizer: ``adam`` or ``sgd``.
        lr: Learning rate of weights and biases; ``None`` takes ``default_lr``.
        std_lr: Learning rate of the softplus pre-image of σ; ``lr`` if ``None``.
        lr_schedule: ``cosine`` to 0 over the run, or ``constant``.
        momentum: For ``sgd``.
        weight_decay: On means and deterministic weights, never on σ.
        decay_biases: Decay biases and normalisation too.
        clip_norm: Largest norm of the whole gradient; ``None`` for no limit.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float | None = None
    std_lr: float | None = None
    lr_schedule: Literal["cosine", "constant"] = "cosine"
    momentum: float = 0.9
    weight_decay: float = 3e-4
    decay_biases: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "std_lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise InvalidValue("clip_norm", self.clip_norm, "must be positive or none")


DENSE_LR = 2e-3
"""Adam's learning rate for a dense network."""


def default_lr(model: nn.Module) -> float:
    """``DENSE_LR`` / √density: sparse weights are larger by 1/√density, and so are their steps."""
    supports = [group.first.support for group in weight_groups(model)]
    density = sum(s.nnz for s in supports) / max(sum(s.numel for s in supports), 1)
    return DENSE_LR / sqrt(density) if supports else DENSE_LR


def make_optimizer(config: OptimizerConfig, model: nn.Module, likelihood: Likelihood) -> Optimizer:
    """The optimiser of a config over the parameters of model and likelihood."""
    lr = default_lr(model) if config.lr is None else config.lr
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
        subspace: Settings of ``Subspace``, or ``None`` for a fixed support.
        skip_step_on_swap: Leave the optimiser step out where a swap is due, as the SSVI authors do.
        max_samples: 1 for a deterministic network, ``None`` for a posterior.
    """

    samples_by_noise = True

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        elbo: ELBO,
        config: OptimizerConfig,
        total_steps: int,
        *,
        subspace: dict[str, Any] | None = None,
        skip_step_on_swap: bool = False,
        max_samples: int | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.likelihood = likelihood
        self.elbo = elbo
        self.config = config
        self.max_samples = max_samples
        self.optimizer = make_optimizer(config, model, likelihood)
        self.base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.lr_schedule = _lr_schedule(config, total_steps)
        self.skip_step_on_swap = skip_step_on_swap
        self.subspace = None
        if subspace is not None:
            self.subspace = Subspace(model, self.optimizer, total_steps=total_steps, **subspace)
        self.steps = 0

    def step(self, batch: tuple[Tensor, Tensor]) -> StepInfo:
        """One optimiser step on a batch of inputs and targets, then a swap if one is due."""
        x, target = batch
        self.model.train()
        factor = self.lr_schedule(self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.base_lr, strict=True):
            group["lr"] = lr * factor
        output = self.model(x)
        loss = self.elbo(-self.likelihood.log_lik(output, target))
        require_finite(loss.detach(), self.model)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clip()
        subspace = self.subspace
        if not (self.skip_step_on_swap and subspace is not None and subspace.is_due):
            self.optimizer.step()
        swap = None if subspace is None else subspace.step(lambda: self._mean_nll(x, target))
        self.steps += 1
        parts = self.elbo.parts
        assert parts is not None
        return StepInfo(
            loss=float(parts.loss),
            nll=float(parts.nll),
            kl=float(parts.kl),
            kl_weight=parts.kl_weight,
            lr=self.base_lr[0] * factor,
            accuracy=self.likelihood.accuracy(output.detach(), target),
            swap=swap,
        )

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The network as posterior sample ``index``: the draw that ``seed`` fixes."""
        with sampling(self.model, seed=seed, noise=noise):
            yield self.model

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        return {
            "model": dict(self.model.state_dict()),
            "likelihood": dict(self.likelihood.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "elbo": self.elbo.state_dict(),
            "subspace": None if self.subspace is None else self.subspace.state_dict(),
            "steps": self.steps,
            "engines": {name: layer.engine for name, layer in sparse_layers(self.model).items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if (state["subspace"] is None) != (self.subspace is None):
            raise InvalidValue(
                "state", None, f"was not saved by a {self.name} run with these settings"
            )
        self.model.load_state_dict(state["model"])
        self.likelihood.load_state_dict(state["likelihood"])
        restore_engines(self.model, state["engines"])
        # A copy: torch keeps the given tensors, and two methods would then share their moments.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.elbo.load_state_dict(state["elbo"])
        if self.subspace is not None:
            self.subspace.load_state_dict(state["subspace"])
        self.steps = int(state["steps"])

    def _mean_nll(self, x: Tensor, target: Tensor) -> Tensor:
        return -self.likelihood.log_lik(self.model(x), target).mean()

    def _clip(self) -> None:
        if self.config.clip_norm is None:
            return
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.clip_norm)
        if not bool(torch.isfinite(norm)):
            raise NonFinite(
                "gradient norm", float(norm), "must be finite", "lower the learning rate"
            )


def _lr_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    if config.lr_schedule == "cosine":
        return CosineDecay(total_steps)
    if config.lr_schedule == "constant":
        return Constant()
    raise UnknownName("lr_schedule", str(config.lr_schedule), ("cosine", "constant"))
