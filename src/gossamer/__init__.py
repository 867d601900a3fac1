"""Gossamer: Bayesian neural networks that are sparse all the way through training.

import gossamer as gs
bnn = gs.to_bayesian(net, sparsity=0.95)

Names are loaded when they are first asked for: what only reads result files, such as
``gossamer.report``, never waits for torch.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossamer.core.schedule import linear_warmup
    from gossamer.errors import GossamerError
    from gossamer.inference import ELBO, Subspace, build, check_kl_scale, parameter_groups
    from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
    from gossamer.nn import (
        kl_divergence,
        register_layer,
        sampling,
        summary,
        to_bayesian,
        to_deterministic,
        to_sparse,
    )
    from gossamer.prediction import last_layer, load, predict, predict_moments, tempered
    from gossamer.train import fit

    __version__: str

__all__ = [
    "ELBO",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "GossamerError",
    "Poisson",
    "Subspace",
    "build",
    "check_kl_scale",
    "fit",
    "kl_divergence",
    "last_layer",
    "linear_warmup",
    "load",
    "parameter_groups",
    "predict",
    "predict_moments",
    "register_layer",
    "sampling",
    "summary",
    "tempered",
    "to_bayesian",
    "to_deterministic",
    "to_sparse",
]

_NAMES_BY_HOME = {
    "core.schedule": ("linear_warmup",),
    "errors": ("GossamerError",),
    "inference": ("ELBO", "Subspace", "build", "check_kl_scale", "parameter_groups"),
    "likelihoods": ("Bernoulli", "Categorical", "Gaussian", "Poisson"),
    "nn": (
        "kl_divergence",
        "register_layer",
        "sampling",
        "summary",
        "to_bayesian",
        "to_deterministic",
        "to_sparse",
    ),
    "prediction": ("last_layer", "load", "predict", "predict_moments", "tempered"),
    "train": ("fit",),
}
_HOMES = {name: home for home, names in _NAMES_BY_HOME.items() for name in names}
_PARTS = frozenset(module.name for module in iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """A public name from its home, or a part of the package, when it is first asked for."""
    if name in _HOMES:
        value = getattr(import_module(f"gossamer.{_HOMES[name]}"), name)
    elif name in _PARTS:
        value = import_module(f"gossamer.{name}")
    elif name == "__version__":
        from gossamer.files import gossamer_version

        value = gossamer_version()
    else:
        raise AttributeError(f"module 'gossamer' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names and the parts of the package."""
    return sorted({*globals(), *__all__, *_PARTS, "__version__"})
