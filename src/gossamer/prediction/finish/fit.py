"""``tempered`` and ``last_layer``: finishing steps that held-out rows decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from gossamer.nn import Noise
from gossamer.prediction.combine import known_axis
from gossamer.prediction.finish.choice import Loss, best_scale, best_temperature
from gossamer.prediction.finish.curvature import class_head
from gossamer.prediction.finish.finish import Finish, Head, require_temperature
from gossamer.prediction.finish.gather import Look, checked_rows
from gossamer.prediction.finish.loss import LabelLoss, RealLoss
from gossamer.prediction.finish.regression import real_head
from gossamer.prediction.inputs import InputRows, Inputs
from gossamer.prediction.mixing import Mixture
from gossamer.prediction.outputs import Output
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import RealPrediction
from gossamer.prediction.source import Source, posterior_of

Rows = tuple[Inputs, Tensor]
"""Inputs, as ``predict`` takes them, and targets."""

_Checked = tuple[InputRows, Tensor]


def tempered(
    source: Source,
    held_out: Rows,
    *,
    num_samples: int = 5,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    class_dim: int | None = None,
) -> Posterior:
    """The posterior at the temperature that held-out rows ask for.

    All logits are divided by one T > 0: labels stay, confidence changes. T is the one of the lowest
    negative log-likelihood of the averaged prediction on the held-out rows, between 0.05 and 20,
    under a prior that holds T near 1 or above it where rows are few and all right: they would ask
    for T = 0 otherwise.
    For real targets T widens the predictive distribution around its mean, noise and all. An earlier
    temperature is replaced; a last layer stays; a calibration goes, as it was of other answers.

    Args:
        source: A method, a converted model or a posterior.
        held_out: Inputs ``[n, ...]``, or several as in ``predict``, and targets that no step was
            trained on; some hundreds are enough for one number.
        num_samples: Posterior samples to average, best as many as you will predict with.
        noise: As in ``predict``.
        seed: Fixes all noise.
        likelihood: For a bare model: how its outputs are read.
        output: As in ``predict``; the posterior keeps it.
        class_dim: As in ``predict``; the posterior keeps it.

    Returns:
        A posterior that shares the source's tensors; ``finish.temperature`` is T.

    Raises:
        InvalidValue: There are no held-out rows, or the likelihood has nothing to scale (counts).
        InvalidData: Rows that do not fit, or are not finite.

    Example:
        >>> bnn, x = gossamer.to_bayesian(nn.Linear(4, 3), sparsity=0.5), torch.randn(40, 4)
        >>> posterior = tempered(bnn, (x, torch.arange(40) % 3))
        >>> posterior.finish.temperature > 0, posterior.predict(x).probs.shape
        (True, torch.Size([40, 3]))
    """
    posterior = posterior_of(source, likelihood, output=output, class_dim=class_dim)
    require_temperature(posterior.likelihood)
    x, y = checked_rows(held_out, posterior)
    look = Look(num_samples, noise, seed)
    with torch.no_grad():
        temperature = _temperature(posterior, x, y, look)
    return posterior.finished(replace(posterior.finish, temperature=temperature, calibration=None))


def last_layer(
    source: Source,
    held_out: Rows,
    *,
    num_data: int | None = None,
    rank: int = 64,
    rows: Rows | None = None,
    tolerance: float = 1.0,
    num_samples: int = 5,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
) -> Posterior:
    """The posterior with a Gaussian in place of the weights of its last linear layer.

    Predicting still takes one pass per sample. docs/last-layer.md has the equations.

    *Classes:* a Kronecker-factored Gaussian whose curvature is that of the held-out rows; one scale
    c of its variance and one temperature T are chosen together by held-out negative log-likelihood.
    c = 0 is temperature scaling alone, and no c is taken whose loss may be more than 0.0005 nats
    above, two standard errors to the worse: few rows give a narrow last layer. Of the scales that
    held-out rows cannot tell from the best the largest is taken.

    *Real targets:* Bayesian linear regression on the features, prior precision and noise by the
    evidence. From held-out rows alone the prior is centred at the network's own weights: few rows
    correct those only as far as they can. With ``rows`` the regression is on those, its prior is
    centred at 0, and held-out rows choose a temperature.

    A mixture gets a Gaussian for every member, and one c and one T for all. Networks with noise of
    their own get one Gaussian for all their samples. An earlier finishing step is replaced.

    Args:
        source: A method, a converted model or a posterior.
        held_out: Inputs ``[n, ...]``, or several as in ``predict``, and targets that no step was
            trained on, about a thousand.
        num_data: For classes: number of training rows; by default that of the held-out rows, which
            the scale makes up for in part.
        rank: For classes: directions of the features that are kept apart.
        rows: For real targets: the training inputs and targets.
        tolerance: For classes: standard errors (of the difference, row by row) within which scales
            count as alike, as do those within 0.0005 nats.
        num_samples: Posterior samples, best as many as you will predict with.
        noise: As in ``predict``.
        seed: Fixes all noise.
        likelihood: For a bare model: how its outputs are read.
        output: As in ``predict``; the posterior keeps it.

    Returns:
        A posterior that shares the source's tensors; ``finish_figures`` tells what was chosen.

    Raises:
        InvalidValue: There are no held-out rows, the network does not end in a linear layer, or the
            likelihood has no closed form (counts; a noise that the network gives).
        InvalidData: Rows that do not fit, or are not finite.

    Example:
        >>> net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(60, 4)
        >>> posterior = last_layer(net, (x, torch.arange(60) % 3), num_data=500)
        >>> sorted(posterior.finish_figures), posterior.predict(x).probs.shape
        (['last_layer_scale', 'temperature'], torch.Size([60, 3]))
    """
    posterior = posterior_of(source, likelihood, output=output)
    x, y = checked_rows(held_out, posterior)
    if rank < 1:
        raise InvalidValue("rank", rank, "must be at least 1")
    if not tolerance >= 0.0:
        raise InvalidValue("tolerance", tolerance, "must be 0 or more")
    if num_data is not None and num_data < 1:
        raise InvalidValue("num_data", num_data, "must be at least 1")
    look = Look(num_samples, noise, seed)
    kind = posterior.likelihood
    with torch.no_grad():
        if isinstance(kind, Gaussian):
            return _real(posterior, (x, y), rows, look)
        if isinstance(kind, Categorical | Bernoulli):
            if rows is not None:
                raise InvalidValue(
                    "rows", None, "are for real targets: classes read held-out rows only"
                )
            return _classes(posterior, (x, y), num_data or len(x), rank, tolerance, look)
    raise InvalidValue(
        "likelihood",
        kind.name,
        "has no Gaussian last layer",
        "use the posterior as it is" if kind.has_counts else "use tempered",
    )


def _classes(
    posterior: Posterior,
    held_out: _Checked,
    num_data: int,
    rank: int,
    tolerance: float,
    look: Look,
) -> Posterior:
    x, y = held_out
    seen = look.at(posterior)
    heads = [class_head(member, x, num_data, rank, sampling) for member, sampling in seen]
    members = []
    for (member, sampling), head in zip(seen, heads, strict=True):
        finish = Finish(1.0, head)
        members.append((finish, sampling.outputs(member, finish, x)))
    loss = LabelLoss(posterior.likelihood, members, y)
    loss.check()
    quick = replace(loss, dtype=torch.float32)
    scale = best_scale(quick.at, tolerance)
    temperature = best_temperature(loss.at(scale))
    return _finished(posterior, [replace(head, scale=scale) for head in heads], temperature)


def _real(posterior: Posterior, held_out: _Checked, rows: Rows | None, look: Look) -> Posterior:
    given = held_out if rows is None else checked_rows(rows, posterior)
    heads = [
        real_head(member, given, sampling, adds=rows is None)
        for member, sampling in look.at(posterior)
    ]
    found = _finished(posterior, heads, 1.0)
    if rows is None:
        return found
    # Features were trained on the rows, so that their noise is too small: held-out rows tell.
    return _finished(posterior, heads, _temperature(found, *held_out, look))


def _finished(posterior: Posterior, heads: Sequence[Head], temperature: float) -> Posterior:
    """With a last layer for every member, and one temperature."""
    if not isinstance(posterior, Mixture):
        return posterior.finished(Finish(temperature, heads[0]))
    members = [
        member.finished(Finish(1.0, head))
        for member, head in zip(posterior.members, heads, strict=True)
    ]
    return posterior.with_members(members).finished(Finish(temperature))


def _temperature(posterior: Posterior, x: InputRows, y: Tensor, look: Look) -> float:
    """The best one for all, last layers and members' own temperatures as they are."""
    loss: Loss
    if posterior.likelihood.has_labels:
        mixed = isinstance(posterior, Mixture)
        members = []
        likelihood = posterior.likelihood
        for member, sampling in look.at(posterior):
            finish = member.finish if mixed else replace(member.finish, temperature=1.0)
            outputs = sampling.outputs(member, finish, x)
            likelihood, outputs = _classes_first(member.read_as(outputs, x), outputs)
            members.append((finish, outputs))
        labels = LabelLoss(likelihood, members, y)
        labels.check()
        loss = labels
    else:
        plain = posterior.finished(replace(posterior.finish, temperature=1.0))
        found = plain.of_rows(x, look.num_samples, noise=look.noise, seed=look.seed)
        assert isinstance(found, RealPrediction)
        if found.mean.shape != y.shape and found.mean.shape != y.squeeze(-1).shape:
            rule = f"must fit the prediction's shape {tuple(found.mean.shape)}"
            raise InvalidData("target shape", tuple(y.shape), rule)
        loss = RealLoss(found, y)
    return best_temperature(loss)


def _classes_first(likelihood: Likelihood, outputs: Tensor) -> tuple[Likelihood, Tensor]:
    """Outputs ``[S, n, C, ...]``, which is how a loss reads them, and the likelihood of such."""
    if not isinstance(likelihood, Categorical):
        return likelihood, outputs
    axis = known_axis(likelihood, outputs)
    return likelihood.at(1), outputs.movedim(axis + 1, 2)
