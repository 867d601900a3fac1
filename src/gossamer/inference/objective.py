"""The objective.

The one place where likelihood, KL, number of data, temperature and batch size meet.

loss = mean negative log-likelihood + kl_weight · temperature · KL / num_data, which is Eq. (1)
divided by num_data.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gossamer.core.schedule import Constant, Schedule
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.parameters import decayed_std_groups
from gossamer.nn import kl_divergence


@dataclass(frozen=True)
class ElboParts:
    """The pieces of the last loss, detached; each a 0-d tensor or number.

    Attributes:
        nll: Mean negative log-likelihood per example.
        kl: Full KL in nats.
        kl_weight: The schedule's factor.
        scaled_kl: What was added: kl_weight · temperature · kl / num_data.
        loss: nll + scaled_kl.
    """

    nll: Tensor
    kl: Tensor
    kl_weight: float
    scaled_kl: Tensor
    loss: Tensor


class ELBO:
    """Turns a negative log-likelihood into the loss to minimise.

    Args:
        model: A converted model; its KL is computed anew at every call.
        num_data: Number of training examples. Required: the one number that cannot be guessed.
        kl_weight: A number, or a schedule that advances once per call in training mode.
        temperature: Scales the KL as a cold posterior does; 1 is the Bayesian one.
        accumulate: Calls per optimiser step, so that the schedule advances once per step.

    Example:
        >>> elbo = ELBO(bnn, num_data=60_000, kl_weight=linear_warmup(1000))  # doctest: +SKIP
        >>> loss = elbo(F.cross_entropy(bnn(x), y))  # doctest: +SKIP
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
        if not num_data >= 1:
            raise InvalidValue(
                "num_data", num_data, "must be the number of training examples, at least 1"
            )
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
        self.parts: ElboParts | None = None
        if raw_std_ids(model):
            _unwatched.add(self)

    @property
    def kl_weight(self) -> float:
        """The factor that the next call uses."""
        return self.schedule(self.calls // self.accumulate)

    def __call__(self, nll: Tensor) -> Tensor:
        """The loss for one mini-batch.

        Args:
            nll: Mean over examples (0-d), or one value per example ``[B]``. For targets with
                several elements the value of an example is the sum over its elements.

        Returns:
            0-d tensor.
        """
        if nll.dim() > 1:
            raise InvalidValue(
                "nll shape",
                tuple(nll.shape),
                "must be [] (mean over examples) or [B]",
                "sum each example first",
            )
        mean_nll = nll.mean()
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
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.calls = int(state["calls"])


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


_unwatched: WeakSet[ELBO] = WeakSet()
"""Objectives whose optimiser has not stepped yet."""


def _look_at_optimizer(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Warn if the first optimiser that steps a model's ``raw_std`` also decays them.

    ELBO does not know the optimiser, and decay alone would move σ a long way, so this looks over
    the shoulder of every first step.
    """
    if not _unwatched:
        return
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for elbo in list(_unwatched):
        raw = raw_std_ids(elbo.model)
        if raw & stepped:
            _unwatched.discard(elbo)
            warn_of_decay(optimizer, raw)


register_optimizer_step_pre_hook(_look_at_optimizer)


def raw_std_ids(model: nn.Module) -> set[int]:
    """Identities of the ``weight_raw_std`` of a model."""
    return {id(p) for name, p in model.named_parameters() if name.endswith("weight_raw_std")}


def warn_of_decay(optimizer: Optimizer, raw: set[int]) -> None:
    """One warning per parameter group that decays a ``raw_std``."""
    for place, decay in decayed_std_groups(optimizer, raw):
        warnings.warn(
            f"optimiser group {place} applies weight_decay = {decay} to weight_raw_std, which "
            "pulls σ towards softplus(0) = 0.69; build the groups with gossamer.parameter_groups",
            stacklevel=4,
        )
