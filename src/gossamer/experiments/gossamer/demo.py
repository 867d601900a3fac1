"""``gossamer/demo``: what sparse and Bayesian cost and give, on 1,797 handwritten digits."""

from __future__ import annotations

from dataclasses import replace

from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.table import Check, Results, RunTable, at_least, at_most, repeated
from gossamer.experiments.task import RunTask
from gossamer.train import RunConfig
from gossamer.train.quality import with_quality

_SPARSITY = 0.95

_LINES: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("ssvi-95", "SSVI 95 %", "ssvi", {"sparsity": _SPARSITY}),
    ("dense_vi", "dense VI", "dense_vi", {}),
    ("rigl-95", "RigL 95 %", "rigl", {"sparsity": _SPARSITY}),
    ("sgd", "SGD, dense", "sgd", {}),
)


def tasks(scope: Scope) -> list[RunTask]:
    """The runs; the data are embedded, so there is one scale and nothing to find."""
    base = RunConfig(data="digits", model="mlp", epochs=40, checkpoint_every=10, num_samples=10)
    found = repeated("fast", "fast: what we recommend", with_quality(base, "fast"), scope)
    for key, label, method, options in _LINES:
        config = replace(base, method=method, method_options=options)
        found += repeated(key, label, config, scope)
    return found


def _is_exact(results: Results) -> tuple[bool, str]:
    """Whether nnz is round((1 - sparsity) · weights) for every sparse row and seed, exactly."""
    told, ok = [], True
    for key in ("fast", "ssvi-95", "rigl-95"):
        nnz, sparsity = results[key].values["nnz"], results[key].values["sparsity"]
        weights = round(nnz.mean / (1.0 - sparsity.mean))
        same = not nnz.standard_error and nnz.mean == round((1.0 - _SPARSITY) * weights)
        ok = ok and same
        told.append(f"{key} {nnz.mean:,.0f} of {weights:,}")
    return ok, ", ".join(told)


EXPERIMENT = Experiment(
    key="gossamer/demo",
    title="What we recommend and SSVI, at 95 % sparsity, next to dense VI, RigL and SGD on digits",
    tasks=tasks,
    conclude=RunTable(
        columns=("accuracy", "nll", "ece", "nnz", "sparsity", "checkpoint_bytes", "seconds"),
        checks=(
            at_least("fast", "accuracy", 0.97),
            at_least("ssvi-95", "accuracy", 0.97),
            at_most("ssvi-95", "ece", 0.04),
            Check("sparsity exact in every run", _is_exact),
        ),
        reference="target",
        drawn=("checkpoint_bytes", "nll", "ece"),
    ),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
)
