"""Sets of labels that hold the true one as often as they say.

A score says how badly a label fits a row; a set holds all labels whose score is at most the
conformal quantile of the held-out rows' true labels.

- ``lac``: 1 - p. The smallest sets on average (Sadinle, Lei, Wasserman 2019).
- ``aps``: the mass of all labels that are more probable, and the label's own: sets that grow where
  a row is hard (Romano, Sesia, Candès 2020).
- ``raps``: ``aps`` and a penalty on every label beyond the first few (Angelopoulos et al. 2021).

Without random numbers the own mass of a label counts in full, and sets hold somewhat more than
asked. Random numbers, of which a uniform share of the own mass counts, make them exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.prediction.conformal.rank import exact, ordered_scores, place_of

KINDS = ("lac", "aps", "raps")


@dataclass(frozen=True)
class LabelScore:
    """How badly a label fits the probabilities of a row.

    Attributes:
        kind: ``lac``, ``aps`` or ``raps``.
        penalty: Of ``raps``, for every label beyond the first ``free`` ones.
        free: Of ``raps``.
    """

    kind: str = "lac"
    penalty: float = 0.01
    free: int = 2

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnknownName("score", str(self.kind), KINDS)
        if not 0.0 <= self.penalty < float("inf"):
            raise InvalidValue("penalty", self.penalty, "must be 0 or more, and finite")
        if self.free < 0:
            raise InvalidValue("free", self.free, "must be 0 or more")

    def __call__(self, probs: Tensor, share: Tensor | None = None) -> Tensor:
        """Scores of all labels, float64 ``[B, C]``.

        Labels of equal probability are taken in the order of their numbers.

        Args:
            probs: ``[B, C]``.
            share: ``[B]``, uniform in [0, 1): the share of a label's own mass that counts; all of
                it if left out. ``lac`` has no use for it.

        Example:
            >>> LabelScore("aps")(torch.tensor([[0.2, 0.5, 0.3]]))
            tensor([[1.0000, 0.5000, 0.8000]], dtype=torch.float64)
        """
        if probs.dim() != 2:
            raise InvalidData("probabilities", tuple(probs.shape), "must be [B, C]")
        p = probs.double()
        if self.kind == "lac":
            return 1.0 - p
        ordered, order = p.sort(dim=1, descending=True, stable=True)
        mass = ordered.cumsum(1)
        if share is not None:
            mass = mass - (1.0 - share.double()[:, None]) * ordered
        if self.kind == "raps":
            place = torch.arange(1, p.shape[1] + 1, device=p.device)
            mass = mass + self.penalty * (place - self.free).clamp(min=0)
        return torch.empty_like(mass).scatter_(1, order, mass)


@dataclass(frozen=True, eq=False)
class ClassCalibration:
    """What held-out rows say of sets of labels.

    Attributes:
        scores: float64 ``[n]``, ordered: those of the true labels.
        score: Which they are.
        randomised: Whether a random share of the labels' own mass counted.
    """

    scores: Tensor
    score: LabelScore
    randomised: bool = False

    @classmethod
    def of(
        cls,
        probs: Tensor,
        labels: Tensor,
        score: LabelScore,
        generator: torch.Generator | None = None,
    ) -> ClassCalibration:
        """From the probabilities ``[n, C]`` and true labels ``[n]`` of held-out rows.

        Args:
            probs: Of rows that nothing was trained or chosen on.
            labels: Class numbers.
            score: How badly a label fits.
            generator: For randomised sets; ``lac`` has none.

        Raises:
            InvalidData: Labels do not fit the probabilities.
            InvalidValue: Random numbers were given for ``lac``.

        Example:
            >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
            >>> found = ClassCalibration.of(probs, torch.tensor([0, 1, 1]), LabelScore("lac"))
            >>> found.sets(torch.tensor([[0.5, 0.5], [0.97, 0.03]]), 0.75)
            tensor([[ True,  True],
                    [ True, False]])
        """
        if generator is not None and score.kind == "lac":
            raise InvalidValue("generator", None, "is for aps and raps: lac has nothing random")
        share = _shares(probs, generator)
        found = score(probs, share)
        count, classes = found.shape
        given = labels.reshape(-1)
        whole = given.long()
        if len(given) != count or bool((whole != given).any()):
            rule = f"must be {count} class numbers, one for each row"
            raise InvalidData("labels", tuple(labels.shape), rule)
        if not bool(((whole >= 0) & (whole < classes)).all()):
            raise InvalidData("labels", None, f"must be whole numbers from 0 to {classes - 1}")
        own = found.gather(1, whole[:, None])[:, 0]
        return cls(ordered_scores(own), score, generator is not None)

    @property
    def rows(self) -> int:
        """Held-out rows n."""
        return len(self.scores)

    def require(self, coverage: float) -> None:
        """Raise unless there are rows enough for sets of that coverage."""
        place_of(self.rows, exact(coverage))

    def require_fit(self, probs: Tensor) -> None:
        """Raise unless predictions are ``[B, C]``."""
        if probs.dim() != 2:
            raise InvalidData("probabilities", tuple(probs.shape), "must be [B, C] for label sets")

    def sets(
        self, probs: Tensor, coverage: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """Which labels are in the set of each row: bool ``[B, C]``; some sets may be empty.

        Args:
            probs: ``[B, C]``.
            coverage: The share of rows whose true label is in its set, at least.
            generator: For randomised calibrations, and only for them.

        Raises:
            InvalidValue: There are too few rows for that coverage; a generator is missing, or given
                for nothing.
        """
        if self.randomised != (generator is not None):
            rule = "is needed" if self.randomised else "has no use"
            raise InvalidValue(
                "generator",
                None,
                f"{rule}: the scores of held-out rows were{'' if self.randomised else ' not'} "
                "randomised",
            )
        threshold = self.scores[place_of(self.rows, exact(coverage))]
        return self.score(probs, _shares(probs, generator)) <= threshold

    def moved(self, move: Callable[[Tensor], Tensor]) -> ClassCalibration:
        """The same over another tensor."""
        return replace(self, scores=move(self.scores))


def most_probable(probs: Tensor, coverage: float, axis: int = 1) -> Tensor:
    """The fewest labels that hold ``coverage`` of the probability, as the model believes it.

    Args:
        probs: With the classes on ``axis``.
        coverage: In (0, 1).
        axis: Counted from 0.

    Returns:
        bool, of the shape of ``probs``.

    Example:
        >>> most_probable(torch.tensor([[0.2, 0.5, 0.3]]), 0.7)
        tensor([[False,  True,  True]])
    """
    exact(coverage)
    ordered, order = probs.double().sort(dim=axis, descending=True, stable=True)
    before = ordered.cumsum(axis) - ordered
    kept = before < coverage
    return torch.empty_like(kept).scatter_(axis, order, kept)


def _shares(probs: Tensor, generator: torch.Generator | None) -> Tensor | None:
    if generator is None:
        return None
    count = len(probs)
    drawn = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)
    return drawn.to(probs.device)
