"""Gossamer: Bayesian neural networks that are sparse all the way through training.

import gossamer as gs
bnn = gs.to_bayesian(net, sparsity=0.95)
"""

from importlib.metadata import PackageNotFoundError, version

from gossamer.core.schedule import linear_warmup
from gossamer.errors import GossamerError
from gossamer.inference import (
    ELBO,
    Subspace,
    build,
    check_kl_scale,
    parameter_groups,
)
from gossamer.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from gossamer.nn import kl_divergence, sampling, summary, to_bayesian, to_deterministic, to_sparse
from gossamer.prediction import predict, predict_moments

try:
    __version__ = version("gossamer")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

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
    "kl_divergence",
    "linear_warmup",
    "parameter_groups",
    "predict",
    "predict_moments",
    "sampling",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "to_sparse",
]
