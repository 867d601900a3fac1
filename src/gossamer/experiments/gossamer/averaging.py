"""``gossamer/averaging``: how the presets of ``--quality`` were chosen, on validation images.

LeNet on Fashion-MNIST and MNIST and ResNet-20 on CIFAR-10 at 95 % sparsity, as many training rows
as in ``gossamer/uncertainty``, judged on other rows of the training file after a finishing step
from further ones: no run here looks at test points. ``--seed 100`` takes seeds that
``gossamer/uncertainty`` does not use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.gossamer.uncertainty.problems import PROBLEMS
from gossamer.experiments.table import RunTable, repeated
from gossamer.experiments.task import RunTask
from gossamer.train.quality import METHODS, NORMALISED

_SPARSE = {"sparsity": 0.95}
_FASTER = {**_SPARSE, "lr_factor": 2.0}
_AVERAGED = {**_FASTER, "average": 0.25, "lr_floor": 0.3}
_NOISY = {**_AVERAGED, "initial_curvature": 1.0}
_MEAN = {**_NOISY, "predicts": "mean"}

_LINES: tuple[tuple[str, str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("rigl", "RigL", "rigl", _SPARSE, {}),
    ("rigl-lr-2", "RigL, learning rate × 2", "rigl", _FASTER, {}),
    ("rigl-lr-3", "RigL, learning rate × 3", "rigl", {**_SPARSE, "lr_factor": 3.0}, {}),
    ("rigl-average", "RigL × 2, averaged", "rigl", _AVERAGED, {}),
    ("rigl-floor", "RigL × 2, averaged, floor 0.6", "rigl", {**_AVERAGED, "lr_floor": 0.6}, {}),
    ("ngvi", "ngvi × 2, averaged, 10 samples", "ngvi", _NOISY, {"num_samples": 10}),
    ("ngvi-floor", "ngvi × 2, floor 0.6, mean", "ngvi", {**_MEAN, "lr_floor": 0.6}, {}),
    (
        "fast",
        "ngvi × 2, averaged, mean, last layer: fast without batch normalisation",
        *METHODS["classification"],
        {"finish": "last_layer"},
    ),
    (
        "fast-normalised",
        "RigL × 2, averaged, last layer: fast with it",
        *NORMALISED,
        {"finish": "last_layer"},
    ),
)

ROWS = {"fashion": (18_000, 8_000), "mnist": (7_200, 6_800), "cifar10": (9_000, 6_000)}
"""Rows that train, as in ``gossamer/uncertainty``, and rows of which half choose, half judge."""


def tasks(scope: Scope) -> list[RunTask]:
    """The runs of all lines on all sets."""
    found: list[RunTask] = []
    for problem in PROBLEMS:
        if problem.key not in ROWS:
            continue
        training, others = ROWS[problem.key]
        base = replace(
            problem.config,
            data_dir=scope.data_dir,
            ood=(),
            checkpoint_every=problem.config.epochs,
            limit_train=training + others,
            validation_fraction=others / (training + others),
            evaluate_on="validation",
            finish="temperature",
            num_samples=1,
        )
        for key, label, method, options, settings in _LINES:
            config = replace(base, method=method, method_options=options, **settings)
            name = f"{problem.key}-{key}"
            found += repeated(name, f"{problem.label}: {label}", config, scope)
    return found


EXPERIMENT = Experiment(
    key="gossamer/averaging",
    title="How the presets were chosen: learning rate, averaging and noise on validation images",
    tasks=tasks,
    conclude=RunTable(columns=("accuracy", "nll", "ece", "temperature", "seconds")),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
)
