"""Members that train as one network: a step of all of them costs little more than one of a few.

Most of a step of a small network is spent on calls, not on numbers. Where M perceptrons lie side by
side in one network (``joining``), a step makes the calls of one. What members learn is what they
would learn apart, to rounding, with two exceptions: they share one learnt noise, and a swap ranks
the weights of a layer over all members, so that these may end with somewhat different numbers of
weights. The total is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.gradient import GradientMethod
from gossamer.inference.joining import joined_state, parted, require_parts
from gossamer.inference.method import Method, StepInfo
from gossamer.inference.state import not_own_state, require_own_state
from gossamer.likelihoods import Likelihood
from gossamer.nn import adopt, sparse_layers
from gossamer.nn.watch import identity
from gossamer.prediction import NoiseDraws, Posterior, mixture


class Together(Likelihood):
    """The likelihood of M outputs side by side, ``[B, M · D]``: that of each, weighted and summed.

    Args:
        own: Of one output.
        members: M.

    Attributes:
        factors: How much each member's answer to each example counts, ``[B, M]``; ``None``: 1.
    """

    def __init__(self, own: Likelihood, members: int) -> None:
        super().__init__()
        self.own = own
        self.members = members
        self.factors: Tensor | None = None
        self.name = own.name
        self.has_labels, self.has_noise = own.has_labels, own.has_noise
        self.has_counts = own.has_counts

    def log_lik(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over members, ``[B]``."""
        found = self.own.log_lik(*self._one_by_one(output, target)).view(-1, self.members)
        return (found if self.factors is None else found * self.factors).sum(1)

    def accuracy(self, output: Tensor, target: Tensor) -> float | None:
        """Mean over members."""
        return self.own.accuracy(*self._one_by_one(output, target))

    def _one_by_one(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        rows = output.reshape(len(output) * self.members, -1)
        return rows, target.repeat_interleave(self.members, 0)


class Abreast:
    """M members in one network, behind the protocol of a method.

    Args:
        method: Of the joined network, before its first step; its likelihood is a ``Together``.
        members: The same members apart, before their first steps: it begins with their weights and
            supports, and takes their learning rates.
        plain: The torch architecture of a member.
        weights: Weights of the dense network that sparsity is told against.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> plan = {"num_data": 60, "total_steps": 20, "members": 3, "harvest": "abreast"}
        >>> method = gossamer.build("rigl", net, **plan, member_sparsity=0.5)
        >>> info = method.step((torch.randn(8, 4), torch.zeros(8, dtype=torch.int64)))
        >>> len(method.posterior().members), method.posterior().size["nnz"]
        (3, 168)
    """

    def __init__(
        self,
        method: Method,
        members: Sequence[Method],
        plain: nn.Module,
        weights: int | None = None,
    ) -> None:
        first = members[0]
        follows = type(method) is GradientMethod and isinstance(first, GradientMethod)
        if not follows or not isinstance(method.likelihood, Together):
            rule = "follows no plain gradient, as members abreast must"
            raise InvalidValue("harvest", "abreast", f"{method.name} {rule}", "use harvest='runs'")
        assert isinstance(method, GradientMethod)
        assert isinstance(first, GradientMethod)
        if method.config.clip_norm is not None:
            rule = "would clip the gradient of all members as one"
            raise InvalidValue("clip_norm", method.config.clip_norm, rule, "use harvest='runs'")
        require_parts(method.model)
        adopt(method.model, joined_state([member.model for member in members]))
        method.base_lr = list(first.base_lr)
        if method.subspace is not None:  # it may have armed layers of other sizes
            method.subspace.load_state_dict(method.subspace.state_dict())
        self.method = method
        self.weights = weights
        self._plain = plain
        self._together = method.likelihood
        self._seen: tuple[object, list[nn.Module]] | None = None

    @property
    def name(self) -> str:
        """See ``Method.name``."""
        return self.method.name

    @property
    def model(self) -> nn.Module:
        """The joined network."""
        return self.method.model

    @property
    def likelihood(self) -> Likelihood:
        """That of one member, which all share."""
        return self._together.own

    @property
    def steps(self) -> int:
        """Steps taken, by all of them."""
        return self.method.steps

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One step of every member, on what it may see; the numbers are means over them."""
        batch = Batch.of(batch, for_members=True)
        members = self._together.members
        self._together.factors = seen_shares(batch, members)
        try:
            info = self.method.step(Batch(batch.x, batch.y, batch.weight))
        finally:
            self._together.factors = None
        means = {name: getattr(info, name) / members for name in ("loss", "nll", "kl")}
        return replace(info, **means)

    def posterior(self) -> Posterior:
        """The even mixture of the members."""
        found = self.method.posterior()
        likelihood = found.likelihood
        assert isinstance(likelihood, Together)
        parts = self._parts(found.draws.network)
        return mixture(
            [Posterior(NoiseDraws(part), likelihood.own) for part in parts], weights=self.weights
        )

    def _parts(self, whole: nn.Module) -> list[nn.Module]:
        """The members' networks: slices of the joined one, cut anew where a support has changed."""
        layers = sparse_layers(whole).values()
        marks = [
            (layer.leading().data_ptr(), None if layer.indices is None else identity(layer.indices))
            for layer in layers
        ]
        mark = (id(whole), marks)
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, parted(whole, self._plain, self._together.members))
        return self._seen[1]

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        return {
            "method": self.name,
            "abreast": self._together.members,
            "training": self.method.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("method") != self.name or state.get("abreast") != self._together.members:
            raise not_own_state(self.name, state.get("method"))
        require_own_state(self.method, state["training"])
        self.method.load_state_dict(state["training"])


def seen_shares(batch: Batch, members: int) -> Tensor | None:
    """How much each member's answer to each example counts, ``[B, M]``; ``None``: all alike.

    The mean over the batch of these times a value is, for each member, the mean over the examples
    that it may see. One that sees fewer than two learns nothing, as in ``Batch.seen_by``.
    """
    if batch.left_out is None:
        return None
    numbers = torch.arange(members, device=batch.left_out.device)
    seen = (batch.left_out.unsqueeze(-1) != numbers).all(1)
    count = seen.sum(0)
    rows = len(batch.x)
    share = torch.where(count >= min(2, rows), rows / count.clamp(min=1), 0.0)
    return seen * share.to(batch.x.device)
