"""``judged``: members calibrated by their answers to rows that they left out of training.

Every training row was left out of T of the M members (``gossamer.inference.leaving``). The average
of those T answers is honest, so all training rows serve as held-out ones, and none is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian
from gossamer.nn import Noise
from gossamer.ops import fold_seed
from gossamer.prediction.combine import from_classes, real_prediction
from gossamer.prediction.finish.choice import best_temperature
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finish.loss import LabelLoss
from gossamer.prediction.finish.spread import fit_spread
from gossamer.prediction.mixing import Mixture
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import ClassPrediction, Prediction, RealPrediction


@dataclass(frozen=True, eq=False)
class Judged:
    """Members, calibrated, and how they did on the rows that they left out.

    Attributes:
        posterior: The mixture with its finishing step.
        prediction: Of the training rows, each by the T members that left it out: a little worse
            than that of all members, and honest.
        figures: ``left_out_rmse`` of all members together as it is expected (in units of the
            targets), or ``left_out_nll`` and ``left_out_accuracy`` of the averages over T.
        standardised: For real targets: the residual of each row on the scale of a standard normal
            law, by the distribution that the members that left it out predict, ``[n, D]``; ``None``
            for classes.
    """

    posterior: Posterior
    prediction: Prediction
    figures: dict[str, float]
    standardised: Tensor | None = None


def judged(
    posterior: Mixture,
    rows: tuple[Tensor, Tensor],
    left_out: Tensor,
    *,
    num_samples: int = 1,
    noise: Noise = "weight",
    seed: int = 0,
) -> Judged:
    """Calibrate members by the training rows that each of them left out.

    *Real targets:* the variance of a prediction is level² + factor² · disagreement
    (:class:`Spread`), both fitted to the residuals of left-out rows, then multiplied by what
    averaging all M members instead of T removes from the squared error (:func:`averaged_error`).
    The disagreement of T members is a worse estimate than that of M: the fit knows by how much.

    *Classes:* one temperature for all members, by the left-out rows' negative log-likelihood.

    Args:
        posterior: The members' mixture; member k is number k.
        rows: Training inputs ``[n, ...]`` and targets.
        left_out: Members that left out each row, int64 ``[n, T]``.
        num_samples: Posterior samples of each member.
        noise: As in ``predict``.
        seed: Fixes all noise.

    Raises:
        InvalidValue: T is 1, counts, or members that read a noise from their network.
        InvalidData: Numbers that are not those of members.
    """
    x, y = rows
    likelihood, members = posterior.likelihood, posterior.members
    if left_out.dim() != 2 or len(left_out) != len(x) or left_out.shape[1] < 2:
        raise InvalidValue(
            "left_out", tuple(left_out.shape), f"must be [{len(x)}, T] with T of 2 or more"
        )
    if int(left_out.min()) < 0 or int(left_out.max()) >= len(members):
        raise InvalidData("left_out", None, f"must hold numbers of the {len(members)} members")
    answers = _answers(posterior, x, left_out, num_samples, noise, seed)
    if isinstance(likelihood, Categorical | Bernoulli):
        return _judged_classes(posterior, answers, y.cpu())
    if not isinstance(likelihood, Gaussian) or likelihood.noise_std == "head":
        raise InvalidValue(
            "likelihood",
            likelihood.name,
            "has no one noise level that left-out rows could tell",
            "use gaussian with noise_std=learn, or leave_out=0",
        )
    return _judged_reals(posterior, answers, y.cpu())


def averaged_error(alone: float, together: float, times: int, members: int) -> float:
    """Mean squared error of all M members together, from those that left a row out.

    Members are exchangeable, so the expected squared error of the average of k of them is
    B + W / k: B is what all share, W what averaging removes. Errors of one and of T members give
    both.

    Args:
        alone: Mean squared error of single members on rows that they left out.
        together: That of the average of the T members that left a row out.
        times: T > 1.
        members: M that will predict together.

    Returns:
        B + W / M; no larger than ``together`` and, whatever the noise of the two errors, no smaller
        than half of it.

    Example:
        >>> round(averaged_error(alone=3.0, together=2.0, times=2, members=10), 9)
        1.2
    """
    removed = (alone - together) / (1.0 - 1.0 / times)
    found = alone - removed + removed / members
    return float(min(max(found, 0.5 * together), together))


def _answers(
    posterior: Mixture, x: Tensor, left_out: Tensor, num_samples: int, noise: Noise, seed: int
) -> Tensor:
    """Means, or log-probabilities, of the T members that left each row out: ``[T, n, D]``."""
    found: Tensor | None = None
    for number, member in enumerate(posterior.members):
        places = (left_out.cpu() == number).nonzero()
        if not len(places):
            continue
        which = places[:, 0]
        count = min(num_samples, member.max_samples or num_samples)
        inputs = x.index_select(0, which.to(x.device)).to(member.device)
        answer = member.predict(inputs, count, noise=noise, seed=fold_seed(seed, number))
        if isinstance(answer, ClassPrediction):
            values = answer.probs.double().clamp(min=torch.finfo(torch.float64).tiny).log()
        else:
            values = answer.mean.double()
        values = values.cpu().reshape(len(which), -1)
        if found is None:
            found = values.new_full((left_out.shape[1], len(x), values.shape[1]), torch.nan)
        found[places[:, 1], which] = values
    if found is None or not bool(torch.isfinite(found).all()):
        raise InvalidData("left_out", None, "must name, for every row, members that answer it")
    return found


def _judged_classes(posterior: Mixture, answers: Tensor, y: Tensor) -> Judged:
    # Log-probabilities are logits up to a constant per row, which a softmax does not see.
    loss = LabelLoss(Categorical(), [(Finish(), answers)], y.long())
    loss.check()
    temperature = best_temperature(loss)
    found = from_classes(Categorical(), answers / temperature)
    figures = {
        "left_out_nll": float(loss.rows(temperature).mean()),
        "left_out_accuracy": float((found.label == y).double().mean()),
    }
    finish = replace(posterior.finish, temperature=temperature)
    return Judged(posterior.finished(finish), found, figures)


def _judged_reals(posterior: Mixture, answers: Tensor, y: Tensor) -> Judged:
    times, rows, columns = answers.shape
    target = y.double().reshape(rows, columns)
    together = answers.mean(0)
    residual, between = target - together, answers.var(0)
    spread = fit_spread(residual, between, times - 1)
    error_alone = (target - answers).square().mean((0, 1))
    error_together = residual.square().mean(0)
    expected = torch.tensor(
        [
            averaged_error(float(a), float(t), times, len(posterior.members))
            for a, t in zip(error_alone, error_together, strict=True)
        ],
        dtype=torch.float64,
    )
    gain = (expected / error_together.clamp(min=torch.finfo(torch.float64).tiny)).sqrt()
    finish = Finish(spread=spread.scaled(torch.where(error_together > 0.0, gain, 1.0)))
    mean, apart = (each.squeeze(1) if columns == 1 else each for each in (together, between))
    plain = real_prediction(mean[None], torch.ones_like(mean)[None])
    found = spread.around(plain, apart, times - 1)
    return Judged(
        posterior.finished(finish),
        found,
        {"left_out_rmse": float(expected.mean().sqrt())},
        _normal_scores(found, target),
    )


def _normal_scores(prediction: RealPrediction, target: Tensor) -> Tensor:
    """The target's place in its distribution, as that of a standard normal law: ``[n, D]``."""
    rows, columns = target.shape
    mean, noise = prediction.mean.double(), prediction.noise.double()
    residual = target - mean.reshape(rows, columns)
    # By the nearer tail: close to 1 a probability has no digits left. Not by torch's ndtr, which is
    # 0 from 8 standard deviations on.
    distance = residual.abs() / noise.reshape(len(noise), rows, columns)
    tail = 0.5 * torch.special.erfc(distance * math.sqrt(0.5)).mean(0)
    least = torch.finfo(torch.float64).tiny
    score: Tensor = -residual.sign() * torch.special.ndtri(tail.clamp(min=least))
    return score
