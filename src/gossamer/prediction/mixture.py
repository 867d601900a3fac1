"""The even mixture of several posteriors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from gossamer.nn import Noise
from gossamer.prediction.draws import Draws, Move
from gossamer.prediction.posterior import Posterior


class MixtureDraws:
    """Samples dealt out over several draws, one after the other."""

    by_noise = False
    uses_seed = True

    def __init__(self, parts: Sequence[Draws]) -> None:
        self.parts = list(parts)

    @property
    def network(self) -> nn.Module:
        return self.parts[0].network

    @property
    def max_samples(self) -> int | None:
        found = [part.max_samples for part in self.parts]
        return None if None in found else len(found) * min(n for n in found if n is not None)

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        part = self.parts[index % len(self.parts)]
        with part.sample(index // len(self.parts), seed=seed, noise=noise) as network:
            yield network

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> MixtureDraws:
        return MixtureDraws([part.moved(move, place) for part in self.parts])


class _Mixture(Posterior):
    def __init__(self, posteriors: Sequence[Posterior], weights: int | None) -> None:
        super().__init__(MixtureDraws([p.draws for p in posteriors]), posteriors[0].likelihood)
        self._parts, self._weights = posteriors, weights

    @property
    def size(self) -> dict[str, float | int]:
        nnz = sum(int(p.size["nnz"]) for p in self._parts)
        total = self._weights or sum(
            round(p.size["nnz"] / (1.0 - p.size["sparsity"])) for p in self._parts
        )
        return {"nnz": nnz, "sparsity": 1.0 - nnz / total}


def mixture(posteriors: Sequence[Posterior], weights: int | None = None) -> Posterior:
    """The even mixture."""
    return posteriors[0] if len(posteriors) == 1 else _Mixture(posteriors, weights)
