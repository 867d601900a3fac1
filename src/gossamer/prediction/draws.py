"""Where the networks of a posterior come from: the kinds of draws, each a small value.

Whatever its kind, ``sample`` lends a network that belongs to the caller alone, in evaluation mode:
a structural replica that shares the tensors. Nothing that is shared is ever written to.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gossamer.nn import (
    Noise,
    sampling,
    sampling_together,
    sparse_layers,
    stochastic_modules,
)
from gossamer.nn.replica import Replicas, replicate
from gossamer.ops import fold_seed, normal_like
from gossamer.prediction.finite import (
    FiniteWeights,
    require_finite_weights,
    weights_in,
    weights_named,
)

Move = Callable[[Tensor], Tensor]
"""What becomes of every tensor of a copy: a clone, or the same on another device."""


class Draws(Protocol):
    """The networks of a posterior."""

    by_noise: bool
    """Whether samples differ by the layers' noise alone: they may then share forward passes."""

    uses_seed: bool
    """Whether ``sample`` depends on more than ``index``."""

    @property
    def network(self) -> nn.Module:
        """A network for structure and size; not to be run or changed."""
        ...

    @property
    def max_samples(self) -> int | None:
        """Number of different samples; ``None`` if unlimited."""
        ...

    def sample(self, index: int, *, seed: int, noise: Noise) -> AbstractContextManager[nn.Module]:
        """A context in which the given network is posterior sample ``index``."""
        ...

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> Draws:
        """The same draws over tensors of their own."""
        ...


class NoiseDraws:
    """One network whose stochastic modules draw by seed.

    Args:
        network: Any module; one without stochastic modules has a single sample.
    """

    by_noise = True
    uses_seed = True

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.max_samples = None if stochastic_modules(network) else 1
        self._replicas = Replicas(network)
        self._finite = FiniteWeights()

    def require_finite(self) -> None:
        """See ``gossamer.prediction.finite.Finite``."""
        require_finite_weights(weights_named(self.network))

    @contextmanager
    def borrow(self) -> Iterator[nn.Module]:
        """The network at its means."""
        self._finite.require(weights_named(self.network))
        with self._replicas.borrow() as network:
            yield network

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The draw that ``seed`` fixes."""
        with self.borrow() as network, sampling(network, seed=seed, noise=noise):
            yield network

    @contextmanager
    def together(self, *, seeds: Sequence[int], rows: int, noise: Noise) -> Iterator[nn.Module]:
        """A network that takes the rows of several samples, see ``sampling_together``."""
        with (
            self.borrow() as network,
            sampling_together(network, seeds=seeds, rows=rows, noise=noise),
        ):
            yield network

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> NoiseDraws:
        """See ``Draws.moved``."""
        return NoiseDraws(place(self.network))


class Samples(Protocol):
    """States of one network in the order in which they were kept."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


class StoredDraws:
    """Stored samples, each a network that is built once.

    Args:
        network: The template: every sample is this network with other tensors.
        samples: Their states by the names of ``state_dict``; supports may have other sizes. Later
            additions are not seen.
        budget: Bytes of tensors that may be kept as networks; ``None`` for no limit. Samples beyond
            it are built anew in every prediction.
    """

    by_noise = False
    uses_seed = False

    def __init__(self, network: nn.Module, samples: Samples, budget: int | None = None) -> None:
        self.network = network
        self.samples = samples
        self.budget = budget
        self.max_samples: int = len(samples)
        self._kept: dict[int, Replicas] = {}
        self._bytes: dict[int, int] = {}  # by address: samples may share tensors
        self._lock = threading.Lock()

    def state(self, index: int) -> Mapping[str, Tensor]:
        """The state of sample ``index``, counted back from the latest: 0 is the last one."""
        if not 0 <= index < self.max_samples:
            raise IndexError(f"sample {index} of {self.max_samples}")
        return self.samples[self.max_samples - 1 - index]

    def require_finite(self) -> None:
        """See ``gossamer.prediction.finite.Finite``."""
        for index in range(self.max_samples):
            require_finite_weights(weights_in(self.state(index), self.network))

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """Sample ``index``, counted back from the latest; it has no noise."""
        with self._lock:
            replicas = self._kept.get(index) or self._build(index)
        with replicas.borrow() as network:
            yield network

    def _build(self, index: int) -> Replicas:
        with torch.inference_mode(mode=False):  # what is kept may be used outside of it later
            state = self.state(index)
            require_finite_weights(weights_in(state, self.network))
            replicas = Replicas(replicate(self.network, state))
        sizes = {t.data_ptr(): t.numel() * t.element_size() for t in state.values()}
        together = {**self._bytes, **sizes}
        if self.budget is None or sum(together.values()) <= self.budget:
            self._kept[index], self._bytes = replicas, together
        return replicas

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> StoredDraws:
        """See ``Draws.moved``; all samples are then in memory."""
        held: dict[int, tuple[Tensor, Tensor]] = {}  # with the original: an id must stay its own

        def once(tensor: Tensor) -> Tensor:
            return held.setdefault(id(tensor), (tensor, move(tensor)))[1]

        states = [self.state(index) for index in reversed(range(self.max_samples))]
        samples = [{name: once(tensor) for name, tensor in state.items()} for state in states]
        return StoredDraws(place(self.network), samples)


@dataclass(frozen=True, eq=False)
class Centre:
    """A parameter with a Gaussian around its mean.

    Attributes:
        name: Of the parameter in the network.
        mean: μ.
        rho: logit τ.
    """

    name: str
    mean: Tensor
    rho: Tensor


class GaussianDraws:
    """N(μ, (ατ)²) over some parameters of a network: one draw for all rows.

    Args:
        network: Whose other tensors are taken as they are.
        centres: In the order in which they draw.
        alpha: α, the largest standard deviation.
    """

    by_noise = False
    uses_seed = True
    max_samples = None

    def __init__(self, network: nn.Module, centres: Sequence[Centre], alpha: float) -> None:
        self.network = network
        self.centres = tuple(centres)
        self.alpha = float(alpha)
        self._finite = FiniteWeights()

    def require_finite(self) -> None:
        """See ``gossamer.prediction.finite.Finite``."""
        require_finite_weights(self._weights())

    def _weights(self) -> list[tuple[str, Tensor]]:
        drawn = {c.name for c in self.centres}
        others = ((n, p) for n, p in weights_named(self.network) if n not in drawn)
        centres = ((c.name, t) for c in self.centres for t in (c.mean, c.rho))
        return [*others, *centres]

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The network at μ + ατ⊙ε, with ε fixed by ``seed``."""
        self._finite.require(self._weights())
        yield replicate(self.network, self._draw(seed)).eval()

    @torch.no_grad()
    def _draw(self, seed: int) -> dict[str, Tensor]:
        found = {}
        for number, centre in enumerate(self.centres):
            eps = normal_like(torch.tensor(fold_seed(seed, number)), centre.mean)
            std = self.alpha * torch.sigmoid(centre.rho)
            found[centre.name] = torch.addcmul(centre.mean, std, eps.to(centre.mean))
        return found

    def moved(self, move: Move, place: Callable[[nn.Module], nn.Module]) -> GaussianDraws:
        """See ``Draws.moved``."""
        centres = [Centre(c.name, move(c.mean), move(c.rho)) for c in self.centres]
        return GaussianDraws(place(self.network), centres, self.alpha)


def own_copy(network: nn.Module) -> nn.Module:
    """A network over tensors of its own, in evaluation mode."""
    return copy.deepcopy(replicate(network)).eval()


def on_device(network: nn.Module, device: torch.device) -> nn.Module:
    """A copy elsewhere, by a backend that runs there."""
    copied = own_copy(network)
    if device.type != "cpu":
        for layer in sparse_layers(copied).values():
            layer.use_backend("masked")
    return copied.to(device)
