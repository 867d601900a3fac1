"""``Finish``: how outputs of networks become a prediction, with what held-out rows taught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from gossamer.prediction.combine import combine
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.outputs import Call
from gossamer.prediction.prediction import Prediction, RealPrediction


class Head(Protocol):
    """A Gaussian in place of the weights of the last layer."""

    @property
    def scale(self) -> float:
        """Factor of its variance."""
        ...

    def run(self, network: nn.Module, rows: InputRows, forward: Call = ...) -> Tensor:
        """Outputs ``[B, C]`` and, beside them, the deviations of their Gaussian: ``[B, 2C]``.

        Args:
            network: Of a posterior.
            rows: Inputs of B rows.
            forward: Gives the network's own outputs.
        """
        ...

    def read(self, likelihood: Likelihood, outputs: Tensor, temperature: float) -> Prediction:
        """The prediction from what ``run`` gave of S samples, ``[S, B, 2C]``."""
        ...

    def moved(self, move: Callable[[Tensor], Tensor]) -> Head:
        """The same over other tensors."""
        ...


@dataclass(frozen=True, eq=False)
class Finish:
    """What is done to the outputs of a posterior's networks.

    Attributes:
        temperature: Logits are divided by it. For real targets the whole predictive distribution is
            widened by it around its mean.
        head: A Gaussian last layer, or ``None``.
    """

    temperature: float = 1.0
    head: Head | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise InvalidValue("temperature", self.temperature, "must be positive and finite")

    @property
    def figures(self) -> dict[str, float]:
        """What was fitted: ``temperature``, ``last_layer_scale``; empty where nothing was."""
        found = {} if self.head is None else {"last_layer_scale": self.head.scale}
        return {"temperature": self.temperature, **found} if found or self.temperature != 1 else {}

    def caller(self, forward: Call) -> Call:
        """Runs a network on rows, for ``prediction`` to read; ``forward`` gives its outputs."""
        return forward if self.head is None else partial(self._run, forward)

    def _run(self, forward: Call, network: nn.Module, rows: InputRows) -> Tensor:
        assert self.head is not None
        return self.head.run(network, rows, forward)

    def prediction(
        self, likelihood: Likelihood, outputs: Tensor, further: float = 1.0
    ) -> Prediction:
        """The prediction from the outputs ``[S, B, ...]`` of S samples.

        Args:
            likelihood: How outputs are read.
            outputs: What ``caller`` gave.
            further: A second temperature on top of one's own: that of a mixture.
        """
        temperature = self.temperature * further
        if self.head is not None:
            return self.head.read(likelihood, outputs, temperature)
        return read_tempered(likelihood, outputs, temperature)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Finish:
        """The same over other tensors."""
        return self if self.head is None else replace(self, head=self.head.moved(move))


def read_tempered(likelihood: Likelihood, outputs: Tensor, temperature: float) -> Prediction:
    """The prediction from outputs ``[S, B, ...]`` at a temperature."""
    if temperature == 1.0:
        return combine(likelihood, outputs)
    if isinstance(likelihood, Categorical | Bernoulli):
        return combine(likelihood, outputs / temperature)
    require_temperature(likelihood)
    return widened(combine(likelihood, outputs), temperature)


def require_temperature(likelihood: Likelihood) -> None:
    """Raise where a temperature means nothing, as for counts, whose spread is their rate's."""
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian):
        raise InvalidValue(
            "likelihood",
            likelihood.name,
            "has neither logits nor a noise that a temperature could scale",
            "use the posterior as it is",
        )


def widened(prediction: Prediction, factor: float) -> RealPrediction:
    """A real prediction whose every deviation from its mean is ``factor`` times as large."""
    assert isinstance(prediction, RealPrediction)
    return replace(
        prediction,
        epistemic=factor * prediction.epistemic,
        aleatoric=factor * prediction.aleatoric,
        samples=prediction.mean + factor * (prediction.samples - prediction.mean),
        noise=factor * prediction.noise,
    )
