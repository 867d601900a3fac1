"""A calibration as JSON values and the key of a tensor, for archives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InvalidData
from gossamer.prediction.conformal.classes import ClassCalibration, LabelScore
from gossamer.prediction.conformal.rank import ordered_scores
from gossamer.prediction.conformal.real import KINDS, RealCalibration

Calibration = RealCalibration | ClassCalibration


def describe_calibration(found: Calibration, key_of: Callable[[Tensor], str]) -> dict[str, Any]:
    """Its values; ``key_of`` keeps a tensor and names it."""
    if isinstance(found, RealCalibration):
        return {"kind": found.kind, "scores": key_of(found.scores)}
    score = found.score
    return {
        "kind": score.kind,
        "scores": key_of(found.scores),
        "penalty": score.penalty,
        "free": score.free,
        "randomised": found.randomised,
    }


def calibration_from(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Calibration:
    """What ``describe_calibration`` described.

    Raises:
        InvalidData: The scores are not ordered, or not finite.
        UnknownName: There is no such kind.
    """
    scores, kind = tensors[values["scores"]], str(values["kind"])
    if scores.dtype != torch.float64 or not torch.equal(ordered_scores(scores), scores):
        raise InvalidData("scores", None, "must be float64, from the smallest on")
    if kind in KINDS:
        if kind == "symmetric" and bool((scores < 0).any()):
            raise InvalidData("scores", None, "must not be negative: they are absolute values")
        return RealCalibration(scores, kind == "symmetric")
    if scores.dim() != 1:
        raise InvalidData("scores", tuple(scores.shape), "must be [n]: one label for each row")
    score = LabelScore(kind, float(values["penalty"]), int(values["free"]))
    return ClassCalibration(scores, score, bool(values["randomised"]))
