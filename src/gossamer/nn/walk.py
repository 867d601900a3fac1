"""Finding sparse layers in a model, each once, and the groups that share parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn.base import BayesianLayer, SparseLayer
from gossamer.nn.measure import forget_measurement
from gossamer.ops import draw_seed
from gossamer.ops import library as native_library


@dataclass(frozen=True, eq=False)
class WeightGroup:
    """The layers that share one weight: almost always just one.

    Attributes:
        name: Name of the first layer in the model.
        layers: All layers whose leading parameter is the same object.
    """

    name: str
    layers: tuple[SparseLayer, ...]

    @property
    def first(self) -> SparseLayer:
        """The layer that stands for the group."""
        return self.layers[0]


def sparse_layers(model: nn.Module) -> dict[str, SparseLayer]:
    """Every sparse layer once, by its first name, in the order of registration."""
    return {name: m for name, m in model.named_modules() if isinstance(m, SparseLayer)}


def restore_engines(model: nn.Module, engines: Mapping[str, str]) -> None:
    """Give the layers the engines that a run was saved with, so that it goes on bit for bit.

    Where the native engine is missing the layers run on the masked one, and a warning says so.
    """
    forget_measurement(model)
    for name, layer in sparse_layers(model).items():
        wanted = engines.get(name, layer.engine)
        if wanted == "native" and not native_library.is_available():
            warnings.warn(
                f"layer {name or 'root'} was saved with the native engine, which is not available "
                f"({native_library.reason()}): results agree to rounding only",
                stacklevel=2,
            )
            wanted = "masked"
        if wanted != layer.engine:
            layer.use_engine(wanted)


def weight_groups(model: nn.Module) -> list[WeightGroup]:
    """Every distinct sparse weight once, in the order of registration."""
    grouped: dict[int, tuple[str, list[SparseLayer]]] = {}
    for name, layer in sparse_layers(model).items():
        grouped.setdefault(id(layer.leading()), (name, []))[1].append(layer)
    return [WeightGroup(name, tuple(layers)) for name, layers in grouped.values()]


def require_groups(model: nn.Module) -> list[WeightGroup]:
    """Like ``weight_groups``, but a model without any is an error."""
    groups = weight_groups(model)
    if not groups:
        raise InvalidValue(
            "model",
            type(model).__name__,
            "has no sparse layer",
            "convert it first with gossamer.to_bayesian or gossamer.to_sparse",
        )
    return groups


def kl_divergence(model: nn.Module) -> Tensor:
    """KL(posterior || prior) of the whole model in nats.

    The full closed-form sum, each distinct weight counted once. Shape ``[]``.

    A model without Bayesian layers has KL 0.

    Example:
        >>> bnn = to_bayesian(nn.Linear(3, 2))  # doctest: +SKIP
        >>> float(kl_divergence(bnn)) > 0  # doctest: +SKIP
        True
    """
    terms = [
        group.first.kl_divergence()
        for group in weight_groups(model)
        if isinstance(group.first, BayesianLayer)
    ]
    return torch.stack([t.to(terms[0].device) for t in terms]).sum() if terms else torch.zeros(())


def begin_shared_draws(model: nn.Module, inputs: object = None) -> None:
    """Give all uses of a shared weight one seed for this forward pass.

    Runs as a forward pre-hook of the converted root. Without it two uses of one layer would see two
    different draws of what is a single θ. In evaluation nothing is drawn, so that validating does
    not change the training that follows.
    """
    seeds: dict[int, Tensor] = {}
    for layer in _shared_layers(model):
        layer.in_shared_forward = layer.training
        if layer.training:
            key = id(layer.leading())
            if key not in seeds:
                seeds[key] = draw_seed()
            layer.shared_seed = seeds[key]


def end_shared_draws(model: nn.Module, inputs: object = None, output: object = None) -> None:
    """The forward pass of the root is over: direct calls of a layer draw for themselves again."""
    for layer in _shared_layers(model):
        layer.in_shared_forward = False


def _shared_layers(model: nn.Module) -> list[SparseLayer]:
    return [m for m in model.modules() if isinstance(m, SparseLayer) and m.draws_weights]
