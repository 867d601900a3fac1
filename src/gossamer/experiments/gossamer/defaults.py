"""``gossamer/defaults``: the figures behind docs/defaults.md, from 500 to 54,000 training examples.

Digits is embedded; the lines on Fashion-MNIST appear when ``--data-dir`` holds it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.table import Row, Table, repeated
from gossamer.train import RunConfig

_CHANGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("default", "defaults", {}),
    ("beta-0.1", "KL weight 0.1", {"kl_weight": 0.1}),
    ("beta-1", "KL weight 1", {"kl_weight": 1.0}),
    ("prior-authors", "prior std 0.005", {"prior_std": 0.005, "posterior_std": 0.0006}),
)


def rows(*, scale: str, seed: int, repeats: int, data_dir: str | None) -> list[Row]:
    """SSVI at 95 % sparsity: the defaults and single changes, per number of examples."""
    digits = RunConfig(data="digits", epochs=40, checkpoint_every=40, num_samples=10)
    sizes = [("digits-500", replace(digits, limit_train=500, epochs=100)), ("digits-1294", digits)]
    if data_dir is not None:
        fashion = replace(digits, data="fashion_mnist", data_dir=data_dir, batch_size=128)
        sizes += [
            ("fashion-5000", replace(fashion, limit_train=5_000, epochs=20)),
            ("fashion-54000", replace(fashion, epochs=6)),
        ]
    found: list[Row] = []
    for name, config in sizes:
        for key, label, options in _CHANGES:
            changed = replace(config, method_options={"sparsity": 0.95, **options})
            line = (f"{name}-{key}", f"{name}, {label}", changed)
            found += repeated(*line, seed=seed, repeats=repeats)
    return found


TABLE = Table(
    key="gossamer/defaults",
    title="Calibration of SSVI at 95 % sparsity under the defaults and single changes to them",
    rows=rows,
    columns=("accuracy", "nll", "ece", "seconds"),
    scales=("small",),
    repeats=2,
    jobs=2,
    reference="target",
)
