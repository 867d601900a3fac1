"""What is recorded: every method of the registry, with each of its structural options.

A case is a method, a network and settings, and runs once per engine. A new structural option of a
method is one more line of ``METHOD_CASES``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

ENGINES = ("masked", "native", "native-generic")
"""``native`` takes the best instruction set of the processor, ``native-generic`` plain C++."""

ALL_ENGINES = (*ENGINES, "auto")


@dataclass(frozen=True)
class Case:
    """A few steps of a method.

    Attributes:
        method: Key of the registry.
        net: Key of ``problems.NETWORKS``.
        option: What is special about it.
        settings: Of the method, and ``preset``.
        likelihood: Name, which also chooses the targets.
        likelihood_options: Where it is not built by name.
        steps: Of the straight run.
        moves: How often the supports or masks must change at the least.
        engines: On which it runs.
        many_rows: Whether two blocks of rows, and a single row, are predicted too.
        moments: Whether ``predict_moments`` has rules for the network.
        double: float64 instead of float32.
    """

    method: str
    net: str
    option: str
    settings: dict[str, Any] = field(default_factory=dict)
    likelihood: str = "categorical"
    likelihood_options: dict[str, Any] = field(default_factory=dict)
    steps: int = 10
    moves: int = 0
    engines: tuple[str, ...] = ENGINES
    many_rows: bool = False
    moments: bool = True
    double: bool = False

    @property
    def name(self) -> str:
        """``method/net/option``."""
        return f"{self.method}/{self.net}/{self.option}"


SWAPS = {"sparsity": 0.8, "update_every": 3, "swap_fraction": 0.5, "end_fraction": 1.0}


def _swapping(method: str, net: str, option: str, *, case: Any = None, **settings: Any) -> Case:
    return Case(method, net, option, {**SWAPS, **settings}, moves=2, **(case or {}))


MAIN = {"engines": ALL_ENGINES, "many_rows": True}
ONLY_NATIVE = ("native", "native-generic")
REMOVALS = ("mean_abs", "snr", "e_abs", "e_exp", "snr_exp")
ADDITIONS = ("grad_mean", "grad_multi", "grad_multi_signed", "random")

SSVI = [
    _swapping("ssvi", "mlp", "grad", case=MAIN),
    _swapping("ssvi", "conv", "grad", case=MAIN),
    *(_swapping("ssvi", "mlp", a, addition=a, num_draws=2) for a in ADDITIONS),
    *(_swapping("ssvi", "conv", a, addition=a, num_draws=2) for a in ADDITIONS),
    *(_swapping("ssvi", "mlp", f"removal-{r}", removal=r) for r in REMOVALS),
    _swapping("ssvi", "mlp", "sigma-eps", sigma_init="eps"),
    _swapping("ssvi", "mlp-few", "ties", swap_fraction=0.9),
    _swapping("ssvi", "mlp-few", "ties-leaving", swap_fraction=0.9, addition="random"),
    _swapping("ssvi", "mlp", "uniform", sparsity_distribution="uniform", optimizer="sgd"),
    _swapping("ssvi", "mlp", "clipped", clip_norm=0.5, prior_std=0.3, lr_schedule="constant"),
    _swapping("ssvi", "mlp", "cold", temperature=0.1, kl_weight=0.5, kl_warmup=0.2),
    _swapping("ssvi", "mlp", "empirical", prior_std="empirical", kl_weight=1.0, kl_warmup=0.2),
    _swapping("ssvi", "conv", "empirical", prior_std="empirical", kl_weight=1.0, kl_warmup=0.2),
    _swapping("ssvi", "mlp", "absent", absent_variance="linear", case=MAIN),
    _swapping("ssvi", "conv", "absent", absent_variance="all", prior_std="empirical"),
    _swapping("ssvi", "shared", "absent", absent_variance="all", case={"moments": False}),
    _swapping("ssvi", "mlp", "double", case={"double": True}),
    _swapping("ssvi", "mlp", "paper", preset="paper", sparsity=0.15),
    _swapping("ssvi", "conv", "paper", preset="paper"),
    _swapping("ssvi", "mlp-real", "gaussian", case={"likelihood": "gaussian"}),
    _swapping("ssvi", "mlp-real", "bernoulli", case={"likelihood": "bernoulli"}),
    _swapping("ssvi", "mlp-real", "poisson", case={"likelihood": "poisson"}),
    _swapping(
        "ssvi",
        "mlp-head",
        "gaussian-head",
        case={"likelihood": "gaussian", "likelihood_options": {"noise_std": "head"}},
    ),
    _swapping("ssvi", "shared", "grad", case={"moments": False}),
    _swapping("ssvi", "shared", "grad_multi", addition="grad_multi", case={"moments": False}),
    _swapping("ssvi", "others", "grad", case={"moments": False}),
    _swapping("ssvi", "attention", "grad", case={"moments": False}),
    _swapping(
        "ssvi", "resnet", "grad", update_every=1, case={"steps": 3, "engines": ("native", "auto")}
    ),
]

DENSE_VI = [
    Case("dense_vi", "mlp", "default", **MAIN),
    Case("dense_vi", "conv", "default"),
    Case("dense_vi", "mlp", "paper", {"preset": "paper"}),
    Case("dense_vi", "mlp", "empirical", {"prior_std": "empirical", "kl_weight": 1.0}),
]

RIGL = [
    _swapping("rigl", "mlp", "grad", case=MAIN),
    _swapping("rigl", "conv", "grad"),
    _swapping("rigl", "mlp", "random", addition="random"),
    _swapping("rigl", "conv", "random", addition="random"),
    _swapping("rigl", "mlp-few", "ties", swap_fraction=0.9),
    _swapping("rigl", "mlp-few", "ties-leaving", swap_fraction=0.9, addition="random"),
    _swapping("rigl", "conv", "paper", preset="paper"),
    _swapping("rigl", "shared", "grad", case={"moments": False}),
]

NGVI = [
    _swapping("ngvi", "mlp", "default", case=MAIN),
    _swapping("ngvi", "conv", "default"),
    _swapping("ngvi", "mlp", "ivon", update="ivon", natural_lr=0.3),
    _swapping("ngvi", "mlp", "draws", draws=2),
    _swapping("ngvi", "mlp-real", "gaussian", case={"likelihood": "gaussian"}),
]

SGD = [
    Case("sgd", "mlp", "dense", **MAIN),
    Case("sgd", "mlp", "sparse", {"sparsity": 0.8}),
    Case("sgd", "conv", "dense", {"preset": "paper"}),
    Case("sgd", "conv", "sparse", {"sparsity": 0.6}),
    Case("sgd", "mlp-real", "gaussian", {"sparsity": 0.5}, "gaussian"),
    Case("sgd", "resnet", "sparse", {"sparsity": 0.9}, steps=2, engines=("native",)),
]

JOINT = [
    Case("ensemble", "mlp", "default", {"members": 2}, **MAIN),
    Case("ensemble", "mlp-real", "sparse", {"members": 3, "sparsity": 0.5}, "gaussian"),
    _swapping("rigl", "conv", "members", members=2, case={"moments": False}),
    _swapping("ngvi", "mlp", "members", members=2),
    _swapping("ssvi", "mlp", "cycles", members=2, harvest="cycles", case={"moments": False}),
]

MC_DROPOUT = [
    Case("mc_dropout", "mlp", "default", **MAIN),
    Case("mc_dropout", "mlp", "all", {"layers": "all", "rate": 0.3, "sparsity": 0.6}),
    Case("mc_dropout", "conv", "default", moments=False),
    Case("mc_dropout", "shared", "default"),
]

SWAG = [
    Case("swag", "mlp", "default", {"start": 0.3}, moments=False, **MAIN),
    Case("swag", "mlp", "diagonal", {"start": 0.3, "rank": 0, "sparsity": 0.5}, moments=False),
    Case("swag", "conv", "norms", {"start": 0.3, "preset": "paper"}, moments=False),
    Case("swag", "mlp-real", "gaussian", {"start": 0.3}, "gaussian", moments=False),
]

FOLDER = "a folder"
"""Stands for one that is made for the case and removed after it."""

CHAIN = {"cycles": 2, "samples_per_cycle": 2, "sample_every": 2}

CHAINS = [
    Case("cv_adam", "mlp", "draws", {"cycles": 2, "alpha_end": 0.01}, **MAIN),
    Case("cv_adam", "conv", "draws", {"cycles": 2, "sparsity": 0.5}),
    Case("cv_adam", "mlp", "paper", {"preset": "paper"}),
    Case("cv_adam", "mlp-real", "gaussian", {}, "gaussian"),
    Case("cv_sghmc", "mlp", "cycles", CHAIN, **MAIN),
    Case("cv_sghmc", "conv", "cycles", {**CHAIN, "sparsity": 0.5, "explore": 0.4}),
    Case("cv_sghmc", "mlp", "paper", {"preset": "paper"}),
    Case("csgld", "mlp", "cycles", CHAIN, **MAIN),
    Case("csgld", "mlp", "explore", {**CHAIN, "explore": 0.5, "decay_biases": True}),
    Case("csgld", "mlp", "freeze", {**CHAIN, "freeze": 0.3}),
    Case("csgld", "conv", "sparse", {**CHAIN, "sparsity": 0.5}),
    Case("csgld", "mlp", "paper", {"preset": "paper"}),
    Case("csghmc", "mlp", "cycles", CHAIN, **MAIN),
    Case("csghmc", "mlp", "explore", {**CHAIN, "explore": 0.5}),
    Case("csghmc", "conv", "freeze", {**CHAIN, "freeze": 0.3}),
    Case("csghmc", "conv", "sparse", {**CHAIN, "sparsity": 0.5, "weight_decay": 1e-3}),
    Case("csghmc", "mlp", "files", {**CHAIN, "budget_mb": 0.01, "sample_folder": FOLDER}),
    Case("csghmc", "mlp", "paper", {"preset": "paper"}),
    Case("csghmc", "mlp-real", "gaussian", CHAIN, "gaussian"),
    Case("csghmc", "mlp-real", "poisson", CHAIN, "poisson"),
]

PRUNING = {
    **CHAIN,
    "lr": 0.02,
    "betas": (0.5, 1.0),
    "tau_lr": 0.5,
    "weight_decay": 1e-3,
    "spike_decay": 4.0,
    "warmup": 0.1,
}
BY_THRESHOLD = {"spike_threshold": 0.05, "prune_threshold": 0.01, "statistic": "mean_square"}
TARGET = {"target_sparsity": 0.7, "prune_end": 0.8}


def _pruning(net: str, option: str, *, case: Any = None, **settings: Any) -> list[Case]:
    found = []
    for pruning in ("dfp", "dpf"):
        given = {**PRUNING, **settings, "pruning": pruning}
        name = f"{pruning}-{option}"
        found.append(Case("em_mcmc", net, name, given, steps=16, moves=2, **(case or {})))
    return found


EM_MCMC = [
    *_pruning("mlp", "network", **TARGET, case=MAIN),
    *_pruning("conv", "network", **TARGET, case={"engines": ALL_ENGINES}),
    *_pruning("mlp", "layer", **TARGET, target_scope="layer"),
    *_pruning("conv", "layer", **TARGET, target_scope="layer", sparsity=0.3),
    *_pruning("mlp", "threshold", **BY_THRESHOLD),
    *_pruning("conv", "threshold", **BY_THRESHOLD, group="weight", prune_group="weight"),
    *_pruning("mlp", "weights", **TARGET, group="weight", prune_group="weight", freeze=0.1),
    *_pruning("conv", "outputs", **TARGET, group="output", prune_group="output", explore=0.3),
    *_pruning("conv", "kernels", **TARGET, prune_group="kernel"),
    *_pruning("conv", "printed", **TARGET, statistic="abs_range"),
    *_pruning("shared", "network", **TARGET),
    Case("em_mcmc", "mlp", "paper", {"preset": "paper", "cycles": 2}),
]

METHOD_CASES = [
    *(*SSVI, *DENSE_VI, *RIGL, *NGVI, *SGD, *JOINT, *MC_DROPOUT, *SWAG),
    *(*CHAINS, *EM_MCMC),
]

LOOPS = {
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {"amsgrad": True}),
    "sgd": ("SGD", {"momentum": 0.9}),
    "rmsprop": ("RMSprop", {"momentum": 0.5, "centered": True}),
}
"""Loops of a user's own: the torch optimiser and its settings."""

RUNS = {
    "ssvi": {"sparsity": 0.8, "update_every": 3},
    "csghmc": CHAIN,
    "em_mcmc": {**PRUNING, **TARGET},
}
"""Run folders, stopped once and resumed."""


def matches(name: str, pattern: str | None) -> bool:
    """Whether ``--only PATTERN`` takes a case: a part of its name, or a pattern with ``*``."""
    return pattern is None or pattern in name or fnmatch(name, pattern)
