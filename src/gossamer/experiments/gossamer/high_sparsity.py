"""``gossamer/high-sparsity``: initial noise and weight decay at 99 % sparsity, SSVI and RigL alike.

LeNet on 20,000 images of Fashion-MNIST as in ``li2024ssvi/fashion``, judged on 10,000 other images
of the training file: no run here looks at test points.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.earlier import earlier
from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.li2024ssvi.fashion import base_config
from gossamer.experiments.table import RunTable, repeated
from gossamer.experiments.task import RunTask

_LINES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("ssvi", "SSVI, defaults", "ssvi", {}),
    ("ssvi-share-0.1", "SSVI, initial σ a tenth of the prior's", "ssvi", {"posterior_share": 0.1}),
    ("ssvi-decay-1e-4", "SSVI, weight decay 1e-4", "ssvi", {"weight_decay": 1e-4}),
    ("ssvi-decay-1e-3", "SSVI, weight decay 1e-3", "ssvi", {"weight_decay": 1e-3}),
    ("rigl", "RigL, defaults", "rigl", {}),
    ("rigl-decay-1e-4", "RigL, weight decay 1e-4", "rigl", {"weight_decay": 1e-4}),
    ("rigl-decay-1e-3", "RigL, weight decay 1e-3", "rigl", {"weight_decay": 1e-3}),
)


def tasks(scope: Scope) -> list[RunTask]:
    """The runs of all lines."""
    base = replace(
        base_config(scope.data_dir),
        ood=(),
        noise="weight",
        validation_fraction=1 / 3,
        evaluate_on="validation",
    )
    found: list[RunTask] = []
    for key, label, method, options in _LINES:
        settings = earlier(method, {"sparsity": 0.99, **options})
        config = replace(base, method=method, method_options=settings)
        found += repeated(key, label, config, scope)
    return found


EXPERIMENT = Experiment(
    key="gossamer/high-sparsity",
    title="99 % sparsity on validation images: initial noise and weight decay",
    tasks=tasks,
    conclude=RunTable(
        columns=("accuracy", "nll", "ece", "seconds"),
        reference="target",
    ),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
)
