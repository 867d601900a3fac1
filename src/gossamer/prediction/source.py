"""Whatever can be asked for a prediction: a posterior, a method, a bare model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.likelihoods import Likelihood, make_likelihood
from gossamer.nn import Noise
from gossamer.prediction.draws import NoiseDraws
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import Prediction


@runtime_checkable
class HasPosterior(Protocol):
    """A method."""

    def posterior(self) -> Posterior:
        """What it predicts with now."""
        ...


Source = nn.Module | HasPosterior | Posterior


def posterior_of(source: Source, likelihood: str | Likelihood = "categorical") -> Posterior:
    """A posterior as it is; that of a method; a module with its likelihood."""
    if isinstance(source, Posterior):
        return source
    if isinstance(source, nn.Module):
        return Posterior(NoiseDraws(source), make_likelihood(likelihood))
    if isinstance(source, HasPosterior):
        return source.posterior()
    raise InvalidValue("source", type(source).__name__, "must be a model, a method or a posterior")


def predict(
    source: Source,
    x: Tensor,
    num_samples: int = 5,
    *,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = True,
) -> Prediction:
    """The predictive distribution of every row of ``x``, see ``Posterior.predict``.

    Args:
        source: A posterior, a method, or a converted model (any module is accepted; without
            stochastic layers it gives one sample).
        x: Inputs ``[B, ...]``, on the model's device.
        num_samples: Posterior samples S to average; a deterministic network has only one.
        noise: ``weight`` or ``local``.
        seed: Fixes all noise.
        likelihood: For a bare model: how its outputs are to be read.
        keep_samples: For classes: keep the ``[S, B, C]`` probabilities of the samples.

    Returns:
        ``ClassPrediction`` or ``RealPrediction``. Nothing of the model is changed, nor torch's
        generator.

    Example:
        >>> bnn, x = gossamer.to_bayesian(nn.Linear(4, 3), sparsity=0.5), torch.randn(7, 4)
        >>> pred = predict(bnn, x, num_samples=16)
        >>> pred.probs.shape, pred.mutual_information.shape, pred.samples.shape
        (torch.Size([7, 3]), torch.Size([7]), torch.Size([16, 7, 3]))
    """
    posterior = posterior_of(source, likelihood)
    return posterior.predict(x, num_samples, noise=noise, seed=seed, keep_samples=keep_samples)


def predict_moments(
    source: Source,
    x: Tensor,
    *,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = False,
) -> Prediction:
    """The same approximately and in one pass, see ``Posterior.predict_moments``.

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Linear(4, 3), sparsity=0.5)
        >>> predict_moments(bnn, torch.randn(7, 4)).probs.shape
        torch.Size([7, 3])
    """
    return posterior_of(source, likelihood).predict_moments(x, keep_samples=keep_samples)
