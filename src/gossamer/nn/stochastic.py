"""What has a KL and draws noise: the protocol that the objective and prediction ask.

A module takes part as soon as its class has a ``kl_divergence`` method: its KL is in the ELBO,
``gossamer.sampling`` seeds it, ``gossamer.summary`` shows it, and ``gossamer.predict`` draws from
it. ``StochasticModule`` is the short way to write one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from gossamer.errors import GossamerError
from gossamer.ops import draw_seed

Noise = Literal["weight", "local"]

# The golden ratio in 63 bits: multiples are spread evenly, so that calls get distant seeds.
_SEED_STRIDE = 0x4F1BBCDCBFA53E0B
_SEED_RANGE = 2**62


class NeedsOwnPass(GossamerError):
    """Several samples share a pass in which a module cannot tell them apart."""


@dataclass(eq=False)
class SamplingState:
    """How a module samples inside ``gossamer.sampling``.

    Attributes:
        noise: ``weight``: one draw for all rows; ``local``: independent per row and pixel;
            ``None``: the means.
        seed: 0-d int64, folded from the context's seed and the module's place in the model; a
            tensor, so that compiled graphs do not depend on its value. ``[S]`` where S samples
            share the pass: each has its own draw, and the first seed stands for the local noise.
        calls: Forward passes so far; local noise must differ between two calls of one module.
        rows: Where samples share the pass, all their rows: those of sample 0, then of sample 1.
        holds: Whether a draw serves all passes to come (``holding_draws``).
        drawn: That draw.
        drawn_absent: That of the weights that a layer does not keep, if it draws them.
    """

    noise: Noise | None
    seed: Tensor
    calls: int = 0
    rows: int | None = None
    holds: bool = False
    drawn: Tensor | None = None
    drawn_absent: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several samples share the pass."""
        return self.rows is not None

    def next_seed(self, noise: Noise) -> Tensor:
        """The seed of this call: the same for every draw of θ, another for each local one."""
        if noise == "weight":
            return self.seed
        self.calls += 1
        first = self.seed[0] if self.is_shared else self.seed
        return first + self.calls * _SEED_STRIDE % _SEED_RANGE

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a sampling module does not sample."""


class Stochastic(Protocol):
    """A module with a posterior of its own.

    Attributes:
        sampling_state: Set by ``gossamer.sampling`` for the length of a context, else ``None``.
    """

    sampling_state: SamplingState | None

    def kl_divergence(self) -> Tensor:
        """KL(posterior || prior) of the module's own parameters in nats, 0-d."""
        ...


class StochasticModule(nn.Module):
    """Base of modules that draw noise: layers of the package, and those that a user writes.

    A subclass computes with the noise that ``noise()`` names, from the seed that ``seed`` gives,
    and states its KL. Everything else follows: objective, sampling, prediction, summary.

    Example:
        >>> class NoisyScale(StochasticModule):
        ...     '''A factor per channel with a posterior N(mean, std²) and the prior N(1, 1).'''
        ...
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...         self.mean = nn.Parameter(torch.ones(channels))
        ...         self.log_std = nn.Parameter(torch.full((channels,), -3.0))
        ...
        ...     def kl_divergence(self):
        ...         excess = (2 * self.log_std).exp() + (self.mean - 1).square() - 1
        ...         return (0.5 * excess - self.log_std).sum()
        ...
        ...     def forward(self, x):
        ...         if self.noise() is None:
        ...             return x * self.mean
        ...         factor = self.mean.expand_as(x) if self.noise() == "local" else self.mean
        ...         eps = normal_like(self.seed(), factor)
        ...         return x * (factor + self.log_std.exp() * eps)
        >>> from gossamer.nn import kl_divergence
        >>> from gossamer.ops import normal_like
        >>> net = nn.Sequential(nn.Linear(3, 4), NoisyScale(4))
        >>> bool(kl_divergence(net) == net[1].kl_divergence())
        True
    """

    sampling_state: SamplingState | None = None

    resizes: ClassVar[bool] = False
    """Whether a saved posterior may hold the module's tensors in another length: units left."""

    def kl_divergence(self) -> Tensor:
        """KL(posterior || prior) of the module's own parameters in nats, 0-d; 0 if it has none."""
        like = next(self.parameters(recurse=False), torch.zeros(()))
        return like.new_zeros(())

    def noise(self) -> Noise | None:
        """The noise that the next pass uses; ``None`` for the means.

        ``train()`` uses local noise, ``eval()`` the means, ``gossamer.sampling`` what it was told.
        """
        if self.sampling_state is not None:
            return self.sampling_state.noise
        return "local" if self.training else None

    def seed(self, noise: Noise | None = None) -> Tensor:
        """The seed of this pass, 0-d int64, for ``gossamer.ops.normal_like``.

        Args:
            noise: What it is for; ``noise()`` if ``None``.

        Raises:
            NeedsOwnPass: Several samples share the pass, and one draw cannot serve them all. The
                caller then runs them in turn.
        """
        wanted = noise or self.noise() or "local"
        if self.sampling_state is None:
            return draw_seed()
        if wanted == "weight" and self.sampling_state.is_shared:
            raise NeedsOwnPass(
                type(self).__name__,
                None,
                "has one draw for all samples of a pass",
                "run the samples in turn",
            )
        return self.sampling_state.next_seed(wanted)


def is_stochastic(module: Any) -> TypeGuard[Stochastic]:
    """Whether a module has a KL, and so takes part in objective, sampling and prediction.

    Asked of the class: an attribute that a module lacks is dear to ask for.
    """
    return callable(getattr(type(module), "kl_divergence", None))
