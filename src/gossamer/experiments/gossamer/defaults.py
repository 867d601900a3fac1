"""``gossamer/defaults``: how the defaults were chosen, from 500 to 40,000 training examples.

Every figure is of a validation part, cut from the training part: no run here looks at test points.
Digits is embedded; the lines on Fashion-MNIST appear when ``--data-dir`` holds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.earlier import earlier
from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.table import RunTable, repeated
from gossamer.experiments.task import RunTask
from gossamer.train import RunConfig

_CHANGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("default", "defaults", {}),
    ("beta-0.001", "KL weight 0.001", {"kl_weight": 0.001}),
    ("beta-0.1", "KL weight 0.1", {"kl_weight": 0.1}),
    ("beta-1", "KL weight 1", {"kl_weight": 1.0}),
    ("decay-0", "no weight decay", {"weight_decay": 0.0}),
    ("decay-1e-3", "weight decay 1e-3", {"weight_decay": 1e-3}),
    ("lr-flat", "learning rate 2e-3", {"lr": 2e-3}),
    ("prior-authors", "prior std 0.005", {"prior_std": 0.005, "posterior_std": 0.0006}),
)


def tasks(scope: Scope) -> list[RunTask]:
    """SSVI at 95 % sparsity: the defaults and single changes, per number of examples."""
    digits = RunConfig(
        data="digits",
        epochs=40,
        checkpoint_every=100,
        num_samples=10,
        validation_fraction=0.3,
        evaluate_on="validation",
    )
    sizes = [("digits-500", replace(digits, limit_train=500, epochs=100)), ("digits-1000", digits)]
    if scope.data_dir is not None:
        fashion = replace(digits, data="fashion_mnist", data_dir=scope.data_dir, batch_size=128)
        sizes += [
            ("fashion-5000", replace(fashion, limit_train=5_000, epochs=20)),
            ("fashion-40000", replace(fashion, limit_train=40_000, epochs=6)),
        ]
    found: list[RunTask] = []
    for name, config in sizes:
        for key, label, options in _CHANGES:
            settings = earlier("ssvi", {"sparsity": 0.95, **options})
            changed = replace(config, method_options=settings)
            line = (f"{name}-{key}", f"{name}, {label}", changed)
            found += repeated(*line, scope)
    return found


EXPERIMENT = Experiment(
    key="gossamer/defaults",
    title="SSVI at 95 % sparsity on validation parts: the defaults and single changes to them",
    tasks=tasks,
    conclude=RunTable(
        columns=("accuracy", "nll", "ece", "seconds"),
        reference="target",
    ),
    scales=("small",),
    repeats={"small": 2},
    jobs=2,
)
