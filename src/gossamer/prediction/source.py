"""Whatever can be asked for a prediction: a posterior, a method, a bare model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.likelihoods import Categorical, Likelihood, make_likelihood
from gossamer.nn import Noise
from gossamer.prediction.draws import NoiseDraws
from gossamer.prediction.inputs import Inputs
from gossamer.prediction.outputs import Output
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import Prediction


@runtime_checkable
class HasPosterior(Protocol):
    """A method."""

    def posterior(self) -> Posterior:
        """What it predicts with now."""
        ...


Source = nn.Module | HasPosterior | Posterior


def posterior_of(
    source: Source,
    likelihood: str | Likelihood = "categorical",
    *,
    output: Output | None = None,
    class_dim: int | None = None,
) -> Posterior:
    """A posterior as it is; that of a method; a module with its likelihood.

    Args:
        source: Any of them.
        likelihood: For a module. The name ``"categorical"`` does not tell which axis of its outputs
            holds the classes; ``gossamer.Categorical()`` does: 1, as in training.
        output: As in ``Posterior.predict``.
        class_dim: As in ``Posterior.predict``.
    """
    found = _posterior_of(source, likelihood)
    if output is None and class_dim is None:
        return found
    return found.reading(output=output, class_dim=class_dim)


def _posterior_of(source: Source, likelihood: str | Likelihood) -> Posterior:
    if isinstance(source, Posterior):
        return source
    if isinstance(source, nn.Module):
        unknown = isinstance(likelihood, str) and likelihood == Categorical.name
        spec = Categorical(class_dim=None) if unknown else make_likelihood(likelihood)
        return Posterior(NoiseDraws(source), spec)
    if isinstance(source, HasPosterior):
        return source.posterior()
    raise InvalidValue("source", type(source).__name__, "must be a model, a method or a posterior")


def predict(
    source: Source,
    x: Inputs,
    num_samples: int = 5,
    *,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = True,
    output: Output | None = None,
    class_dim: int | None = None,
) -> Prediction:
    """The predictive distribution of every row of ``x``, see ``Posterior.predict``.

    Args:
        source: A posterior, a method, or a converted model (any module is accepted; without
            stochastic layers it gives one sample).
        x: Inputs ``[B, ...]``, on the model's device. For a network of several arguments a mapping
            (or dataclass) of keyword arguments, or a tuple (or list) of positional ones: every
            tensor in it has B rows; what all rows share is ``gossamer.prediction.Shared(tensor)``.
        num_samples: Posterior samples S to average; a deterministic network has only one.
        noise: ``weight`` or ``local``.
        seed: Fixes all noise.
        likelihood: For a bare model: how its outputs are to be read.
        keep_samples: For classes: keep the ``[S, B, C]`` probabilities of the samples.
        output: Which tensor predicts where the network gives several: the name of an attribute or
            key (``"logits"``), or a function of the output.
        class_dim: For classes: the axis of the outputs that holds them, -1 for tokens
            ``[B, T, C]``. Needed for a bare model whose outputs have more than two axes, unless
            they are images of a convolutional network, ``[B, C, H, W]``.

    Returns:
        ``ClassPrediction`` or ``RealPrediction``. Nothing of the model is changed, nor torch's
        generator.

    Example:
        >>> bnn, x = gossamer.to_bayesian(nn.Linear(4, 3), sparsity=0.5), torch.randn(7, 4)
        >>> pred = predict(bnn, x, num_samples=16)
        >>> pred.probs.shape, pred.mutual_information.shape, pred.samples.shape
        (torch.Size([7, 3]), torch.Size([7]), torch.Size([16, 7, 3]))

        Two arguments, a dictionary as output, and a class per token:

        >>> class Tagger(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)
        ...
        ...     def forward(self, ids, mask):
        ...         return {"logits": self.head(self.embed(ids) * mask[..., None])}
        >>> ids = torch.randint(20, (300, 6))
        >>> tags = predict(Tagger(), {"ids": ids, "mask": ids > 0}, output="logits", class_dim=-1)
        >>> tags.probs.shape, tags.label.shape
        (torch.Size([300, 6, 3]), torch.Size([300, 6]))
    """
    posterior = posterior_of(source, likelihood, output=output, class_dim=class_dim)
    return posterior.predict(x, num_samples, noise=noise, seed=seed, keep_samples=keep_samples)


def predict_moments(
    source: Source,
    x: Tensor,
    *,
    likelihood: str | Likelihood = "categorical",
    keep_samples: bool = False,
    class_dim: int | None = None,
) -> Prediction:
    """The same approximately and in one pass, see ``Posterior.predict_moments``.

    It takes one tensor and networks that give one; ``class_dim`` is as in ``predict``.

    Example:
        >>> bnn = gossamer.to_bayesian(nn.Linear(4, 3), sparsity=0.5)
        >>> predict_moments(bnn, torch.randn(7, 4)).probs.shape
        torch.Size([7, 3])
    """
    posterior = posterior_of(source, likelihood, class_dim=class_dim)
    return posterior.predict_moments(x, keep_samples=keep_samples)
