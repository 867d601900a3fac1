"""A finishing step as JSON values and keys of tensors, for archives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.core.disagreement import VarianceLaw
from gossamer.errors import InvalidData, InvalidValue
from gossamer.prediction.conformal.record import calibration_from, describe_calibration
from gossamer.prediction.finish.finish import Finish, Head
from gossamer.prediction.finish.heads import ClassHead, Features, RealHead
from gossamer.prediction.finish.spread import Spread

_CLASS_TENSORS = ("rotation", "curvature")
_REAL_TENSORS = ("mean", "curvature", "prior", "noise")


def describe_finish(finish: Finish, key_of: Callable[[Tensor], str]) -> dict[str, Any]:
    """Its values; ``key_of`` keeps a tensor and names it."""
    found: dict[str, Any] = {
        "temperature": finish.temperature,
        "head": None if finish.head is None else _describe_head(finish.head, key_of),
    }
    if finish.spread is not None:
        spread = finish.spread
        laws = [None if law is None else [law.df, law.scale] for law in spread.laws]
        tensors = {"level": key_of(spread.level), "factor": key_of(spread.factor)}
        found["spread"] = {**tensors, "laws": laws}
    if finish.calibration is not None:
        found["calibration"] = describe_calibration(finish.calibration, key_of)
    return found


def finish_from(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Finish:
    """What ``describe_finish`` described.

    Raises:
        InvalidData: The values do not fit one another.
    """
    head = values["head"]
    known, spread = values.get("calibration"), values.get("spread")
    return Finish(
        float(values["temperature"]),
        None if head is None else _head(head, tensors),
        None if known is None else calibration_from(known, tensors),
        None if spread is None else _spread(spread, tensors),
    )


def _spread(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Spread:
    laws = values.get("laws") or []  # earlier files have none
    return Spread(
        tensors[values["level"]],
        tensors[values["factor"]],
        tuple(None if law is None else VarianceLaw(float(law[0]), float(law[1])) for law in laws),
    )


def _describe_head(head: Head, key_of: Callable[[Tensor], str]) -> dict[str, Any]:
    if not isinstance(head, ClassHead | RealHead):
        raise InvalidValue("last layer", type(head).__name__, "cannot be kept in a file")
    features = head.features
    found: dict[str, Any] = {
        "layer": features.layer,
        "basis": key_of(features.basis),
        "level": key_of(features.level),
        "rest": features.rest,
    }
    if isinstance(head, ClassHead):
        keys = {name: key_of(getattr(head, name)) for name in _CLASS_TENSORS}
        return {"kind": "class", **found, **keys, "prior": head.prior, "scale": head.scale}
    keys = {name: key_of(getattr(head, name)) for name in _REAL_TENSORS}
    return {"kind": "real", **found, **keys, "adds": head.adds}


def _head(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Head:
    features = Features(
        str(values["layer"]),
        tensors[values["basis"]],
        tensors[values["level"]],
        float(values["rest"]),
    )
    names = {"class": _CLASS_TENSORS, "real": _REAL_TENSORS}[values["kind"]]
    found: dict[str, Any] = {name: tensors[values[name]] for name in names}
    _require_fitting(features, found)
    if values["kind"] == "class":
        return ClassHead(
            features, **found, prior=float(values["prior"]), scale=float(values["scale"])
        )
    return RealHead(features, **found, adds=bool(values["adds"]))


def _require_fitting(features: Features, found: Mapping[str, Tensor]) -> None:
    count = features.basis.shape[0]
    size = found["curvature"].shape[0]
    shapes = {
        "basis": (count, features.level.shape[0]),
        "level": (features.basis.shape[1],),
        "rotation": (size, size),
        "mean": (size, count),
        "curvature": (size,),
        "prior": (size,),
        "noise": (size,),
    }
    for name, tensor in {"basis": features.basis, "level": features.level, **found}.items():
        if tuple(tensor.shape) != shapes[name]:
            raise InvalidData(name, tuple(tensor.shape), f"must have the shape {shapes[name]}")
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidData(name, None, "must be finite")
