"""Finding things in a model, each once: sparse layers, distinct weights, stochastic modules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn.base import SparseLayer
from gossamer.nn.measure import forget_measurement
from gossamer.nn.stochastic import Stochastic, is_stochastic
from gossamer.ops import draw_seed, library


@dataclass(frozen=True, eq=False)
class Weight:
    """One distinct sparse weight, and the layers that use it: almost always just one.

    Attributes:
        name: Name of the first layer in the model.
        layers: All layers whose leading parameter is the same object.
    """

    name: str
    layers: tuple[SparseLayer, ...]

    @property
    def layer(self) -> SparseLayer:
        """The layer that stands for all."""
        return self.layers[0]

    @property
    def values(self) -> nn.Parameter:
        """The weights' values ``[nnz]``: the first of the layer's vectors."""
        return self.layer.leading()

    @property
    def is_trained(self) -> bool:
        """Whether gradients are wanted of it."""
        return self.values.requires_grad

    @property
    def title(self) -> str:
        """The name for people; a bare layer has an empty one."""
        return self.name or "root"


def sparse_layers(model: nn.Module) -> dict[str, SparseLayer]:
    """Every sparse layer once, by its first name, in the order of registration."""
    return {name: m for name, m in model.named_modules() if isinstance(m, SparseLayer)}


def restore_backends(model: nn.Module, backends: Mapping[str, str]) -> None:
    """Give the layers the backends that a run was saved with, so that it goes on bit for bit.

    Where the native engine is missing the layers run on the masked one, and a warning says so.
    """
    forget_measurement(model)
    for name, layer in sparse_layers(model).items():
        wanted = backends.get(name, layer.backend.name)
        if wanted == "native" and not library.is_available():
            warnings.warn(
                f"layer {name or 'root'} was saved with the native engine, which is not available "
                f"({library.reason()}): results agree to rounding only",
                stacklevel=2,
            )
            wanted = "masked"
        if wanted != layer.backend.name:
            layer.use_backend(wanted)


def weights_of(model: nn.Module) -> list[Weight]:
    """Every distinct sparse weight once, in the order of registration."""
    users: dict[int, tuple[str, list[SparseLayer]]] = {}
    for name, layer in sparse_layers(model).items():
        users.setdefault(id(layer.leading()), (name, []))[1].append(layer)
    return [Weight(name, tuple(layers)) for name, layers in users.values()]


def require_weights(model: nn.Module) -> list[Weight]:
    """Like ``weights_of``, but a model without any is an error."""
    weights = weights_of(model)
    if not weights:
        raise InvalidValue(
            "model",
            type(model).__name__,
            "has no sparse layer",
            "convert it first with gossamer.to_bayesian or gossamer.to_sparse",
        )
    return weights


def stochastic_modules(model: nn.Module) -> dict[str, Stochastic]:
    """Every module with a KL once, by its first name, in the order of registration.

    Raises:
        InvalidValue: A module states a KL although it has no parameters of its own, and contains
            one that does: their KL would be counted twice.
    """
    found = {name: m for name, m in model.named_modules() if is_stochastic(m)}
    for name, module in found.items():
        if isinstance(module, SparseLayer) or any(True for _ in _own_parameters(module)):
            continue
        inner = next(
            (n for n in found if n != name and n.startswith(f"{name}." if name else "")), None
        )
        if inner is not None:
            raise InvalidValue(
                f"kl_divergence of {name or 'the model'}",
                type(module).__name__,
                f"has no parameters of its own, and that of {inner} is counted already",
                "give the method another name; gossamer.kl_divergence sums over all modules",
            )
    return found


def _own_parameters(module: Any) -> Iterator[nn.Parameter]:
    parameters: Iterator[nn.Parameter] = module.parameters(recurse=False)
    return parameters


def scale_parameters(model: nn.Module) -> set[int]:
    """Identities of the parameters that say how uncertain a weight is; decay is wrong on them."""
    return {
        id(vector.parameter)
        for layer in sparse_layers(model).values()
        for vector in (*layer.vectors, *layer.factors)
        if vector.role == "scale"
    }


def kl_divergence(model: nn.Module) -> Tensor:
    """KL(posterior || prior) of the whole model in nats.

    The sum over its stochastic modules; layers that share a weight count once. Shape ``[]``.

    A model without stochastic modules has KL 0.

    Example:
        >>> from gossamer import to_bayesian
        >>> bool(kl_divergence(to_bayesian(nn.Linear(3, 2))) > 0)
        True
    """
    terms = []
    seen: set[int] = set()
    for module in stochastic_modules(model).values():
        key = id(module.leading()) if isinstance(module, SparseLayer) else id(module)
        if key not in seen:
            seen.add(key)
            terms.append(module.kl_divergence())
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
