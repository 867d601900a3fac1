"""``gossamer/high-sparsity``: initial noise and weight decay at 99 % sparsity, SSVI and RigL alike.

LeNet on 20,000 images of Fashion-MNIST as in ``li2024ssvi/fashion``, judged on 10,000 other images
of the training file: no run here looks at test points.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gossamer.experiments.li2024ssvi.fashion import base_config
from gossamer.experiments.table import Row, Table, repeated

_LINES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("ssvi", "SSVI, defaults", "ssvi", {}),
    ("ssvi-share-0.1", "SSVI, initial σ a tenth of the prior's", "ssvi", {"posterior_share": 0.1}),
    ("ssvi-decay-1e-4", "SSVI, weight decay 1e-4", "ssvi", {"weight_decay": 1e-4}),
    ("ssvi-decay-1e-3", "SSVI, weight decay 1e-3", "ssvi", {"weight_decay": 1e-3}),
    ("rigl", "RigL, defaults", "rigl", {}),
    ("rigl-decay-1e-4", "RigL, weight decay 1e-4", "rigl", {"weight_decay": 1e-4}),
    ("rigl-decay-1e-3", "RigL, weight decay 1e-3", "rigl", {"weight_decay": 1e-3}),
)


def rows(*, scale: str, seed: int, repeats: int, data_dir: str | None) -> list[Row]:
    """The runs of all lines."""
    base = replace(
        base_config(data_dir),
        ood=(),
        noise="weight",
        validation_fraction=1 / 3,
        evaluate_on="validation",
    )
    found: list[Row] = []
    for key, label, method, options in _LINES:
        config = replace(base, method=method, method_options={"sparsity": 0.99, **options})
        found += repeated(key, label, config, seed=seed, repeats=repeats)
    return found


TABLE = Table(
    key="gossamer/high-sparsity",
    title="99 % sparsity on validation images: initial noise and weight decay",
    rows=rows,
    columns=("accuracy", "nll", "ece", "seconds"),
    scales=("small",),
    jobs=2,
    reference="target",
)
