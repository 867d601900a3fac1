"""``mixture``: several posteriors that predict together, each counting alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.data import Preparation
from gossamer.errors import InvalidValue
from gossamer.nn import Noise, summary
from gossamer.ops import fold_seed
from gossamer.prediction.combine import merge
from gossamer.prediction.draws import Draws, Move
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finite import require_finite_answer
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.outputs import Output
from gossamer.prediction.passes import ROW_BLOCK
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import Prediction, RealPrediction


class MixtureDraws:
    """The networks of several posteriors in turn: sample s belongs to member s mod M.

    Args:
        members: Their draws.
    """

    by_noise = False
    uses_seed = True

    def __init__(self, members: Sequence[Draws]) -> None:
        self.members = tuple(members)

    @property
    def network(self) -> nn.Module:
        """That of the first member."""
        return self.members[0].network

    @property
    def max_samples(self) -> int | None:
        """As many of each member as the one with the fewest has, if that is more than one."""
        most = [draws.max_samples for draws in self.members]
        several = [count for count in most if count != 1]
        known = [count for count in several if count is not None]
        if several and not known:
            return None
        return len(most) * min(known, default=1)

    def sample(self, index: int, *, seed: int, noise: Noise) -> AbstractContextManager[nn.Module]:
        """See ``Draws.sample``; every member has noise of its own."""
        number = index % len(self.members)
        draws, place = self.members[number], index // len(self.members)
        if draws.max_samples is not None:
            place %= draws.max_samples
        return draws.sample(place, seed=fold_seed(seed, number), noise=noise)

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> MixtureDraws:
        """See ``Draws.moved``."""
        return MixtureDraws([draws.moved(move, place) for draws in self.members])


class Mixture(Posterior):
    """The even mixture of several posteriors, see ``mixture``.

    Its own ``finish`` is a temperature or a spread, and a calibration, for all; last layers are the
    members'.

    Args:
        members: The posteriors.
        weights: Dense weights of one network.
        preparation: As of a posterior.
        about: As of a posterior.
        finish: As of a posterior, without a head.
    """

    draws: MixtureDraws

    def __init__(
        self,
        members: Sequence[Posterior],
        weights: int | None = None,
        preparation: Preparation | None = None,
        about: Mapping[str, Any] | None = None,
        finish: Finish | None = None,
    ) -> None:
        draws = MixtureDraws([member.draws for member in members])
        super().__init__(draws, members[0].likelihood, preparation, about, finish)
        self.members = tuple(members)
        self.weights = weights

    def blocks(
        self, x: InputRows, num_samples: int, noise: Noise, seed: int, temperature: float = 1.0
    ) -> Iterator[Prediction]:
        """See ``Posterior.blocks``; as many samples of every member."""
        each = -(-num_samples // len(self.members))
        factor = self.finish.temperature * temperature
        found = [
            member.blocks(
                x,
                min(each, member.max_samples or each),
                noise,
                fold_seed(seed, number),
                self._of_member(factor),
            )
            for number, member in enumerate(self.members)
        ]
        for block, parts in enumerate(zip(*found, strict=True)):
            yield self._joined(list(parts), temperature, block * ROW_BLOCK)

    def moments(self, x: Tensor, *, keep_samples: bool, temperature: float = 1.0) -> Prediction:
        """See ``Posterior.moments``."""
        self.finish.require_uncalibrated()
        factor = self.finish.temperature * temperature
        parts = [
            member.moments(x, keep_samples=keep_samples, temperature=self._of_member(factor))
            for member in self.members
        ]
        return self._joined(parts, temperature, 0)

    def require_finite(self) -> None:
        """See ``Posterior.require_finite``."""
        for member in self.members:
            member.require_finite()

    def _of_member(self, factor: float) -> float:
        # Logits are divided before they are averaged; real answers are widened after they were,
        # so that what members disagree by is widened too.
        return factor if self.likelihood.has_labels else 1.0

    def _joined(self, parts: list[Prediction], further: float, first: int) -> Prediction:
        found = merge(parts)
        if isinstance(found, RealPrediction) and not found.counts:
            found = self.finish.widened(found, further)
        # Answers of all members are finite; what they differ by, widened, need not be.
        require_finite_answer(found, first, lambda: "members differ by more than numbers hold")
        return self.finish.calibrated(found)

    @property
    def size(self) -> dict[str, float | int]:
        """``nnz`` of all members, and ``sparsity`` beside the dense weights of one network."""
        nnz = sum(int(member.size["nnz"]) for member in self.members)
        weights = summary(self.draws.network).numel if self.weights is None else self.weights
        return {"nnz": nnz, "sparsity": 1.0 - nnz / weights if weights else 0.0}

    def moved(
        self, move: Callable[[Tensor], Tensor], place: Callable[[nn.Module], nn.Module]
    ) -> Mixture:
        """See ``Posterior.moved``."""
        found = self.with_members([member.moved(move, place) for member in self.members])
        return found.finished(self.finish.moved(move))

    def to(self, device: str | torch.device) -> Mixture:
        """See ``Posterior.to``."""
        found = self.with_members([member.to(device) for member in self.members])
        return found.finished(self.finish.moved(lambda t: t.to(device, copy=True)))

    def reading(self, *, output: Output | None = None, class_dim: int | None = None) -> Mixture:
        """See ``Posterior.reading``; the same for every member."""
        return self.with_members(
            [member.reading(output=output, class_dim=class_dim) for member in self.members]
        )

    def finished(self, finish: Finish) -> Mixture:
        """See ``Posterior.finished``; the members keep theirs."""
        return Mixture(self.members, self.weights, self.preparation, self.about, finish)

    def with_members(self, members: Sequence[Posterior]) -> Mixture:
        """The same of other members."""
        return Mixture(members, self.weights, self.preparation, self.about, self.finish)

    @property
    def finish_figures(self) -> dict[str, float]:
        """See ``Posterior.finish_figures``; the members' last layers share one scale."""
        heads = [member.finish.head for member in self.members if member.finish.head is not None]
        found = {"last_layer_scale": heads[0].scale} if heads else {}
        own = self.finish.figures
        return {"temperature": self.finish.temperature, **found, **own} if found else own

    def __repr__(self) -> str:
        return f"Mixture of {len(self.members)}: {list(self.members)}"


def mixture(posteriors: Sequence[Posterior], weights: int | None = None) -> Posterior:
    """The even mixture of several posteriors: members that predict together.

    Probabilities are averaged over all samples of all members, so that the members' disagreement is
    part of the mutual information (of ``epistemic`` for real targets). Every member keeps its own
    networks, likelihood and last layer. Samples are dealt out in turn: sample s belongs to member
    s mod M. Members count alike, so a number of samples is raised to the next multiple of M; a
    deterministic member shows its one network as often as the others show theirs.

    Args:
        posteriors: The members, which share their tensors with it.
        weights: Dense weights of one network, to tell the sparsity by; by default those of the
            first member's, so that two members of 97.5 % are 95 % sparse together.

    Returns:
        A posterior with the preparation and the ``about`` of the first member.

    Raises:
        InvalidValue: There is no member, or members read their outputs by different likelihoods or
            class axes, live on different devices, or were calibrated.

    Example:
        >>> from gossamer.prediction import posterior_of
        >>> nets = [gossamer.to_sparse(nn.Linear(8, 3), sparsity=0.75) for _ in range(2)]
        >>> both = mixture([posterior_of(net) for net in nets])
        >>> both.size, both.max_samples
        ({'nnz': 12, 'sparsity': 0.5}, 2)
    """
    members = list(posteriors)
    if not members:
        raise InvalidValue("posteriors", None, "must be at least one")
    if any(isinstance(member, Mixture) for member in members):
        raise InvalidValue("posteriors", None, "must not be mixtures", "give their members")
    shared: tuple[tuple[str, list[Any]], ...] = (
        ("likelihood", [type(member.likelihood).__name__ for member in members]),
        ("class_dim", [member.class_dim for member in members]),
        ("device", [str(member.device) for member in members]),
    )
    for what, found in shared:
        if len(set(found)) > 1:
            raise InvalidValue("posteriors", found, f"must share one {what} to be averaged")
    if weights is not None and weights < 1:
        raise InvalidValue("weights", weights, "must be at least 1")
    if any(member.finish.calibration is not None for member in members):
        raise InvalidValue(
            "posteriors",
            None,
            "must not be calibrated: each was alone, and together they predict otherwise",
            "mix them first, then calibrate the mixture",
        )
    return Mixture(members, weights, members[0].preparation, members[0].about)
