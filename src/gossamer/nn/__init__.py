"""Sparse layers, conversion from and to plain torch models, and what they cost."""

from gossamer.nn.base import BayesianLayer, DeterministicLayer, NeedsOwnPass, Noise, SparseLayer
from gossamer.nn.batchnorm import NativeBatchNorm
from gossamer.nn.conv import (
    BayesianConv1d,
    BayesianConv2d,
    BayesianConv3d,
    BayesianConvTranspose1d,
    BayesianConvTranspose2d,
    BayesianConvTranspose3d,
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
)
from gossamer.nn.convert import to_bayesian, to_deterministic, to_sparse
from gossamer.nn.cost import Summary, summary
from gossamer.nn.linear import BayesianLinear, SparseLinear
from gossamer.nn.sampling import sampling, sampling_together
from gossamer.nn.walk import (
    WeightGroup,
    kl_divergence,
    require_groups,
    restore_engines,
    sparse_layers,
    weight_groups,
)

__all__ = [
    "BayesianConv1d",
    "BayesianConv2d",
    "BayesianConv3d",
    "BayesianConvTranspose1d",
    "BayesianConvTranspose2d",
    "BayesianConvTranspose3d",
    "BayesianLayer",
    "BayesianLinear",
    "DeterministicLayer",
    "NativeBatchNorm",
    "NeedsOwnPass",
    "Noise",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseLayer",
    "SparseLinear",
    "Summary",
    "WeightGroup",
    "kl_divergence",
    "require_groups",
    "restore_engines",
    "sampling",
    "sampling_together",
    "sparse_layers",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "to_sparse",
    "weight_groups",
]
