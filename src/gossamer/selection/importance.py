"""What a trained network makes of each column: the weight of all paths from it to the outputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.models import LinearSkip, SelectColumns
from gossamer.nn import sparse_layers
from gossamer.prediction import Mixture, Posterior
from gossamer.prediction.draws import NoiseDraws

_MOST_DRAWS = 16

# What has a slope of at most about 1, or is none: paths go through it as they are.
_PASSED = (
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
)


def importances(posterior: Posterior, scale: Tensor | None = None) -> Tensor:
    """The share of each column in what a network of linear layers computes.

    Of a column it is the sum, over all paths from it to an output, of the product of the absolute
    weights on the path, |W_L| ... |W_2| |W_1|, with those of a linear skip added, times the
    column's scale. Since activations have slopes of at most about 1, that bounds how much an output
    changes when the column moves by its scale. Weights are the posterior means; of stored samples
    it is the mean over the latest 16. Weights that are not kept are 0, and a column that
    no kept path leaves has importance 0 exactly.

    Args:
        posterior: Of a network of ``gossamer.models.mlp``, or any ``nn.Sequential`` of linear
            layers and activations.
        scale: What one step of each column is, [p]; 1 by default, right for standardised columns.

    Returns:
        Shares [p], float64, on the CPU, that sum to 1; all 0 for a network that reads nothing.

    Raises:
        InvalidValue: The network has a part through which there is no such path.

    Example:
        >>> import torch, gossamer
        >>> from gossamer.models import mlp
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> net = mlp(input_shape=(3,), output_size=1, hidden=[8])
        >>> method = gossamer.fit((x, 2 * x[:, 1]), "rigl", net, epochs=30, sparsity=0.2).method
        >>> int(importances(method.posterior()).argmax())
        1
    """
    with torch.no_grad():
        found = torch.stack([_paths(network) for network in _networks(posterior)]).mean(0)
    if scale is not None:
        if scale.shape != found.shape or not bool((scale >= 0).all()):
            raise InvalidValue(
                "scale", tuple(scale.shape), f"must be [{len(found)}], each 0 or more"
            )
        found = found * scale.to(found)
    total = found.sum()
    return found / total if total > 0 else found


def _networks(posterior: Posterior) -> Iterator[nn.Module]:
    """Networks whose ``weight`` is what the posterior holds."""
    if isinstance(posterior, Mixture):
        for member in posterior.members:
            yield from _networks(member)
    elif isinstance(posterior.draws, NoiseDraws):
        with posterior.draws.borrow() as network:
            yield network
    else:
        most = posterior.max_samples or _MOST_DRAWS
        for index in range(min(most, _MOST_DRAWS)):
            with posterior.draws.sample(index, seed=index, noise="weight") as network:
                yield network


def _paths(network: nn.Module) -> Tensor:
    """Path weights of every column, summed over outputs: [p]."""
    held = {id(layer) for layer in sparse_layers(network).values()}
    carried = _through(network, None, held)
    if carried is None:
        raise InvalidValue("network", type(network).__name__, "has no linear layer")
    return carried.sum(0)


def _through(module: nn.Module, before: Tensor | None, sparse: set[int]) -> Tensor | None:
    """Path weights [units, p] after a module; ``None`` stands for the columns themselves."""
    if isinstance(module, nn.Sequential):
        for part in module:
            before = _through(part, before, sparse)
        return before
    if isinstance(module, LinearSkip):
        body = _through(module.body, before, sparse)
        skip = _through(module.linear, before, sparse)
        return skip if body is None or skip is None else body + skip
    if isinstance(module, SelectColumns):
        chosen = module.columns.cpu()
        if before is not None:
            return before[chosen]
        return torch.eye(module.num_columns, dtype=torch.float64)[chosen]
    if isinstance(module, _PASSED):
        return before
    weight = getattr(module, "weight", None)
    is_linear = isinstance(module, nn.Linear) or id(module) in sparse
    if is_linear and isinstance(weight, Tensor) and weight.dim() == 2:
        size = weight.detach().double().abs().cpu()
        return size if before is None else size @ before
    raise InvalidValue(
        "network",
        type(module).__name__,
        "is no linear layer, activation or choice of columns, so that its paths have no weight",
        "use permutation importance (sklearn.inspection.permutation_importance)",
    )
