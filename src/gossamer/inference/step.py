"""One training step, written once for all methods.

zero_grad → forward → loss → backward → reduce → clip → optimiser. A swap, where a method has one,
follows in the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.batch import Batch
from gossamer.inference.group import ALONE, Group
from gossamer.inference.objective import ElboParts, Objective, require_finite
from gossamer.inference.remarks import remark_on_scale, require_kind
from gossamer.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """Settings of a step that all methods share.

    Attributes:
        clip_norm: Largest norm of the whole gradient; ``None`` for no limit. A sampler with clipped
            gradients no longer samples its posterior.
        accumulate: Parts of a batch that are differentiated one after the other, for batches that
            do not fit into memory; gradient and swaps are those of the whole batch. BatchNorm
            sees each part by itself, and ``grad_mean`` and ``grad_multi`` the whole batch at once.
        autocast: Run products in bfloat16; variances, noise and KL stay in float32. Native kernels
            know no bfloat16: layers are then computed by the masked backend.
    """

    clip_norm: float | None = None
    accumulate: int = 1
    autocast: bool = False

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise InvalidValue("clip_norm", self.clip_norm, "must be positive or none")
        if self.accumulate < 1:
            raise InvalidValue("accumulate", self.accumulate, "must be at least 1")


@dataclass(frozen=True)
class Taken:
    """What a step computed, as plain numbers: see ``StepInfo``."""

    loss: float
    nll: float
    kl: float
    kl_weight: float
    accuracy: float | None


class Step:
    """Takes steps.

    Args:
        model: The network.
        likelihood: How outputs and targets meet.
        optimizer: Over the parameters of both.
        objective: From one negative log-likelihood per example to the loss.
        config: Settings.
        group: The processes that train together.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        optimizer: Optimizer,
        objective: Objective,
        config: StepConfig,
        group: Group = ALONE,
    ) -> None:
        self.model, self.likelihood, self.optimizer = model, likelihood, optimizer
        self.objective, self.config, self.group = objective, config, group
        self._seen: object = None

    def take(
        self,
        batch: Batch,
        *,
        inside: Sequence[AbstractContextManager[None]] = (),
        moves: bool = True,
    ) -> Taken:
        """One step on a batch.

        Args:
            batch: Inputs, targets and their weights.
            inside: A context for every pass over the batch, forward and backward: one where pruned
                methods mask weights, several where gradients of several draws are averaged.
            moves: Whether the optimiser steps; the gradients are left for a swap otherwise.

        Raises:
            NonFinite: Loss or gradient norm; no parameter has changed then.
        """
        self._look_at(batch)
        self.model.train()
        contexts = inside or (nullcontext(),)
        parts = batch.parts(self.config.accumulate)
        shares = [1.0] if len(parts) == 1 else [len(p.x) / len(batch.x) for p in parts]
        if len(contexts) > 1:
            shares = [share / len(contexts) for share in shares]
        passes: list[_Pass] = []
        for context in contexts:
            with context:
                for part, share in zip(parts, shares, strict=True):
                    passes.append(self._differentiate(part, share, is_first=not passes))
        if self.group.size > 1:
            self.group.mean_([p.grad for p in self._parameters() if p.grad is not None])
        self._clip()
        if moves:
            self.optimizer.step()
        return self._taken(shares * len(contexts), passes)

    def _look_at(self, batch: Batch) -> None:
        """Refuse what the network cannot read, and remark on targets, at the first of its kind."""
        if getattr(batch.x, "dtype", None) is self._seen:
            return
        require_kind(batch, self.model)
        if self._seen is None:
            remark_on_scale(self.likelihood, batch.y)
        self._seen = batch.x.dtype

    def mean_nll(self, batch: Batch) -> Tensor:
        """The mean weighted negative log-likelihood of a batch, differentiable: 0-d."""
        return self._nll(batch)[0].mean()

    def _nll(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One value per example ``[B]``, and the network's output."""
        if self.config.autocast:
            with torch.autocast(batch.x.device.type, torch.bfloat16):
                output = self.model(batch.x)
        else:
            output = self.model(batch.x)
        nll = -self.likelihood.log_lik(output, batch.y)
        return (nll if batch.weight is None else nll * batch.weight), output

    def _differentiate(self, batch: Batch, share: float, *, is_first: bool) -> _Pass:
        nll, output = self._nll(batch)
        loss = self.objective(nll)
        require_finite(loss.detach(), self.model)
        if is_first:
            self.optimizer.zero_grad(set_to_none=True)
        (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
        assert self.objective.parts is not None
        return _Pass(self.objective.parts, self.likelihood.accuracy(output.detach(), batch.y))

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _clip(self) -> None:
        if self.config.clip_norm is None:
            return
        norm = nn.utils.clip_grad_norm_(self._parameters(), self.config.clip_norm)
        if not bool(torch.isfinite(norm)):
            raise NonFinite(
                "gradient norm", float(norm), "must be finite", "lower the learning rate"
            )

    def _taken(self, shares: list[float], passes: list[_Pass]) -> Taken:
        """The whole batch's numbers: means over its passes, each by its share."""
        known = [each.accuracy for each in passes if each.accuracy is not None]
        last = passes[-1].parts
        return Taken(
            loss=_mean(shares, [float(each.parts.loss) for each in passes]),
            nll=_mean(shares, [float(each.parts.nll) for each in passes]),
            kl=float(last.kl),
            kl_weight=last.kl_weight,
            accuracy=_mean(shares, known) if known else None,
        )


class _Pass(NamedTuple):
    parts: ElboParts
    accuracy: float | None


def _mean(shares: list[float], values: list[float]) -> float:
    if len(values) == 1:
        return values[0]
    return sum(share * value for share, value in zip(shares, values, strict=True))
