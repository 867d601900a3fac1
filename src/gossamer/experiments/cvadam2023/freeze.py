"""``cvadam2023/freeze``: what stopping settled weights saves and costs, on digits.

The paper's discussion proposes to freeze parameters that have settled at the end of a cycle, so
that the ensemble shares most weights. Judged on the validation part of the training data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from gossamer.data import batches
from gossamer.experiments.study import Findings, Study
from gossamer.inference.chain import ChainMethod
from gossamer.metrics import accuracy, ece, nll
from gossamer.nn import sparse_layers
from gossamer.prediction import ClassPrediction, predict
from gossamer.train import RunConfig
from gossamer.train.assembly import assemble

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


def measure(freeze: float | None, config: RunConfig) -> Frozen:
    """A run with one share."""
    options = {**config.method_options, "freeze": freeze}
    torch.manual_seed(config.seed)
    assembly = assemble(replace(config, method_options=options))
    method, data = assembly.method, assembly.dataset
    assert isinstance(method, ChainMethod)
    order = torch.Generator().manual_seed(config.seed)
    for _ in range(config.epochs):
        for batch in batches(data.x_train, data.y_train, config.batch_size, order):
            method.step(batch)
    got = predict(method, data.x_val, len(method.samples), keep_samples=False)
    assert isinstance(got, ClassPrediction)
    moving = [state["moving"] for state in method.optimizer.state.values() if "moving" in state]
    total = sum(layer.nnz for layer in sparse_layers(method.model).values())
    stopped = sum(int((m == 0.0).sum()) for m in moving) / total
    return Frozen(
        freeze,
        stopped,
        len(method.samples),
        method.samples.nbytes / 2**20,
        method.samples.nbytes_unshared / 2**20,
        accuracy(got.probs, data.y_val),
        nll(got.probs, data.y_val),
        ece(got.probs, data.y_val),
    )


def carry_out(*, seed: int, data_dir: str | None, notice: Callable[[str], None]) -> Findings:
    """Every share, one run each."""
    rows = []
    for share in SHARES:
        notice(f"freeze {share}")
        rows.append(measure(share, replace(CONFIG, seed=seed)))
    lines = [
        "| freeze | stopped | samples, MB | if whole, MB | accuracy | NLL | ECE |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {'–' if r.freeze is None else r.freeze} | {100 * r.stopped:.0f} % | {r.megabytes:.2f} "
        f"| {r.unshared:.2f} | {r.accuracy:.4f} | {r.nll:.4f} | {r.ece:.4f} |"
        for r in rows
    ]
    text = "\n".join(lines) + (
        f"\n\ncsghmc on digits, {rows[0].samples} samples of six cycles, one seed; metrics on the "
        "validation part. A weight stops where it moved in a cycle by less than `freeze` times its "
        "layer's root mean square."
    )
    return Findings({"rows": [asdict(row) for row in rows]}, text)


STUDY = Study("cvadam2023/freeze", "what stopping settled weights saves and costs", carry_out)
