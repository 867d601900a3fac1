"""All experiments by key."""

from __future__ import annotations

from gossamer.errors import UnknownName
from gossamer.experiments.cvadam2023 import fashion as cvadam_fashion
from gossamer.experiments.cvadam2023 import freeze, paths, temperature
from gossamer.experiments.cvadam2023.table4 import experiment as table4
from gossamer.experiments.experiment import Experiment
from gossamer.experiments.gossamer import (
    averaging,
    defaults,
    demo,
    engines,
    high_sparsity,
    moments,
    posterior,
)
from gossamer.experiments.gossamer.tabular import experiment as tabular
from gossamer.experiments.gossamer.uncertainty import experiment as uncertainty
from gossamer.experiments.li2024ssvi import fashion, iou

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.key: module.EXPERIMENT
    for module in (
        demo,
        engines,
        defaults,
        high_sparsity,
        moments,
        averaging,
        posterior,
        uncertainty,
        tabular,
        fashion,
        iou,
        table4,
        cvadam_fashion,
        paths,
        temperature,
        freeze,
    )
}


def find_experiment(key: str) -> Experiment:
    """The experiment of that key, or a plain error."""
    if key not in EXPERIMENTS:
        raise UnknownName("experiment", key, list(EXPERIMENTS))
    return EXPERIMENTS[key]
