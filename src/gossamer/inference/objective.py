"""The objective: where likelihood, KL, number of data, temperature and batch size meet.

loss = mean negative log-likelihood + kl_weight · temperature · KL / num_data, which is Eq. (1)
divided by num_data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gossamer.core.schedule import Constant, Schedule
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.parameters import decayed_std_groups
from gossamer.nn import kl_divergence, scale_parameters


@dataclass(frozen=True)
class ElboParts:
    """The pieces of the last loss, detached; each a 0-d tensor or number.

    Attributes:
        nll: Mean negative log-likelihood per example.
        kl: Full KL in nats; 0 where there is no posterior.
        kl_weight: The schedule's factor.
        scaled_kl: What was added: kl_weight · temperature · kl / num_data.
        loss: nll + scaled_kl.
    """

    nll: Tensor
    kl: Tensor
    kl_weight: float
    scaled_kl: Tensor
    loss: Tensor


class CountsSteps(Protocol):
    """Whatever knows how many optimiser steps were taken."""

    steps: int


class Objective(Protocol):
    """From one negative log-likelihood per example to the loss of a step."""

    @property
    def parts(self) -> ElboParts | None:
        """The pieces of the last loss."""
        ...

    def __call__(self, nll: Tensor) -> Tensor:
        """The loss, 0-d, for values ``[B]``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next losses depend on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        ...


class ELBO:
    """Turns a negative log-likelihood into the loss to minimise.

    Args:
        model: A converted model; its KL is computed anew at every call.
        num_data: Number of training examples. Required: the one number that cannot be guessed.
        kl_weight: A number, or a schedule that advances once per call in training mode.
        temperature: Scales the KL as a cold posterior does; 1 is the Bayesian one.
        accumulate: Calls per optimiser step, so that the schedule advances once per step.

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Linear(4, 3))
        >>> elbo = ELBO(bnn, num_data=60_000, kl_weight=gossamer.linear_warmup(1000, end=0.01))
        >>> loss = elbo(nn.functional.cross_entropy(bnn(torch.randn(8, 4)), torch.zeros(8).long()))
        >>> loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        num_data: int,
        kl_weight: float | Schedule = 1.0,
        *,
        temperature: float = 1.0,
        accumulate: int = 1,
    ) -> None:
        _check_num_data(num_data)
        if not temperature >= 0.0:
            raise InvalidValue("temperature", temperature, "must not be negative")
        if not callable(kl_weight) and not kl_weight >= 0.0:
            raise InvalidValue("kl_weight", kl_weight, "must not be negative")
        if accumulate < 1:
            raise InvalidValue("accumulate", accumulate, "must be at least 1")
        self.model = model
        self.num_data = num_data
        self.temperature = temperature
        self.accumulate = accumulate
        self.schedule: Schedule = kl_weight if callable(kl_weight) else Constant(float(kl_weight))
        self.calls = 0
        self._counter: CountsSteps | None = None
        self.parts: ElboParts | None = None
        if scale_parameters(model):
            _decay_watch.expect(self)

    @property
    def kl_weight(self) -> float:
        """The factor that the next call uses."""
        return self.schedule(self._step)

    @property
    def _step(self) -> int:
        return self.calls // self.accumulate if self._counter is None else self._counter.steps

    def count_by(self, counter: CountsSteps) -> None:
        """Advance the schedule with the steps of ``counter``, a ``Subspace``, not with calls.

        For loops that decide themselves how many calls make a step.
        """
        self._counter = counter

    def __call__(self, nll: Tensor) -> Tensor:
        """The loss for one mini-batch.

        Args:
            nll: Mean over examples (0-d), or one value per example ``[B]``. For targets with
                several elements the value of an example is the sum over its elements.

        Returns:
            0-d tensor.
        """
        _decay_watch.rest()
        mean_nll = _mean_nll(nll)
        weight = self.kl_weight
        kl = kl_divergence(self.model).to(mean_nll.device)
        scaled = kl * (weight * self.temperature / self.num_data)
        loss = mean_nll + scaled
        self.parts = ElboParts(
            mean_nll.detach(), kl.detach(), weight, scaled.detach(), loss.detach()
        )
        if self.model.training:
            self.calls += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The position of the schedule."""
        return {"calls": self.calls if self._counter is None else self._step * self.accumulate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.calls = int(state["calls"])


class Energy:
    """The loss of a chain: the mean negative log-likelihood, and a prior where one is given.

    A Gaussian prior is the sampler's own (``weight_decay``, which costs no pass over the weights).
    Any other goes in here: loss = mean nll - log p(θ) / num_data.

    Args:
        model: The network.
        num_data: Number of training examples.
        log_prior: From the network to log p(θ), 0-d and differentiable; ``None`` adds nothing.

    Example:
        >>> from gossamer.core.priors import Laplace
        >>> from gossamer.nn import weights_of
        >>> laplace = Laplace(scale=0.1)
        >>> def log_prior(model):
        ...     return sum(laplace.log_density(weight.values).sum() for weight in weights_of(model))
        >>> energy = Energy(gossamer.to_sparse(nn.Linear(3, 1)), 100, log_prior)
        >>> bool(energy(torch.zeros(4)) > 0)
        True
    """

    def __init__(
        self,
        model: nn.Module,
        num_data: int,
        log_prior: Callable[[nn.Module], Tensor] | None = None,
    ) -> None:
        _check_num_data(num_data)
        self.model = model
        self.num_data = num_data
        self.log_prior = log_prior
        self.parts: ElboParts | None = None

    def __call__(self, nll: Tensor) -> Tensor:
        """The loss for one mini-batch, 0-d; ``nll`` as in ``ELBO``."""
        mean_nll = _mean_nll(nll)
        none = mean_nll.new_zeros(())
        loss = mean_nll
        if self.log_prior is not None:
            loss = mean_nll - self.log_prior(self.model) / self.num_data
        self.parts = ElboParts(mean_nll.detach(), none, 0.0, none, loss.detach())
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the loss is the same at every step."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""


def _mean_nll(nll: Tensor) -> Tensor:
    if nll.dim() > 1:
        raise InvalidValue(
            "nll shape",
            tuple(nll.shape),
            "must be [] (mean over examples) or [B]",
            "sum each example first",
        )
    return nll.mean()


def _check_num_data(num_data: int) -> None:
    if not num_data >= 1:
        raise InvalidValue(
            "num_data", num_data, "must be the number of training examples, at least 1"
        )


@dataclass(frozen=True)
class KLScale:
    """Verdict of ``check_kl_scale``.

    Attributes:
        factor: d loss / d kl times num_data: 1 is right, 0.001 means that the KL counts a thousand
            times too little.
        message: The same in words.
    """

    factor: float
    message: str


def check_kl_scale(loss: Tensor, kl: Tensor, num_data: int) -> KLScale:
    """Reads d loss / d kl by autograd and says by which factor someone's KL is off.

    Args:
        loss: 0-d loss built from ``kl``; its graph is kept.
        kl: 0-d full KL in nats, e.g. ``gossamer.kl_divergence(model)``, used to build ``loss``.
        num_data: Number of training examples.
    """
    if not loss.requires_grad or not kl.requires_grad:
        raise InvalidValue("loss", None, "must depend on kl through autograd", "do not detach them")
    (slope,) = torch.autograd.grad(loss, kl, retain_graph=True, allow_unused=True)
    factor = 0.0 if slope is None else float(slope) * num_data
    if factor == 0.0:
        return KLScale(0.0, "the loss does not depend on this KL at all: the prior has no effect")
    if factor < 0.0:
        return KLScale(factor, "your KL has the wrong sign: it must be added to the loss")
    if abs(factor - 1.0) < 1e-3:
        return KLScale(factor, "the KL is scaled right: mean NLL + KL / num_data")
    times, word = (1.0 / factor, "weak") if abs(factor) < 1.0 else (factor, "strong")
    return KLScale(
        factor,
        f"your KL is {times:,.3g}x too {word}: d loss / d kl is {factor / num_data:.3g}, "
        f"a mean NLL needs 1 / num_data = {1.0 / num_data:.3g}",
    )


def require_finite(loss: Tensor, model: nn.Module) -> None:
    """Raise where the loss is NaN or infinite, naming the first layer whose parameters are."""
    if bool(torch.isfinite(loss)):
        return
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise NonFinite(
                name, None, "became NaN or infinite", "lower the learning rate or clip gradients"
            )
    raise NonFinite(
        "loss",
        float(loss),
        "must be finite",
        "check inputs and targets, or lower the learning rate",
    )


class _DecayWatch:
    """Warns if the first optimiser that steps a model's standard deviations also decays them.

    ELBO does not know the optimiser, and decay alone would move σ a long way, so this looks over
    the shoulder of every first step. It hooks into torch's optimisers while an objective waits for
    its first step, and only then.
    """

    def __init__(self) -> None:
        self._waiting: WeakSet[ELBO] = WeakSet()
        self._hook: RemovableHandle | None = None

    def expect(self, elbo: ELBO) -> None:
        """Look at the next optimiser that steps the model of ``elbo``."""
        self._waiting.add(elbo)
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._look)

    def _look(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for elbo in list(self._waiting):
            scales = scale_parameters(elbo.model)
            if scales & stepped:
                self._waiting.discard(elbo)
                warn_of_decay(optimizer, scales)

    def rest(self) -> None:
        """Unhook if nobody waits. Not from within a step: torch walks over the hooks then."""
        if self._hook is not None and not self._waiting:
            self._hook.remove()
            self._hook = None


_decay_watch = _DecayWatch()


def warn_of_decay(optimizer: Optimizer, scales: set[int]) -> None:
    """One warning per parameter group that decays a standard deviation."""
    for place, decay in decayed_std_groups(optimizer, scales):
        warnings.warn(
            f"optimiser group {place} applies weight_decay = {decay} to weight_raw_std, which "
            "pulls σ towards softplus(0) = 0.69; build the groups with gossamer.parameter_groups",
            stacklevel=4,
        )
