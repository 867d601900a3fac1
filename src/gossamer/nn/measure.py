"""``backend="measure"``: a layer times both backends on its first training input, and keeps one.

Opt-in, because a clock decides: two runs of one seed may take different backends, whose results
differ by rounding. A run that goes on takes the backends that it had.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor, nn

from gossamer.nn.base import SparseLayer
from gossamer.ops import BACKENDS, Pattern

ROUNDS = 3


def measure_at_first_use(layer: SparseLayer) -> None:
    """Let the first forward pass with gradients choose the layer's backend."""
    layer.register_forward_pre_hook(_measure)


def forget_measurement(model: nn.Module) -> None:
    """Take the hook off all layers: their backends are known."""
    for module in model.modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            if hook is _measure:
                del module._forward_pre_hooks[key]


def _measure(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert isinstance(layer, SparseLayer)
    if not (layer.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return
    forget_measurement(layer)
    x = inputs[0].detach()
    runs = [name for name, b in BACKENDS.items() if b.supports(layer.layout, x.device, x.dtype)]
    seconds = {name: _seconds(layer, name, x) for name in runs}
    layer.use_backend(min(seconds, key=lambda name: seconds[name]))


def _seconds(layer: SparseLayer, name: str, x: Tensor) -> float:
    """Median time of a forward and backward pass; the layer itself is left as it is."""
    backend = BACKENDS[name]
    pattern = Pattern(layer.indices, backend.prepare(layer.indices, layer.layout))
    values = layer.leading().detach().clone().requires_grad_()
    x = x.clone().requires_grad_(x.is_floating_point())
    variance: Tensor | None = None
    if not layer.draws_weights and layer.weight_variance is not None:
        variance = layer.weight_variance.detach().requires_grad_()
    seed = torch.zeros((), dtype=torch.int64)
    found = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        if variance is None:
            y = backend.product(x, values, pattern, layer.layout, None, None)
        else:
            y = backend.local(x, values, variance, pattern, layer.layout, None, seed, None)
        torch.autograd.backward(y, torch.ones_like(y))
        found.append(time.perf_counter() - began)
    return median(found[1:])
