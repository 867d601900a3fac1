"""The small sets that come with scikit-learn: nothing to download.

scikit-learn is imported by the reader, not with this module: whoever predicts needs a preparation
from this package, and none of the second that scikit-learn takes to import.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gossamer.data.build import RawData
from gossamer.data.split import hold_out_test

# Pixels of `digits` count the dark ones among 4 x 4 of the original scan.
_DIGITS_LARGEST = 16.0


def read_digits() -> RawData:
    """1,797 handwritten digits, 8×8 pixels of 0..16; the network sees [0, 1]."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _held_out(
        "digits",
        bunch.images,
        bunch.target,
        task="classification",
        target="digit",
        label_names=tuple(str(name) for name in bunch.target_names),
        divisor=_DIGITS_LARGEST,
    )


def read_breast_cancer() -> RawData:
    """569 tumours, 30 measurements each: malignant or benign."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return _held_out(
        "breast_cancer",
        _columns(bunch.data, bunch.feature_names),
        bunch.target,
        task="classification",
        target="diagnosis",
        label_names=tuple(str(name) for name in bunch.target_names),
    )


def read_diabetes() -> RawData:
    """442 patients, 10 measurements in their units: progression of the disease a year later."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    return _held_out(
        "diabetes",
        _columns(bunch.data, bunch.feature_names),
        bunch.target,
        task="regression",
        target="progression",
    )


def _columns(data: NDArray[Any], names: Any) -> dict[str, NDArray[Any]]:
    return {str(name): np.asarray(data[:, i]) for i, name in enumerate(names)}


def _held_out(
    name: str,
    x: dict[str, NDArray[Any]] | NDArray[Any],
    y: NDArray[Any],
    *,
    task: Literal["classification", "regression"],
    target: str,
    label_names: tuple[str, ...] | None = None,
    divisor: float | None = None,
) -> RawData:
    train, test = hold_out_test(len(y), y if task == "classification" else None)
    return RawData(
        name,
        x,
        y,
        train,
        test,
        task=task,
        target=target,
        label_names=label_names,
        divisor=divisor,
    )
