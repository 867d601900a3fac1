"""Other people's layers, where they are installed: ``pip install gossamer[bench]``."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.bench.csr import CSRLinear

SPARSEPROP = "SparseProp"
CSR = "torch CSR"
BAYESIAN_TORCH = "bayesian-torch"


def is_installed(module: str) -> bool:
    """Whether a rival can be imported."""
    return find_spec(module) is not None


def deterministic_rivals(module: nn.Module, sparsity: float) -> dict[str, nn.Module]:
    """Sparse deterministic layers on the support of a layer.

    Args:
        module: A linear layer or 2-D convolution without bias, zero off its support.
        sparsity: Share of zeros; SparseLab draws its own support of that size.

    Returns:
        By name; SparseProp's convolution once for each of its two ways to vectorise, of which its
        own front end takes the faster one.
    """
    found: dict[str, nn.Module] = {}
    weight = module.weight
    assert isinstance(weight, Tensor)
    if isinstance(module, nn.Linear):
        found[CSR] = CSRLinear(weight)
        if is_installed("sparselab"):
            layer: Any = import_module("sparselab").SparseLinear
            _set_own_threads("sparselab")
            size = (module.in_features, module.out_features)
            found["SparseLab"] = layer(*size, bias=False, sparsity=sparsity)
    if is_installed("sparseprop"):
        layers: Any = import_module("sparseprop.modules")
        if isinstance(module, nn.Linear):
            found[SPARSEPROP] = layers.SparseLinear(weight.detach())
        elif isinstance(module, nn.Conv2d):
            for way, is_over_rows in (("over batch", False), ("over rows", True)):
                found[f"{SPARSEPROP} {way}"] = layers.SparseConv2d.from_dense(
                    module, vectorizing_over_on=is_over_rows
                )
    return found


def _set_own_threads(package: str) -> None:
    """Give a rival that brings its own OpenMP the threads that torch has; it would take all."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        files = {line.split()[-1] for line in maps.read_text(encoding="utf-8").splitlines()}
        for file in files:
            if f"{package}.libs" in file and "gomp" in file:
                ctypes.CDLL(file).omp_set_num_threads(torch.get_num_threads())


def bayesian_network(model: nn.Module) -> tuple[nn.Module, Callable[[nn.Module], Tensor]] | None:
    """A dense Bayesian copy of a network by bayesian-torch, and its KL; ``None`` if not installed.

    Its layers draw one weight for the whole batch, so that they do half the products of local
    reparameterisation and give noisier gradients.
    """
    if not is_installed("bayesian_torch"):
        return None
    conversion: Any = import_module("bayesian_torch.models.dnn_to_bnn")
    # It replaces children only: a bare layer needs a parent.
    parent = nn.Sequential(copy.deepcopy(model))
    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 0.1,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -4.6,
        "type": "Reparameterization",
        "moped_enable": False,
        "moped_delta": 0.5,
    }
    conversion.dnn_to_bnn(parent, settings)
    return parent, conversion.get_kl_loss
