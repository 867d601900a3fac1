"""Sparse layers, conversion from and to plain torch models, and what they cost."""

from gossamer.nn.base import BayesianLayer, DeterministicLayer, SparseLayer
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
from gossamer.nn.convert import to_bayesian, to_sparse
from gossamer.nn.cost import Summary, summary
from gossamer.nn.dropout import UnitDropout, drop_inputs, dropout_of
from gossamer.nn.embedding import BayesianEmbedding, SparseEmbedding
from gossamer.nn.grouped import GroupedLinear
from gossamer.nn.linear import BayesianLinear, SparseLinear
from gossamer.nn.moving import adopt, move, move_parameter, require_movable, state_on
from gossamer.nn.restoring import to_deterministic
from gossamer.nn.seeding import at_mean, holding_draws, sampling, sampling_together
from gossamer.nn.spread import with_spread
from gossamer.nn.state_kinds import register_state
from gossamer.nn.stochastic import (
    NeedsOwnPass,
    Noise,
    SamplingState,
    Stochastic,
    StochasticModule,
    is_stochastic,
)
from gossamer.nn.twins import register_layer
from gossamer.nn.vector import Vector
from gossamer.nn.walk import (
    Weight,
    kl_divergence,
    require_weights,
    restore_backends,
    scale_parameters,
    sparse_layers,
    stochastic_modules,
    weights_of,
)

__all__ = [
    "BayesianConv1d",
    "BayesianConv2d",
    "BayesianConv3d",
    "BayesianConvTranspose1d",
    "BayesianConvTranspose2d",
    "BayesianConvTranspose3d",
    "BayesianEmbedding",
    "BayesianLayer",
    "BayesianLinear",
    "DeterministicLayer",
    "GroupedLinear",
    "NativeBatchNorm",
    "NeedsOwnPass",
    "Noise",
    "SamplingState",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseEmbedding",
    "SparseLayer",
    "SparseLinear",
    "Stochastic",
    "StochasticModule",
    "Summary",
    "UnitDropout",
    "Vector",
    "Weight",
    "adopt",
    "at_mean",
    "drop_inputs",
    "dropout_of",
    "holding_draws",
    "is_stochastic",
    "kl_divergence",
    "move",
    "move_parameter",
    "register_layer",
    "register_state",
    "require_movable",
    "require_weights",
    "restore_backends",
    "sampling",
    "sampling_together",
    "scale_parameters",
    "sparse_layers",
    "state_on",
    "stochastic_modules",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "to_sparse",
    "weights_of",
    "with_spread",
]
