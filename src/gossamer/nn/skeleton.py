"""The structure of a converted network as JSON values, and a network of that structure again.

What ``to_bayesian`` and ``to_sparse`` decided, layer by layer, without a single weight: tensors are
put in afterwards (``replica.replicate``), so that nothing is drawn, allocated or derived twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.core.priors import prior_from_json, prior_to_json
from gossamer.core.support import Support
from gossamer.errors import InvalidData
from gossamer.nn.adjacent import link_adjacent
from gossamer.nn.base import BayesianLayer, SparseLayer
from gossamer.nn.batchnorm import NativeBatchNorm, use_native_batchnorm
from gossamer.nn.dropout import attach_dropout, dropout_of
from gossamer.nn.origin import Origin
from gossamer.nn.replica import replicate
from gossamer.nn.split import Split
from gossamer.nn.splitting import split_modules
from gossamer.nn.twins import twin_of
from gossamer.nn.walk import begin_shared_draws, end_shared_draws, weights_of


def describe(network: nn.Module) -> dict[str, Any]:
    """What a conversion made of the layers of ``network``, as JSON values."""
    names: dict[int, list[str]] = {}
    for name, module in network.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    layers = [
        {
            "names": names[id(layer)],
            "weight": number,
            "shape": list(layer.layout.shape),
            "prior": _described(layer),
            "absent_prior_std": _absent_prior_std(layer),
            "prior_mean": isinstance(layer, BayesianLayer) and layer.prior_mean is not None,
            "draws_weights": layer.draws_weights,
            "backend": layer.backend.name,
            "dropout": _rate_of(layer),
        }
        for number, weight in enumerate(weights_of(network))
        for layer in weight.layers
    ]
    is_native = any(isinstance(m, NativeBatchNorm) for m in network.modules())
    split = [n for n, m in network.named_modules(remove_duplicate=False) if isinstance(m, Split)]
    return {"layers": layers, "native_batchnorm": is_native, "split": split}


def _rate_of(layer: SparseLayer) -> float | None:
    dropout = dropout_of(layer)
    return None if dropout is None else dropout.rate


def _described(layer: SparseLayer) -> dict[str, Any] | None:
    return prior_to_json(layer.prior) if isinstance(layer, BayesianLayer) else None


def _absent_prior_std(layer: SparseLayer) -> float | None:
    """Of the weights off the support; ``None`` where they have no variance."""
    return layer.absent_prior_std if isinstance(layer, BayesianLayer) and layer.factors else None


def skeleton(plain: nn.Module, described: Mapping[str, Any]) -> nn.Module:
    """A network of a described structure over the torch network that it was converted from.

    Args:
        plain: The torch architecture, on any device; it is left as it is.
        described: What ``describe`` said.

    Returns:
        Its sparse layers have full supports without values (on the ``meta`` device); the rest
        shares the tensors of ``plain``.

    Raises:
        InvalidData: ``plain`` is another architecture; the message names the layer.
    """
    # Files from before there were any name none.
    network, _ = split_modules(replicate(plain), only=described.get("split", ()))
    shared: dict[int, dict[str, nn.Parameter]] = {}
    dropped: dict[int, tuple[float, list[SparseLayer]]] = {}
    for about in described["layers"]:
        first, *_ = about["names"]
        layer = _layer(first, _at(network, first), about)
        known = shared.setdefault(int(about["weight"]), {})
        for vector in (*layer.vectors, *layer.factors):
            layer.register_parameter(vector.name, known.setdefault(vector.name, vector.parameter))
        rate = about.get("dropout")  # files from before it have none
        if rate is not None:
            dropped.setdefault(int(about["weight"]), (float(rate), []))[1].append(layer)
        for name in about["names"]:
            network = _put(network, name, layer)
    for rate, layers in dropped.values():
        attach_dropout(layers, rate)
    if described["native_batchnorm"]:
        use_native_batchnorm(network)
    link_adjacent(network)
    if any(about["draws_weights"] for about in described["layers"]):
        network.register_forward_pre_hook(begin_shared_draws)
        network.register_forward_hook(end_shared_draws)
    return network


def backends(described: Mapping[str, Any]) -> dict[str, str]:
    """Which backend computes which layer."""
    return {str(about["names"][0]): str(about["backend"]) for about in described["layers"]}


def _layer(name: str, module: nn.Module, about: Mapping[str, Any]) -> SparseLayer:
    twin = twin_of(module)
    shape = tuple(about["shape"])
    if twin is None or tuple(twin.layout(module).shape) != shape:
        found = getattr(module, "weight", None)
        has = type(module).__name__ if found is None else f"{type(module).__name__} {found.shape}"
        raise InvalidData(
            f"layer {name or 'root'}",
            has,
            f"must be a torch layer with the weight {list(shape)}",
            "give the network as it was before its conversion; a class of another package must be "
            "registered, as it was then (gossamer.register_layer)",
        )
    layout = twin.layout(module)
    full, values = Support.full(layout.shape), torch.empty(layout.numel, device="meta")
    options: dict[str, Any] = {"backend": "masked", "draws_weights": bool(about["draws_weights"])}
    bias = module._parameters.get("bias")
    layer: SparseLayer
    if about["prior"] is None:
        layer = twin.deterministic(layout, full, values, bias, **options)
    else:
        std = torch.ones(1)  # stands for all until the tensors come
        prior = prior_from_json(about["prior"])
        bayesian = twin.bayesian(layout, full, values, std, bias, prior=prior, **options)
        if about.get("absent_prior_std") is not None:
            bayesian.spread_absent(1.0, float(about["absent_prior_std"]))
        if about.get("prior_mean"):
            bayesian.centre_prior(values)
        layer = bayesian
    layer.take_rest(module)
    layer.origin = Origin.of(module, transposed=twin.transposed)
    if layer.origin is not None:
        layer.origin.lend(layer)
    return layer


def _at(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise InvalidData(
            f"layer {name}", None, "is not in the network", "give the architecture that was saved"
        ) from error


def _put(network: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    if not name:
        return layer
    parent, _, child = name.rpartition(".")
    setattr(_at(network, parent), child, layer)
    return network
