"""``gossamer/averaging``: how the presets of ``--quality`` were chosen, on validation images.

LeNet on Fashion-MNIST and MNIST at 95 % sparsity, judged on a third of the training file after a
temperature from another part of it: no run here looks at test points. ``--seed 100`` takes seeds
that ``gossamer/uncertainty`` does not use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.gossamer.uncertainty.problems import PROBLEMS
from gossamer.experiments.table import RunTable, repeated
from gossamer.experiments.task import RunTask

_SPARSE = {"sparsity": 0.95}
_AVERAGED = {**_SPARSE, "average": 0.25, "lr_floor": 0.6}

_LINES: tuple[tuple[str, str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("rigl", "RigL", "rigl", _SPARSE, {}),
    ("rigl-average", "RigL, averaged", "rigl", _AVERAGED, {}),
    ("rigl-floor-0.3", "RigL, averaged, floor 0.3", "rigl", {**_AVERAGED, "lr_floor": 0.3}, {}),
    ("rigl-floor-1", "RigL, averaged, floor 1", "rigl", {**_AVERAGED, "lr_floor": 1.0}, {}),
    ("ngvi", "ngvi", "ngvi", _SPARSE, {"num_samples": 10}),
    (
        "ngvi-average",
        "ngvi, averaged",
        "ngvi",
        {**_AVERAGED, "initial_curvature": 1.0},
        {"num_samples": 10},
    ),
    ("shared-2", "2 members that share 5 %", "rigl", _AVERAGED, {"members": 2}),
    (
        "each-2",
        "2 members of 5 % each",
        "rigl",
        _AVERAGED,
        {"members": 2, "member_sparsity": 0.95},
    ),
)


def tasks(scope: Scope) -> list[RunTask]:
    """The runs of all lines on both sets."""
    found: list[RunTask] = []
    for problem in PROBLEMS:
        if problem.key not in ("fashion", "mnist"):
            continue
        base = replace(
            problem.config,
            data_dir=scope.data_dir,
            ood=(),
            checkpoint_every=problem.config.epochs,
            validation_fraction=1 / 3,
            evaluate_on="validation",
            finish="temperature",
        )
        for key, label, method, options, settings in _LINES:
            config = replace(base, method=method, method_options=options, **settings)
            name = f"{problem.key}-{key}"
            found += repeated(name, f"{problem.label}: {label}", config, scope)
    return found


EXPERIMENT = Experiment(
    key="gossamer/averaging",
    title="How the presets were chosen: averaged weights and members on validation images",
    tasks=tasks,
    conclude=RunTable(columns=("accuracy", "nll", "ece", "temperature", "seconds")),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
)
