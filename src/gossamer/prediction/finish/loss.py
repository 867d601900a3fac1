"""Losses of held-out rows as functions of a temperature and of the scale of a last layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.likelihoods import Bernoulli, Likelihood
from gossamer.prediction.finish.finish import Finish, widened
from gossamer.prediction.finish.heads import POINTS, ClassHead
from gossamer.prediction.prediction import RealPrediction

_MOST_VALUES = 1 << 24
"""Logits at all points that exist at a time, unless one row has more."""


@dataclass(frozen=True, eq=False)
class LabelLoss:
    """Of classes: −log of the probability of the label, averaged over all samples of all members.

    Attributes:
        likelihood: Categorical or Bernoulli.
        members: Of each its finishing step and what its networks gave for it, ``[S, n, ...]``.
        target: Labels ``[n, ...]``.
        dtype: In which it is computed.
        cold_std: See ``Loss``: networks of all kinds ask for 0.7 or more.
    """

    likelihood: Likelihood
    members: Sequence[tuple[Finish, Tensor]]
    target: Tensor
    dtype: torch.dtype = torch.float64
    cold_std: float = 0.25

    @property
    def count(self) -> int:
        """Labels."""
        return self.target.numel()

    def check(self) -> None:
        """Raise where labels do not fit the outputs."""
        finish, outputs = self.members[0]
        columns = outputs.shape[2] // 2 if isinstance(finish.head, ClassHead) else None
        one = outputs[0] if columns is None else outputs[0, :, :columns]
        self.likelihood.log_lik(one, self.target)

    def at(self, scale: float) -> LabelLoss:
        """The same with another scale of all last layers."""
        members = []
        for finish, outputs in self.members:
            assert isinstance(finish.head, ClassHead)
            head = replace(finish.head, scale=scale)
            if POINTS * outputs.numel() <= _MOST_VALUES:  # kept for all temperatures
                logits = head.spread(outputs.to(self.dtype))
                # Row by row in memory within a class: softmax over few classes is then fast.
                logits = logits.transpose(1, 2).contiguous().transpose(1, 2)
                members.append((Finish(finish.temperature), logits))
            else:
                members.append((replace(finish, head=head), outputs))
        return replace(self, members=members)

    def rows(self, temperature: float) -> Tensor:
        """See ``Loss.rows``; the mean over positions where a row has several."""
        _, outputs = self.members[0]
        # At most: with a head every output comes at some points.
        per_row = max(POINTS, 8 * outputs.shape[0]) * max(1, outputs[0, :1].numel())
        at_once = max(1, _MOST_VALUES // per_row)
        count = len(self.target)
        return torch.cat(
            [
                self._part(slice(first, first + at_once), temperature)
                for first in range(0, count, at_once)
            ]
        )

    def _part(self, rows: slice, temperature: float) -> Tensor:
        found = [
            self._log_prob(finish, outputs[:, rows], self.target[rows], temperature)
            for finish, outputs in self.members
        ]
        average = torch.stack(found).logsumexp(0) - math.log(len(found))
        return -(average.flatten(1).mean(1) if average.dim() > 1 else average)

    def _log_prob(
        self, finish: Finish, outputs: Tensor, target: Tensor, temperature: float
    ) -> Tensor:
        logits = outputs.to(self.dtype)
        if isinstance(finish.head, ClassHead):
            logits = finish.head.spread(logits)
        logits = logits / (temperature * finish.temperature)
        if isinstance(self.likelihood, Bernoulli):
            logit = logits.reshape(*logits.shape[:2], 1)
            logits = torch.cat([torch.zeros_like(logit), logit], 2)
            target = target.reshape(-1)
        index = target.long().unsqueeze(1).expand(len(logits), *target.unsqueeze(1).shape)
        chosen = logits.transpose(1, 2).log_softmax(1).gather(1, index.transpose(1, 2)).squeeze(1)
        return chosen.logsumexp(0) - math.log(len(logits))


@dataclass(frozen=True, eq=False)
class RealLoss:
    """Of real targets: −log density of the mixture of all samples, widened by the temperature.

    Attributes:
        prediction: Of the held-out rows, at temperature 1.
        target: ``[n]`` or ``[n, D]``.
        cold_std: See ``Loss``; the likelihood of real targets has its maximum.
    """

    prediction: RealPrediction
    target: Tensor
    cold_std: float = 1.0

    @property
    def count(self) -> int:
        """Numbers."""
        return self.target.numel()

    def rows(self, temperature: float) -> Tensor:
        """See ``Loss.rows``."""
        found = widened(self.prediction, temperature)
        return -found.log_prob(self.target.reshape(found.mean.shape))
