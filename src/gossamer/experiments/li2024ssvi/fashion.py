"""``li2024ssvi/fashion``: Fashion-MNIST with LeNet, the comparison of the paper at laptop size.

20,000 training images, equal epochs for every method, test metrics in both noise modes, and
notMNIST as out-of-distribution data. The paper reports no such table; its claims are the targets:
SSVI close to dense VI at 95 % sparsity (Table 1), not below RigL at high sparsity (Fig. 2, left).
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import Any

from gossamer.experiments.earlier import earlier
from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.table import Check, Results, RunTable, repeated
from gossamer.experiments.task import RunTask
from gossamer.train import RunConfig

_LINES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("dense_vi", "dense VI", "dense_vi", {}),
    ("ssvi-90", "SSVI 90 %", "ssvi", {"sparsity": 0.90}),
    ("ssvi-95", "SSVI 95 %", "ssvi", {"sparsity": 0.95}),
    ("ssvi-99", "SSVI 99 %", "ssvi", {"sparsity": 0.99}),
    ("rigl-95", "RigL 95 %", "rigl", {"sparsity": 0.95}),
    ("rigl-99", "RigL 99 %", "rigl", {"sparsity": 0.99}),
    ("sgd", "SGD, dense", "sgd", {}),
)


def base_config(data_dir: str | None) -> RunConfig:
    """What all rows share."""
    return RunConfig(
        data="fashion_mnist",
        data_dir=data_dir,
        model="lenet",
        limit_train=20_000,
        epochs=10,
        batch_size=128,
        checkpoint_every=5,
        noise="both",
        ood=("notmnist",),
    )


def tasks(scope: Scope) -> list[RunTask]:
    """The runs of all seven lines."""
    found: list[RunTask] = []
    for key, label, method, options in _LINES:
        settings = earlier(method, options)
        config = replace(base_config(scope.data_dir), method=method, method_options=settings)
        found += repeated(key, label, config, scope)
    return found


def _close_to_dense(results: Results) -> tuple[bool, str]:
    gap = results["dense_vi"].mean("accuracy") - results["ssvi-95"].mean("accuracy")
    return gap <= 0.015, f"dense VI - SSVI 95 % = {100 * gap:.2f} points"


def _not_below_rigl(results: Results) -> tuple[bool, str]:
    ours, theirs = results["ssvi-99"], results["rigl-99"]
    gap = ours.mean("accuracy") - theirs.mean("accuracy")
    errors = [line.values["accuracy"].standard_error or 0.0 for line in (ours, theirs)]
    error = hypot(*errors)
    return gap >= -error, f"SSVI 99 % - RigL 99 % = {100 * gap:.2f} ± {100 * error:.2f} points"


def _lower_nll(results: Results) -> tuple[bool, str]:
    ours, theirs = results["ssvi-99"].mean("nll"), results["rigl-99"].mean("nll")
    return ours < theirs, f"SSVI {ours:.4f}, RigL {theirs:.4f}"


EXPERIMENT = Experiment(
    key="li2024ssvi/fashion",
    title="Fashion-MNIST, LeNet, 20,000 training images",
    tasks=tasks,
    conclude=RunTable(
        columns=(
            "accuracy",
            "nll",
            "ece",
            "marginal_calibration_error",
            "auroc",
            "accuracy_local",
            "nll_local",
            "ece_local",
            "marginal_calibration_error_local",
            "auroc_local",
            "nnz",
            "sparsity",
            "checkpoint_bytes",
            "seconds",
        ),
        checks=(
            Check("SSVI at 95 % within 1.5 points of dense VI", _close_to_dense),
            Check(
                "SSVI at 99 % not below RigL at 99 % by more than a standard error", _not_below_rigl
            ),
            Check("SSVI at 99 % has a lower NLL than RigL at 99 %", _lower_nll),
        ),
        reference="target",
    ),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
)
