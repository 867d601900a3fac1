"""``calibrated`` and ``calibrated_by_scores``: the finishing step that held-out rows guarantee."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gossamer.errors import InvalidData, InvalidValue
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from gossamer.nn import Noise
from gossamer.prediction.conformal.classes import KINDS as LABEL_KINDS
from gossamer.prediction.conformal.classes import ClassCalibration, LabelScore
from gossamer.prediction.conformal.real import RealCalibration, standardised
from gossamer.prediction.conformal.scale import std_factor
from gossamer.prediction.finish.finish import Finish
from gossamer.prediction.finish.fit import Rows, tempered
from gossamer.prediction.finish.gather import Look, checked_rows
from gossamer.prediction.outputs import Output
from gossamer.prediction.posterior import Posterior
from gossamer.prediction.prediction import ClassPrediction, RealPrediction
from gossamer.prediction.source import Source, posterior_of


def calibrated(
    source: Source,
    held_out: Rows,
    *,
    coverage: float = 0.9,
    score: str | LabelScore | None = None,
    generator: torch.Generator | None = None,
    num_samples: int = 5,
    noise: Noise = "weight",
    seed: int = 0,
    likelihood: str | Likelihood = "categorical",
    output: Output | None = None,
    class_dim: int | None = None,
) -> Posterior:
    """The posterior whose intervals, or label sets, hold as often as they say.

    *Real targets:* ``interval``, ``quantile`` and ``cdf`` of its predictions come from the
    standardised residuals of the held-out rows, at every coverage that so many rows allow. ``std``
    and the mixture behind it are widened by the temperature that ``tempered`` finds from the same
    rows; one factor for all rows changes no interval, so that the guarantee is untouched.

    *Classes:* ``label_set`` of its predictions. The temperature stays what it is: choose it with
    ``tempered`` and *other* rows first, as rows that chose something no longer guarantee it.

    docs/conformal.md says what is guaranteed. An earlier calibration is replaced.

    Args:
        source: A method, a converted model or a posterior.
        held_out: Inputs ``[n, ...]``, or several as in ``predict``, and targets. Nothing was
            trained, stopped or chosen by them.
        coverage: What there must be rows enough for: 9 for 0.9, 19 for 0.95. Other coverages may be
            asked of predictions, as far as the rows go.
        score: Real targets: ``symmetric`` (default) or ``signed``, each tail by itself, which needs
            about twice the rows. Classes: ``lac`` (default), ``aps``, ``raps`` or a ``LabelScore``.
        generator: For classes: makes ``aps`` and ``raps`` exact by random numbers, which
            ``label_set`` then asks for too.
        num_samples: Posterior samples to average. Predict with as many, and with this noise and
            seed: other averages have other residuals.
        noise: As in ``predict``.
        seed: As in ``predict``.
        likelihood: For a bare model: how its outputs are read.
        output: As in ``predict``; the posterior keeps it.
        class_dim: As in ``predict``; the posterior keeps it.

    Returns:
        A posterior that shares the source's tensors; ``finish.calibration`` holds the scores.

    Raises:
        InvalidValue: There are too few held-out rows for ``coverage``, or targets are counts.
        InvalidData: Rows that do not fit, or are not finite.

    Example:
        >>> net, x = nn.Linear(3, 1), torch.randn(200, 3)
        >>> y = net(x).detach() + torch.randn(200, 1)
        >>> sure = calibrated(net, (x[:100], y[:100]), likelihood="gaussian")
        >>> low, high = sure.predict(x[100:]).interval(0.9)
        >>> inside = (low <= y[100:, 0]) & (y[100:, 0] <= high)
        >>> 0.8 < float(inside.double().mean()) <= 1.0
        True
    """
    posterior = posterior_of(source, likelihood, output=output, class_dim=class_dim)
    kind = posterior.likelihood
    look = Look(num_samples, noise, seed)
    if isinstance(kind, Gaussian):
        chosen = _real_kind(score, generator)
        checked_rows(held_out, posterior)
        RealCalibration.of(torch.zeros(len(held_out[1])), chosen).require(coverage)
        scaled = tempered(posterior, held_out, num_samples=num_samples, noise=noise, seed=seed)
        z = _residuals(scaled, held_out, look)
        return _finished(scaled, RealCalibration.of(z, chosen), coverage)
    if isinstance(kind, Categorical | Bernoulli):
        return _classes(posterior, held_out, coverage, _label_score(score), generator, look)
    raise _no_calibration(kind)


def calibrated_by_scores(
    source: Source,
    z: Tensor,
    *,
    coverage: float = 0.9,
    score: str = "symmetric",
    likelihood: str | Likelihood = "gaussian",
) -> Posterior:
    """The posterior calibrated by residuals that are known already, as of training by folds.

    ``std`` is scaled by the factor of the largest likelihood of ``z`` as Gaussian residuals, with a
    weak prior about 1; ``interval``, ``quantile`` and ``cdf`` are as after ``calibrated``.

    The guarantee is that of where ``z`` comes from. Residuals of this very posterior on rows it
    never saw: as of ``calibrated``. Out-of-fold residuals of *other* networks, pooled: none without
    assumptions; coverage is near the nominal one as far as this posterior errs on new rows as the
    fold networks did (a refit on all rows errs a little less, so that intervals are a little wide).
    ``gossamer.prediction.conformal.cross.cv_plus`` has a guarantee there.

    Args:
        source: A method, a converted model or a posterior, of real targets.
        z: (y - mean)/std, ``[n]`` or ``[n, D]``, each by a prediction at the temperature that
            ``source`` has now.
        coverage: What there must be rows enough for, as in ``calibrated``.
        score: ``symmetric`` or ``signed``, as in ``calibrated``.
        likelihood: For a bare model: how its outputs are read.

    Returns:
        A posterior that shares the source's tensors.

    Raises:
        InvalidValue: There are too few scores for ``coverage``, or targets are not real numbers.
        InvalidData: A score is not finite, or all are 0.

    Example:
        >>> wide = calibrated_by_scores(nn.Linear(3, 1), 2.0 * torch.randn(500))
        >>> wide.finish.calibration.rows, 1.5 < wide.finish.temperature < 2.5
        (500, True)
    """
    posterior = posterior_of(source, likelihood)
    if not isinstance(posterior.likelihood, Gaussian):
        raise _no_calibration(posterior.likelihood, "of residuals")
    if z.dim() not in (1, 2):
        raise InvalidData("z", tuple(z.shape), "must be [n] or [n, D]")
    kind = _real_kind(score, None)
    place = posterior.device
    given = z.detach().to(place)
    RealCalibration.of(given, kind).require(coverage)
    factor = std_factor(given)
    finish = replace(posterior.finish, temperature=factor * posterior.finish.temperature)
    found = RealCalibration.of(given.double() / factor, kind)
    return posterior.finished(replace(finish, calibration=found))


def _classes(
    posterior: Posterior,
    held_out: Rows,
    coverage: float,
    score: LabelScore,
    generator: torch.Generator | None,
    look: Look,
) -> Posterior:
    plain = posterior.finished(replace(posterior.finish, calibration=None))
    x, y = checked_rows(held_out, plain)
    found = plain.of_rows(x, look.num_samples, noise=look.noise, seed=look.seed, keep_samples=False)
    assert isinstance(found, ClassPrediction)
    if found.probs.dim() != 2:
        raise InvalidData(
            "probabilities",
            tuple(found.probs.shape),
            "must be [B, C]: positions of one row are not exchangeable with one another",
            "calibrate answers of one label per row",
        )
    return _finished(plain, ClassCalibration.of(found.probs, y, score, generator), coverage)


def _residuals(posterior: Posterior, held_out: Rows, look: Look) -> Tensor:
    """(y - mean)/std of what ``predict`` answers for the held-out rows."""
    x, y = checked_rows(held_out, posterior)
    found = posterior.of_rows(x, look.num_samples, noise=look.noise, seed=look.seed)
    assert isinstance(found, RealPrediction)
    return standardised(found.mean, found.std, y)


def _finished(
    posterior: Posterior, calibration: RealCalibration | ClassCalibration, coverage: float
) -> Posterior:
    calibration.require(coverage)
    finish: Finish = replace(posterior.finish, calibration=calibration)
    return posterior.finished(finish)


def _real_kind(score: str | LabelScore | None, generator: torch.Generator | None) -> str:
    if generator is not None:
        raise InvalidValue("generator", None, "is for sets of labels")
    if score is None:
        return "symmetric"
    if isinstance(score, LabelScore) or score in LABEL_KINDS:
        rule = "is for labels, and targets are real numbers"
        raise InvalidValue("score", str(score), rule, "choose symmetric or signed")
    return score


def _label_score(score: str | LabelScore | None) -> LabelScore:
    if score is None:
        return LabelScore()
    return score if isinstance(score, LabelScore) else LabelScore(score)


def _no_calibration(likelihood: Likelihood, how: str = "") -> InvalidValue:
    return InvalidValue(
        "likelihood",
        likelihood.name,
        f"has no calibration {how}".rstrip() + ": real targets have intervals, labels have sets",
        "use the posterior as it is",
    )
