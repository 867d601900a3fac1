"""Draws from a Gaussian with a diagonal and a low-rank part: what SWAG's iterates were like.

The covariance is that of points around their mean, ½(diagonal + D̂D̂ᵀ/(K-1)). It is never formed: a
draw costs K + 1 vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn import Noise
from gossamer.nn.replica import replicate
from gossamer.ops import fold_seed, normal_like
from gossamer.prediction.draws import Move
from gossamer.prediction.finite import FiniteWeights, require_finite_weights, weights_named


@dataclass(frozen=True, eq=False)
class LowRankCentre:
    """A parameter, and the Gaussian around its mean.

    Attributes:
        name: Of the parameter in the network.
        mean: θ̄, of the parameter's shape.
        variance: Σ_diag, of that shape.
        points: K of that shape; their deviations from ``mean`` are the columns of D̂. Every centre
            has the same number, in the same order: 0 for a diagonal Gaussian, else at least 2.
    """

    name: str
    mean: Tensor
    variance: Tensor
    points: tuple[Tensor, ...]


class LowRankDraws:
    """θ̄ + √(scale/2) (Σ_diag^½ z₁ + D̂ z₂/√(K-1)): one draw for all rows.

    z₂ is one vector for the whole network: it is what makes weights covary. Without points the
    draws are θ̄ + √scale Σ_diag^½ z₁.

    Args:
        network: Whose other tensors are taken as they are.
        centres: In the order in which they draw.
        scale: Factor of the covariance; 0 has a single network, the mean.
    """

    by_noise = False
    uses_seed = True

    def __init__(
        self, network: nn.Module, centres: Sequence[LowRankCentre], scale: float = 1.0
    ) -> None:
        ranks = {len(centre.points) for centre in centres}
        if len(ranks) != 1 or 1 in ranks:
            raise InvalidValue(
                "points", sorted(ranks), "must be as many in every centre: none, or at least 2"
            )
        if not scale >= 0.0:
            raise InvalidValue("scale", scale, "must not be negative")
        self.network = network
        self.centres = tuple(centres)
        self.scale = float(scale)
        self.rank = ranks.pop()
        self.max_samples: int | None = None if self.scale > 0.0 else 1
        self._finite = FiniteWeights()

    def require_finite(self) -> None:
        """See ``gossamer.prediction.finite.Finite``."""
        require_finite_weights(self._weights())

    def _weights(self) -> list[tuple[str, Tensor]]:
        drawn = {c.name for c in self.centres}
        others = ((n, p) for n, p in weights_named(self.network) if n not in drawn)
        centres = ((c.name, t) for c in self.centres for t in (c.mean, c.variance, *c.points))
        return [*others, *centres]

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The network at the draw that ``seed`` fixes."""
        self._finite.require(self._weights())
        yield replicate(self.network, self._draw(seed)).eval()

    @torch.no_grad()
    def _draw(self, seed: int) -> dict[str, Tensor]:
        kept = dict(self.network.named_parameters())
        share = self.scale if self.rank == 0 else self.scale / 2
        along = self._along(seed)
        found = {}
        for number, centre in enumerate(self.centres):
            eps = normal_like(torch.tensor(fold_seed(seed, 1 + number)), centre.mean)
            total = centre.variance.sqrt() * eps.to(centre.mean)
            for factor, point in zip(along, centre.points, strict=True):
                total.add_(point - centre.mean, alpha=factor)
            drawn = torch.add(centre.mean, total, alpha=sqrt(share))
            found[centre.name] = drawn.to(kept[centre.name].dtype)
        return found

    def _along(self, seed: int) -> list[float]:
        """z₂/√(K-1)."""
        if self.rank == 0:
            return []
        z = normal_like(torch.tensor(fold_seed(seed, 0)), torch.empty(self.rank))
        return [float(each) / sqrt(self.rank - 1) for each in z]

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> LowRankDraws:
        """See ``Draws.moved``."""
        centres = [
            LowRankCentre(c.name, move(c.mean), move(c.variance), tuple(map(move, c.points)))
            for c in self.centres
        ]
        return LowRankDraws(place(self.network), centres, self.scale)

    def described(self, key_of: Callable[[Tensor], str]) -> dict[str, Any]:
        """What a file keeps of them, as JSON values; ``key_of`` puts a tensor into it."""
        centres = [
            {
                "name": c.name,
                "mean": key_of(c.mean),
                "variance": key_of(c.variance),
                "points": [key_of(point) for point in c.points],
            }
            for c in self.centres
        ]
        return {"kind": "low_rank", "scale": self.scale, "centres": centres}

    @classmethod
    def of(
        cls, about: Mapping[str, Any], network: nn.Module, tensors: Mapping[str, Tensor]
    ) -> LowRankDraws:
        """The draws that ``described`` told of."""
        centres = [
            LowRankCentre(
                str(c["name"]),
                tensors[c["mean"]],
                tensors[c["variance"]],
                tuple(tensors[key] for key in c["points"]),
            )
            for c in about["centres"]
        ]
        return cls(network, centres, float(about["scale"]))

    def state(self) -> dict[str, Tensor]:
        """The state of the network at the means."""
        kept = self.network.state_dict()
        means = {c.name: c.mean.to(kept[c.name].dtype) for c in self.centres}
        return {**kept, **means}
