"""The Bayesian network around a deterministic one: its values as means, with given spreads.

For posteriors that live in an optimiser. Everything that predicts with Gaussian layers (samples
that share a pass, local noise, moments, archives) then serves them too.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from gossamer.core.priors import Gaussian
from gossamer.nn.adjacent import link_adjacent
from gossamer.nn.base import BayesianLayer, SparseLayer
from gossamer.nn.dropout import carry_dropout
from gossamer.nn.hooks import move_hooks
from gossamer.nn.replica import replicate
from gossamer.nn.twins import bayesian_twin_of
from gossamer.nn.walk import weights_of

StdOf = Callable[[Tensor], Tensor | None]


def with_spread(network: nn.Module, std_of: StdOf, prior_std: float) -> nn.Module:
    """A replica of a sparse network whose weights are drawn around the network's own.

    Values, biases, supports and all other tensors are shared; what a later step changes in place
    shows in both.

    Args:
        network: Deterministic sparse layers; it is left as it is.
        std_of: σ of a parameter ``[nnz]``; ``None`` leaves its layers deterministic.
        prior_std: Of every weight; prediction does not depend on it.

    Example:
        >>> net = gossamer.to_sparse(nn.Linear(4, 2), sparsity=0.5)
        >>> bnn = with_spread(net, lambda values: torch.full_like(values, 0.1), prior_std=1.0)
        >>> type(bnn).__name__, bnn.nnz
        ('BayesianLinear', 4)
    """
    root = replicate(network)
    for weight in weights_of(root):
        std = std_of(weight.values)  # a replica has the very parameters of the network
        if std is None:
            continue
        mean, raw_std = weight.values, None
        for layer in weight.layers:
            twin = _twin(layer, mean, std, prior_std)
            twin.register_parameter("weight_mean", mean)
            raw_std = twin.weight_raw_std if raw_std is None else raw_std
            twin.register_parameter("weight_raw_std", raw_std)
            root = _put(root, layer, twin)
    link_adjacent(root)
    return root


def _twin(layer: SparseLayer, mean: Tensor, std: Tensor, prior_std: float) -> BayesianLayer:
    twin = bayesian_twin_of(layer)(
        layer.layout,
        layer.support,
        mean.detach(),
        std,
        layer.bias,
        prior=Gaussian(prior_std),
        backend=layer.backend.name,
        draws_weights=layer.draws_weights,
    )
    twin.take_rest(layer)
    twin.origin = layer.origin
    if twin.origin is not None:
        twin.origin.lend(twin)
    move_hooks(layer, twin)
    carry_dropout(layer, twin)
    return twin.train(layer.training)


def _put(root: nn.Module, layer: nn.Module, twin: nn.Module) -> nn.Module:
    for name, module in list(root.named_modules(remove_duplicate=False)):
        if module is not layer:
            continue
        if not name:
            return twin
        parent, _, child = name.rpartition(".")
        setattr(root.get_submodule(parent), child, twin)
    return root
