"""torch's BatchNorm layers, with training steps on the native engine.

A converted network gets them in the place of torch's: the same class hierarchy, parameters, buffers
and state; results agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.ops.batchnorm import batchnorm, runs_batchnorm


class NativeBatchNorm(_BatchNorm):
    """What the layers of all dimensions share."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """As torch's layer."""
        if (
            not self.training
            or self.weight is None
            or self.bias is None
            or not runs_batchnorm(input, *self.parameters())
        ):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        count = input.numel() // input.shape[1]
        if count == 1:
            return super().forward(input)  # which says what is wrong with it
        y, mean, variance = batchnorm(input, self.weight, self.bias, self.eps)
        if self.track_running_stats and self.running_mean is not None:
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share: float | Tensor | None = self.momentum
            if share is None:  # a plain average over all batches
                share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                unbiased = variance * (count / (count - 1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        return y


class BatchNorm1d(NativeBatchNorm, nn.BatchNorm1d):
    """See the module."""


class BatchNorm2d(NativeBatchNorm, nn.BatchNorm2d):
    """See the module."""


class BatchNorm3d(NativeBatchNorm, nn.BatchNorm3d):
    """See the module."""


_TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def use_native_batchnorm(model: nn.Module) -> None:
    """Put the engine's layers in the place of torch's own; subclasses of those are left alone."""
    _exchange(model, _TWINS)


def use_torch_batchnorm(model: nn.Module) -> None:
    """The way back."""
    _exchange(model, {twin: plain for plain, twin in _TWINS.items()})


def _exchange(model: nn.Module, twins: dict[type[nn.Module], type[nn.Module]]) -> None:
    made: dict[nn.Module, nn.Module] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        twin = twins.get(type(module))
        if twin is None or not name:
            continue
        if module not in made:
            made[module] = twin.__new__(twin)
            made[module].__dict__ = module.__dict__  # parameters, buffers, hooks: the very same
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[module])
