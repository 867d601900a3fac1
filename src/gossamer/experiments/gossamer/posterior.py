"""``gossamer/posterior``: how prior, first noise, KL weight and decay of SSVI and VI were chosen.

SSVI at 95 % and dense VI, as many training rows as in ``gossamer/uncertainty``, judged on other
rows of the training file and on inputs of another kind: no run here looks at test points of the
sets themselves. ``--seed 100`` takes seeds that ``gossamer/uncertainty`` does not use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.earlier import EARLIER
from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.gossamer.averaging import ROWS
from gossamer.experiments.gossamer.uncertainty.problems import PROBLEMS
from gossamer.experiments.table import RunTable, repeated
from gossamer.experiments.task import RunTask

_OLD = {**EARLIER, "kl_weight": 0.01, "weight_decay": 3e-4}
_NOISY = {"posterior_share": 0.3}
_WIDE = {**EARLIER, **_NOISY, "kl_weight": 0.1, "weight_decay": 0.0}

_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("old", "β 0.01, σ₀ 0.03, decay 3e-4", _OLD),
    ("old-lr", "the same, twice the learning rate", {**_OLD, "lr_factor": 2.0}),
    ("share", "β 0.01, σ₀ 0.3, decay 3e-4", {**_OLD, **_NOISY}),
    ("share-lr", "the same, twice the learning rate", {**_OLD, **_NOISY, "lr_factor": 2.0}),
    ("beta", "β 0.1, σ₀ 0.3, decay 3e-4", {**_WIDE, "weight_decay": 3e-4}),
    ("wide", "β 0.1, σ₀ 0.3, no decay", _WIDE),
    ("wide-lr", "the same, twice the learning rate", {**_WIDE, "lr_factor": 2.0}),
    ("middle", "β 0.03, σ₀ 0.3, no decay", {**_WIDE, "kl_weight": 0.03}),
    ("empirical", "β 0.1, σ₀ 0.3, no decay, empirical prior", {**_WIDE, "prior_std": "empirical"}),
)
_METHODS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ssvi", "SSVI 95 %", {"sparsity": 0.95}),
    ("dense_vi", "dense VI", {}),
)
_SETS = ("digits", "mnist", "fashion")

_TABLES = ("energy", "concrete")
_TABLE_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = tuple(
    (f"beta-{beta:g}", f"β {beta:g}", {"kl_weight": beta}) for beta in (1.0, 0.5, 0.3, 0.1)
)
"""Real targets: the KL weight alone, all else as it is by default."""


def tasks(scope: Scope) -> list[RunTask]:
    """The runs of all lines of both methods on all sets."""
    found: list[RunTask] = []
    for problem in PROBLEMS:
        if problem.key not in (*_SETS, *_TABLES):
            continue
        lines = _TABLE_LINES if problem.key in _TABLES else _LINES
        base = replace(
            problem.config,
            data_dir=scope.data_dir,
            checkpoint_every=problem.config.epochs,
            evaluate_on="validation",
            num_samples=10,
        )
        if problem.key in ROWS:
            training, others = ROWS[problem.key]
            base = replace(
                base,
                limit_train=training + others,
                validation_fraction=others / (training + others),
            )
        else:
            base = replace(base, validation_fraction=0.3)
        for method, name, own in _METHODS:
            for key, label, options in lines:
                config = replace(base, method=method, method_options={**own, **options})
                line = f"{problem.key}-{method}-{key}"
                found += repeated(line, f"{problem.label}: {name}, {label}", config, scope)
    return found


EXPERIMENT = Experiment(
    key="gossamer/posterior",
    title="How the posterior of SSVI and dense VI was chosen: KL weight, first noise, decay, prior",
    tasks=tasks,
    conclude=RunTable(
        columns=(
            *("accuracy", "rmse", "nll", "ece", "coverage"),
            *("auroc", "auroc_mutual_information", "seconds"),
        )
    ),
    scales=("small",),
    repeats={"small": 2},
    jobs=2,
)
