"""Who takes part: our presets, their parts, and what a user would pick instead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gossamer.data.registry import SOURCES
from gossamer.train import RunConfig
from gossamer.train.quality import with_networks

SPARSITY = 0.95


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        key: Its name in files.
        label: Its name for a reader.
        method: Key of the registry.
        options: Settings of the method.
        num_samples: Networks that a prediction averages.
        quality: The recommended preset that it is, if it is one; then that decides all of the
            above.
        part_of: A larger contender whose first ``num_samples`` members it is: networks that train
            by themselves are trained once, and measured alone and together.
    """

    key: str
    label: str
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    quality: str | None = None
    part_of: str | None = None

    def of(self, config: RunConfig) -> RunConfig:
        """The config of a run of it; every finished form is measured, so none is set."""
        if self.quality is not None:
            sparse = replace(config, method_options={"sparsity": SPARSITY})
            ours = with_networks(sparse, self.quality, SOURCES[config.data].about.task)
            return replace(ours, finish="none", conformal=False)
        return replace(
            config, method=self.method, num_samples=self.num_samples, method_options=self.options
        )


_SPARSE: dict[str, Any] = {"sparsity": SPARSITY}
_FASTER = {**_SPARSE, "lr_factor": 2.0}
_NOISE = {"posterior_share": 0.3, "lr_factor": 2.0}
"""The defaults of SSVI and dense VI, spelt out: rows of earlier ones are told apart."""

_AVERAGED = {**_FASTER, "average": 0.25, "lr_floor": 0.3}

CONTENDERS: tuple[Contender, ...] = (
    Contender("rigl", "RigL 95 %", "rigl", _SPARSE),
    Contender("rigl-lr", "RigL 95 %, twice the learning rate", "rigl", _FASTER),
    Contender("fast", "**fast**: one network", quality="fast", part_of="best"),
    Contender("good", "**good**: 2 × fast", quality="good", part_of="best"),
    Contender("best", "**best**: 3 × fast", quality="best"),
    Contender("rigl-average", "RigL 95 %, averaged", "rigl", _AVERAGED),
    Contender("ngvi", "ngvi 95 %, 10 samples", "ngvi", {**_AVERAGED, "initial_curvature": 1.0}, 10),
    Contender("ssvi", "SSVI 95 %", "ssvi", {**_SPARSE, **_NOISE}, 10),
    Contender("sgd", "dense SGD", "sgd", part_of="ensemble"),
    Contender("mc_dropout", "MC dropout, dense", "mc_dropout", {}, 10),
    Contender("swag", "SWAG, dense", "swag", {}, 10),
    Contender("dense_vi", "dense VI", "dense_vi", _NOISE, 10),
    Contender("ensemble-3", "3 dense networks", "ensemble", {"members": 3}, 3, part_of="ensemble"),
    Contender("ensemble", "5 dense networks", "ensemble", {"members": 5}, 5),
)


def parts_of(contender: Contender, config: RunConfig) -> dict[str, int]:
    """The contenders whose networks are among those of this one: by key, how many they are."""
    return {c.key: c.of(config).num_samples for c in CONTENDERS if c.part_of == contender.key}
