"""How well an uncertainty does its work: finding foreign inputs, choosing answers, its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from gossamer.errors import InvalidValue
from gossamer.metrics import aurc, auroc, excess_aurc, ood_metrics
from gossamer.prediction import ClassPrediction
from gossamer.train.answers import Answers, tells

_SCORES = ("mutual_information", "energy", "epistemic")


def check_ood_names(names: Iterable[str]) -> None:
    """Raise for a set whose figures would have the key of a score's: ``auroc_energy``.

    Raises:
        InvalidValue: Such a name, anywhere but in the first place, which has plain keys.
    """
    for name in list(names)[1:]:
        if name in _SCORES:
            raise InvalidValue("ood", name, "is also the name of a score", "name this set first")


def detection(
    inside: Mapping[str, Tensor], outside: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, float]:
    """How well each score tells inputs of other sets from one's own.

    Args:
        inside: ``uncertainties`` of the part's own rows.
        outside: The same of every other set, by its name.

    Returns:
        ``auroc``, ``aupr`` and ``fpr95`` by the first score (entropy, or predicted std), and
        ``auroc_`` with the name of every other that is not 0 everywhere, as it is without a
        posterior; for all but the first set with ``_`` and its name at the end.
    """
    customary, *others = inside
    found: dict[str, float] = {}
    for place, (name, scores) in enumerate(outside.items()):
        suffix = "" if place == 0 else f"_{name}"
        figures = ood_metrics(inside[customary], scores[customary])
        for other in others:
            if tells(other, inside[other], scores[other]):
                figures[f"auroc_{other}"] = auroc(inside[other], scores[other])
        found |= {key + suffix: value for key, value in figures.items()}
    return found


def selection(answers: Answers) -> dict[str, float]:
    """What is lost where the surest answers come first.

    Returns:
        ``aurc`` and its excess over the best order, ``eaurc``, by confidence (for real targets by
        the predicted std); ``aurc_`` with the name of every other score.
    """
    (_, customary), *others = answers.confidences.items()
    return {
        "aurc": aurc(customary, answers.loss),
        "eaurc": excess_aurc(customary, answers.loss),
        **{f"aurc_{name}": aurc(values, answers.loss) for name, values in others},
    }


def decomposition(answers: Answers) -> dict[str, float]:
    """``epistemic`` and ``aleatoric`` of real targets: root mean square, in original units.

    Their squares add up to the mean predicted variance.
    """
    if isinstance(answers.prediction, ClassPrediction):
        return {}
    found = answers.original
    return {
        "epistemic": float(found.epistemic.square().mean().sqrt()),
        "aleatoric": float(found.aleatoric.square().mean().sqrt()),
    }
