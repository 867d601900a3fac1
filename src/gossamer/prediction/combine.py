"""From the raw outputs of S samples to a prediction, one function per likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.errors import InvalidData, InvalidValue, UnknownName
from gossamer.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction


def from_classes(likelihood: Categorical, outputs: Tensor) -> ClassPrediction:
    """Logits ``[S, B, C]`` or, for a class per position, ``[S, B, C, ...]``.

    Or with the classes elsewhere, where the likelihood says so.
    """
    axis = known_axis(likelihood, outputs)
    logits = outputs.to(_probability_dtype(outputs))
    energy = -logits.logsumexp(axis + 1).mean(0)
    return _classes(logits.softmax(axis + 1), energy, axis)


def known_axis(likelihood: Categorical, outputs: Tensor) -> int:
    """The class axis of the outputs of one sample, where ``outputs`` are ``[S, B, ...]``.

    Raises:
        InvalidData: There is none, or it is not known.
    """
    shape = tuple(outputs.shape[1:])
    if outputs.dim() < 3:
        raise InvalidData("output shape", shape, "a categorical prediction needs [B, C] logits")
    if outputs.dim() > 3 and likelihood.class_dim is None:
        raise InvalidData(
            "output shape",
            shape,
            "does not tell which axis holds the classes",
            "give class_dim=-1 for [B, T, C] (tokens), class_dim=1 for [B, C, T] (channels)",
        )
    return likelihood.class_axis(outputs.dim() - 1)


def from_logit(likelihood: Bernoulli, outputs: Tensor) -> ClassPrediction:
    """One logit per example, ``[S, B]`` or ``[S, B, 1]``, as two classes."""
    logit = outputs.reshape(outputs.shape[0], -1)
    if logit.shape[1] != outputs.shape[1]:
        raise InvalidValue(
            "output shape",
            tuple(outputs.shape[1:]),
            "a bernoulli prediction needs one logit per example",
        )
    # −log(e^0 + e^z) is log sigmoid(−z): no threshold, as softplus has one, and no overflow.
    energy = F.logsigmoid(-logit.to(_probability_dtype(logit))).mean(0)
    return _classes(torch.stack([-logit, logit], -1).sigmoid(), energy)


def from_real(likelihood: Gaussian, outputs: Tensor) -> RealPrediction:
    """Means and noise of a Gaussian likelihood."""
    mean, noise = likelihood.mean_and_noise(outputs)
    return real_prediction(mean, noise)


def from_log_rate(likelihood: Poisson, outputs: Tensor) -> RealPrediction:
    """Log rates: the noise of a Poisson count is the root of its rate."""
    rate = (_drop_column(outputs) + likelihood.offset).exp()
    return real_prediction(rate, rate.sqrt(), counts=True)


def from_student(likelihood: StudentT, outputs: Tensor) -> RealPrediction:
    """Means; scale and degrees of freedom are the likelihood's."""
    scale, df = (value.to(outputs) for value in likelihood.scale_and_df())
    std = scale * (df / (df - 2.0)).sqrt()
    return real_prediction(outputs, std.expand_as(outputs), shape=df.expand_as(outputs))


def from_dispersed(likelihood: NegativeBinomial, outputs: Tensor) -> RealPrediction:
    """Log means: the variance is μ + α μ²."""
    mean = (_drop_column(outputs) + likelihood.offset).exp()
    alpha = likelihood.alpha().to(mean).expand_as(mean)
    # √μ √(1 + α μ): the square of a large mean would overflow where its root does not.
    noise = mean.sqrt() * (1.0 + alpha * mean).sqrt()
    return real_prediction(mean, noise, counts=True, shape=alpha)


COMBINE: dict[type[Likelihood], Callable[..., Prediction]] = {
    Categorical: from_classes,
    Bernoulli: from_logit,
    Gaussian: from_real,
    Poisson: from_log_rate,
    StudentT: from_student,
    NegativeBinomial: from_dispersed,
}


def combine(likelihood: Likelihood, outputs: Tensor) -> Prediction:
    """The prediction from outputs ``[S, B, ...]`` under ``likelihood``."""
    for kind in type(likelihood).__mro__:
        if kind in COMBINE:
            return COMBINE[kind](likelihood, outputs)
    raise UnknownName("likelihood of a prediction", likelihood.name, [k.name for k in COMBINE])


def join(parts: list[Prediction], *, keep_samples: bool) -> Prediction:
    """Predictions of consecutive row blocks as one."""
    first = parts[0]
    if isinstance(first, ClassPrediction):
        blocks = [p for p in parts if isinstance(p, ClassPrediction)]
        samples = [p.samples for p in blocks if p.samples is not None]
        return ClassPrediction(
            probs=torch.cat([p.probs for p in blocks]),
            entropy=torch.cat([p.entropy for p in blocks]),
            mutual_information=torch.cat([p.mutual_information for p in blocks]),
            energy=torch.cat([p.energy for p in blocks]),
            samples=torch.cat(samples, 1) if keep_samples else None,
            class_dim=first.class_dim,
            calibration=first.calibration,
        )
    reals = [p for p in parts if isinstance(p, RealPrediction)]
    return RealPrediction(
        mean=torch.cat([p.mean for p in reals]),
        epistemic=torch.cat([p.epistemic for p in reals]),
        aleatoric=torch.cat([p.aleatoric for p in reals]),
        samples=torch.cat([p.samples for p in reals], 1),
        noise=torch.cat([p.noise for p in reals], 1),
        counts=first.counts,
        calibration=first.calibration,
        shape=_together([p.shape for p in reals], _rows),
        departures=_together([p.departures for p in reals], _rows),
    )


def merge(parts: list[Prediction]) -> Prediction:
    """Predictions of the same rows by several posteriors as one: their even mixture.

    Samples are dealt out in turn: sample s is one of posterior s mod M. Posteriors count alike: one
    with fewer samples shows each of them more often.
    """
    first = parts[0]
    if isinstance(first, ClassPrediction):
        found = [p for p in parts if isinstance(p, ClassPrediction)]
        probs = torch.stack([p.probs for p in found]).mean(0)
        entropy = torch.special.entr(probs).sum(first.class_dim)
        expected = torch.stack([p.aleatoric for p in found]).mean(0)
        samples = [p.samples for p in found if p.samples is not None]
        return ClassPrediction(
            probs=probs,
            entropy=entropy,
            # Jensen makes the difference non-negative; rounding may not.
            mutual_information=(entropy - expected).clamp(min=0.0),
            energy=torch.stack([p.energy for p in found]).mean(0),
            samples=_in_turn(samples) if len(samples) == len(found) else None,
            class_dim=first.class_dim,
        )
    reals = [p for p in parts if isinstance(p, RealPrediction)]
    means, noise = _in_turn([p.samples for p in reals]), _in_turn([p.noise for p in reals])
    shape = _together([p.shape for p in reals], _in_turn)
    return real_prediction(means, noise, counts=first.counts, shape=shape)


def _together(parts: list[Tensor | None], join: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return join(found) if found else None


def _rows(parts: list[Tensor]) -> Tensor:
    """``[S, B_k, ...]`` one after the other."""
    return torch.cat(parts, 1)


def _in_turn(samples: list[Tensor]) -> Tensor:
    """Samples ``[S_m, ...]`` of M posteriors as ``[M · S, ...]``, S a multiple of every S_m."""
    most = math.lcm(*(len(one) for one in samples))
    shown = [one.repeat(most // len(one), *(1,) * (one.dim() - 1)) for one in samples]
    return torch.stack(shown, 1).flatten(0, 1)


def _probability_dtype(outputs: Tensor) -> torch.dtype:
    return torch.float64 if outputs.dtype == torch.float64 else torch.float32


def _classes(samples: Tensor, energy: Tensor, axis: int = 1) -> ClassPrediction:
    """From probabilities ``[S, B, C, ...]`` and energies ``[B, ...]``; ``axis`` of those of one."""
    probs = samples.mean(0)
    total = torch.special.entr(probs).sum(axis)
    expected = torch.special.entr(samples).sum(axis + 1).mean(0)
    # Jensen makes the difference non-negative; rounding may not.
    return ClassPrediction(probs, total, (total - expected).clamp(min=0.0), energy, samples, axis)


def real_prediction(
    means: Tensor, noise: Tensor, *, counts: bool = False, shape: Tensor | None = None
) -> RealPrediction:
    """From the means and noise ``[S, B]`` or ``[S, B, D]`` of S samples; one column is dropped."""
    means, noise = _drop_column(means), _drop_column(noise)
    return RealPrediction(
        mean=means.mean(0),
        epistemic=means.std(0, correction=0),
        aleatoric=noise.square().mean(0).sqrt(),
        samples=means,
        noise=noise,
        counts=counts,
        shape=None if shape is None else _drop_column(shape),
    )


def _drop_column(values: Tensor) -> Tensor:
    return values.squeeze(-1) if values.dim() == 3 and values.shape[-1] == 1 else values
