"""``gossamer/engines``: the same training on the native engine and on the masked one.

Both draw the same noise, so that runs of one seed part by rounding alone; what that comes to in
training must be less than what seeds do, and the time is what the engine is worth.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot

from gossamer.experiments.earlier import earlier
from gossamer.experiments.experiment import Experiment, Scope
from gossamer.experiments.li2024ssvi.fashion import base_config
from gossamer.experiments.table import Check, Results, RunTable, repeated
from gossamer.experiments.task import RunTask
from gossamer.train import RunConfig

_ENGINES = {"native": "auto", "masked": "masked"}
_METHODS = {"ssvi": "SSVI 95 %", "rigl": "RigL 95 %"}


def tasks(scope: Scope) -> list[RunTask]:
    """Digits; with a folder of data also three epochs of Fashion-MNIST."""
    places = {"digits": RunConfig(data="digits", model="mlp", epochs=40, checkpoint_every=40)}
    if scope.data_dir is not None:
        fashion = replace(base_config(scope.data_dir), epochs=3, noise="weight", ood=())
        places["fashion"] = fashion
    found: list[RunTask] = []
    for place, base in places.items():
        for method, label in _METHODS.items():
            for engine, backend in _ENGINES.items():
                options = earlier(method, {"sparsity": 0.95})
                config = replace(base, method=method, method_options=options, backend=backend)
                key, name = f"{place}-{method}-{engine}", f"{place}, {label}, {engine}"
                found += repeated(key, name, config, scope)
    return found


def _agree(results: Results) -> tuple[bool, str]:
    """Whether both engines' means lie within two standard errors of their difference."""
    told, ok = [], True
    for key in results:
        if not key.endswith("-native"):
            continue
        other = results[key.removesuffix("native") + "masked"]
        for column in ("accuracy", "nll"):
            gap = results[key].mean(column) - other.mean(column)
            errors = [line.values[column].standard_error or 0.0 for line in (results[key], other)]
            ok = ok and abs(gap) <= 2.0 * hypot(*errors)
            told.append(f"{key.removesuffix('-native')} {column} {gap:+.4f} ± {hypot(*errors):.4f}")
    return ok, "; ".join(told)


EXPERIMENT = Experiment(
    key="gossamer/engines",
    title="The same training on both engines",
    tasks=tasks,
    conclude=RunTable(
        columns=("accuracy", "nll", "ece", "nnz", "seconds"),
        checks=(Check("both engines train alike, within two standard errors", _agree),),
        reference="target",
    ),
    scales=("small",),
    repeats={"small": 3},
    jobs=2,
    cpu_only=True,
)
