"""``cvadam2023/freeze``: what stopping settled weights saves and costs, on digits.

The paper's discussion proposes to freeze parameters that have settled at the end of a cycle, so
that the ensemble shares most weights. Judged on the validation part of the training data.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.fits import Told, fit_of
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Values
from gossamer.inference.chain import ChainMethod
from gossamer.metrics import accuracy, ece, nll
from gossamer.nn import sparse_layers
from gossamer.prediction import ClassPrediction, predict
from gossamer.train import RunConfig

SHARES: tuple[float | None, ...] = (None, 0.02, 0.05, 0.1, 0.2)
CONFIG = RunConfig(
    data="digits",
    model="mlp",
    method="csghmc",
    method_options={
        "cycles": 6,
        "samples_per_cycle": 3,
        "temperature": 0.1,
        "weight_decay": 5e-4,
    },
    epochs=60,
)


@dataclass(frozen=True)
class Frozen:
    """One share.

    Attributes:
        freeze: The setting.
        stopped: Share of the weights that no longer move at the end.
        samples: Kept samples.
        megabytes: Memory of all samples.
        unshared: What they would take if each were whole.
        accuracy: Of the average over all samples.
        nll: Mean negative log-likelihood of it.
        ece: Expected calibration error.
    """

    freeze: float | None
    stopped: float
    samples: int
    megabytes: float
    unshared: float
    accuracy: float
    nll: float
    ece: float


@dataclass(frozen=True)
class Settings:
    """What decides a run.

    Attributes:
        freeze: The share.
        config: The run without it.
    """

    freeze: float | None
    config: RunConfig


def measure(settings: Settings, watch: Watch) -> Values:
    """A run with one share: a :class:`Frozen` as JSON values."""
    config = settings.config
    options = {**config.method_options, "freeze": settings.freeze}
    assembly, fit = fit_of(replace(config, method_options=options))
    method, data = fit.method, assembly.dataset
    assert isinstance(method, ChainMethod)
    fit.observers.append(Told(watch))
    fit.run()
    x, y = data.x_val.to(fit.device), data.y_val.to(fit.device)
    got = predict(method, x, len(method.samples), keep_samples=False)
    assert isinstance(got, ClassPrediction)
    moving = [state["moving"] for state in method.optimizer.state.values() if "moving" in state]
    total = sum(layer.nnz for layer in sparse_layers(method.model).values())
    stopped = sum(int((m == 0.0).sum()) for m in moving) / total
    return asdict(
        Frozen(
            settings.freeze,
            stopped,
            len(method.samples),
            method.samples.nbytes / 2**20,
            method.samples.nbytes_unshared / 2**20,
            accuracy(got.probs, y),
            nll(got.probs, y),
            ece(got.probs, y),
        )
    )


def tasks(scope: Scope) -> list[FunctionTask[Settings]]:
    """A run for every share."""
    config = replace(CONFIG, seed=scope.seed, device=scope.device)
    return [
        FunctionTask(f"freeze-{share}", measure, Settings(share, config), told=("accuracy", "nll"))
        for share in SHARES
    ]


def conclude(found: Finished) -> Outcome:
    """All shares side by side."""
    rows = [Frozen(**row) for row in found.rows.values()]
    table = TextTable(
        ["freeze", "stopped", "samples, MB", "if whole, MB", "accuracy", "NLL", "ECE"],
        [
            [
                "–" if row.freeze is None else str(row.freeze),
                f"{100 * row.stopped:.0f} %",
                f"{row.megabytes:.2f}",
                f"{row.unshared:.2f}",
                f"{row.accuracy:.4f}",
                f"{row.nll:.4f}",
                f"{row.ece:.4f}",
            ]
            for row in rows
        ],
        words=0,
    )
    samples = rows[0].samples if rows else 0
    text = (
        f"csghmc on digits, {samples} samples of six cycles, one seed; metrics on the validation "
        "part. A weight stops where it moved in a cycle by less than `freeze` times its layer's "
        "root mean square."
    )
    return Outcome({"rows": [asdict(row) for row in rows]}, (table, text))


EXPERIMENT = Experiment(
    key="cvadam2023/freeze",
    title="what stopping settled weights saves and costs",
    tasks=tasks,
    conclude=conclude,
)
