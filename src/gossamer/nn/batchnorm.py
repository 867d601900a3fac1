"""torch's BatchNorm layers, with training steps on the native engine, and ``BatchNormReLU2d``.

A converted network gets them in the place of the plain ones: the same class hierarchy, parameters,
buffers and state; results agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer import models
from gossamer.ops.batchnorm import batchnorm, batchnorm_relu_by, runs_batchnorm


class NativeBatchNorm(_BatchNorm):
    """What the layers of all dimensions share."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """As torch's layer."""
        return self._train(input) if self._trains_on(input) else super().forward(input)

    def _trains_on(self, x: Tensor) -> bool:
        """Whether the engine computes this pass, by the statistics of ``x``; else torch does."""
        if not self.training or self.weight is None or self.bias is None:
            return False
        # Of a single value per channel torch says what is wrong with it.
        return runs_batchnorm(x, self.weight, self.bias) and x.numel() > x.shape[1]

    def _train(self, x: Tensor, residual: Tensor | None = None, *, relu: bool = False) -> Tensor:
        """The output, with running statistics brought forward."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        y, mean, variance = batchnorm(
            x, self.weight, self.bias, self.eps, residual=residual, relu=relu
        )
        if self.track_running_stats and self.running_mean is not None:
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share: float | Tensor | None = self.momentum
            if share is None:  # a plain average over all batches
                share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
            count = x.numel() // x.shape[1]
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


class BatchNormReLU2d(NativeBatchNorm, models.BatchNormReLU2d):
    """The normalisation, the residual and the ReLU in one pass, in evaluation too."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002
        """As the plain module."""
        if residual is None or (residual.shape == input.shape and runs_batchnorm(residual, input)):
            if self._trains_on(input):
                return self._train(input, residual, relu=True)
            statistics = self._statistics()
            if statistics is not None and self._evaluates(input, residual, *statistics):
                return batchnorm_relu_by(
                    input, *statistics, self.weight, self.bias, self.eps, residual
                )
        return models.BatchNormReLU2d.forward(self, input, residual)

    def _statistics(self) -> tuple[Tensor, Tensor] | None:
        """Those of evaluation, if the layer has all that the engine reads."""
        mean, variance = self.running_mean, self.running_var
        if self.training or mean is None or variance is None:
            return None
        return None if self.weight is None or self.bias is None else (mean, variance)

    def _evaluates(self, x: Tensor, residual: Tensor | None, *statistics: Tensor) -> bool:
        """Whether the engine computes the pass: it has no gradient and is no part of graphs."""
        if torch.compiler.is_compiling() or x.dim() != 4:
            return False
        read = (x, self.weight, self.bias, *(() if residual is None else (residual,)))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read):
            return False
        return runs_batchnorm(x, self.weight, self.bias, *statistics)


_TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    models.BatchNormReLU2d: BatchNormReLU2d,
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
