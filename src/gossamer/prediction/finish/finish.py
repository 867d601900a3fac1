"""``Finish``: how outputs of networks become a prediction, with what held-out rows taught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, StudentT
from gossamer.prediction.combine import combine
from gossamer.prediction.conformal.real import RealCalibration
from gossamer.prediction.conformal.record import Calibration
from gossamer.prediction.finish.spread import Spread
from gossamer.prediction.inputs import InputRows
from gossamer.prediction.outputs import Call
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction


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
        calibration: What held-out rows say of intervals or label sets, or ``None``; it belongs to
            this temperature and this head.
        spread: For real targets: how wide predictions are, in place of the networks' own noise.
    """

    temperature: float = 1.0
    head: Head | None = None
    calibration: Calibration | None = None
    spread: Spread | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise InvalidValue("temperature", self.temperature, "must be positive and finite")
        if self.head is not None and self.spread is not None:
            raise InvalidValue("spread", None, "has no place beside a last layer", "give one")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is done."""
        extras = (self.head, self.spread, self.calibration)
        return self.temperature == 1.0 and all(extra is None for extra in extras)

    @property
    def figures(self) -> dict[str, float]:
        """What was fitted; empty where nothing was.

        ``temperature``, ``last_layer_scale`` and, of a calibration, ``calibration_rows``.
        """
        found = {} if self.head is None else {"last_layer_scale": self.head.scale}
        if self.calibration is not None:
            found["calibration_rows"] = float(self.calibration.rows)
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
            return self.calibrated(self.head.read(likelihood, outputs, temperature))
        if self.spread is not None:
            return self.calibrated(self.widened(combine(likelihood, outputs), further))
        return self.calibrated(read_tempered(likelihood, outputs, temperature))

    def calibrated(self, prediction: Prediction) -> Prediction:
        """The prediction with the calibration.

        Raises:
            InvalidData: It is one of other predictions.
        """
        found = self.calibration
        if found is None:
            return prediction
        if isinstance(prediction, RealPrediction) and isinstance(found, RealCalibration):
            found.require_fit(prediction.mean)
            return replace(prediction, calibration=found)
        if isinstance(prediction, ClassPrediction) and not isinstance(found, RealCalibration):
            found.require_fit(prediction.probs)
            return replace(prediction, calibration=found)
        rule = f"does not fit a {type(prediction).__name__}"
        raise InvalidData("calibration", type(found).__name__, rule)

    def require_uncalibrated(self) -> None:
        """Raise where moments are asked for: they differ from the averages that calibrated."""
        if self.calibration is not None:
            raise InvalidValue(
                "posterior",
                None,
                "was calibrated with posterior samples, whose answers are not those of moments",
                "use predict, or the posterior before it was calibrated",
            )

    def widened(self, prediction: Prediction, further: float = 1.0) -> RealPrediction:
        """A real prediction as wide as the spread or the temperature says."""
        assert isinstance(prediction, RealPrediction)
        found = prediction if self.spread is None else self.spread.of(prediction)
        factor = self.temperature * further
        return found if factor == 1.0 else widened(found, factor)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Finish:
        """The same over other tensors."""
        head = None if self.head is None else self.head.moved(move)
        found = None if self.calibration is None else self.calibration.moved(move)
        return replace(self, head=head, calibration=found)


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
    if not isinstance(likelihood, Categorical | Bernoulli | Gaussian | StudentT):
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
        departures=None if prediction.departures is None else factor * prediction.departures,
    )
