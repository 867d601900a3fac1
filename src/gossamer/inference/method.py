"""The protocol of all methods.

``step`` learns from a batch, ``posterior`` is what predicts, ``state_dict`` is all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from gossamer.core.swap import SwapInfo
from gossamer.inference.batch import Batch
from gossamer.inference.step import Taken
from gossamer.likelihoods import Likelihood
from gossamer.prediction import Posterior


@dataclass(frozen=True)
class StepInfo:
    """What one step reports, as plain numbers.

    Attributes:
        loss: What was minimised.
        nll: Mean negative log-likelihood of the batch.
        kl: KL in nats, 0 for deterministic methods.
        kl_weight: Its factor at this step.
        lr: Learning rate of the weights at this step.
        accuracy: Of the batch, for classes.
        swap: What was swapped, if anything.
        note: A sentence on what should not pass unseen, such as a chain that was thrown out.
    """

    loss: float
    nll: float
    kl: float
    kl_weight: float
    lr: float
    accuracy: float | None
    swap: SwapInfo | None
    note: str | None = None

    @classmethod
    def of(
        cls, taken: Taken, *, lr: float, swap: SwapInfo | None = None, note: str | None = None
    ) -> StepInfo:
        """From what a step computed."""
        return cls(
            loss=taken.loss,
            nll=taken.nll,
            kl=taken.kl,
            kl_weight=taken.kl_weight,
            lr=lr,
            accuracy=taken.accuracy,
            swap=swap,
            note=note,
        )


class Method(Protocol):
    """A way to fit a posterior, or a point, over the weights of a network."""

    @property
    def name(self) -> str:
        """Key in ``gossamer.inference.registry.METHODS``."""
        ...

    @property
    def model(self) -> nn.Module:
        """The network with its present parameters."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """How outputs and targets meet."""
        ...

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """Learn from inputs ``[B, ...]``, targets ``[B, ...]`` and, if any, weights ``[B]``."""
        ...

    def posterior(self) -> Posterior:
        """What predicts now; it shares the method's tensors, so that later steps change it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that later steps depend on except torch's default generator.

        Tensors and JSON-able values.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        ...


@dataclass(frozen=True)
class MethodEntry:
    """What the registry knows of a method; the file of a method ends with one.

    Attributes:
        config: Dataclass of its settings.
        build: Makes the method from a config.
        presets: Named changes to the defaults; ``default`` is one of them.
        about: One line for ``gossamer methods``.
        gone: Settings that it had and ignored once; runs that were saved with them go on.
        takes_function: Whether ``build`` takes a function that makes networks in a network's place.
    """

    config: type[Any]
    build: Callable[..., Method]
    presets: dict[str, dict[str, Any]]
    about: str
    gone: frozenset[str] = frozenset()
    takes_function: bool = False
