"""torch's BatchNorm layers on the native engine, with a residual and a ReLU in the same pass.

A converted network gets them in the place of torch's: the same class hierarchy, parameters, buffers
and state; results agree to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.ops import batchnorm, batchnorm_relu_by, runs_batchnorm

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NativeBatchNorm(_BatchNorm):
    """What the layers of all dimensions share.

    They keep the contract ``gossamer.models.FusingNorm``, by which ``norm_relu`` finds them.
    """

    def fuses(self, relu: nn.Module) -> bool:
        """Whether this layer may do the work of the one after it: a ReLU, and no hook on either."""
        modules = (self, relu)
        return type(relu) is nn.ReLU and not any(getattr(m, h) for m in modules for h in _HOOKS)

    def forward(
        self,
        input: Tensor,  # noqa: A002 (torch's name)
        residual: Tensor | None = None,
        *,
        relu: bool = False,
    ) -> Tensor:
        """As torch's layer; then the sum with a residual and a ReLU (``FusingNorm.forward``)."""
        if self._has_all(input, residual):
            if self.training:
                return self._train(input, residual, relu=relu)
            if relu and self._needs_no_gradient(input, residual):
                return self._evaluate(input, residual)
        y = super().forward(input)
        y = y if residual is None else y + residual
        return F.relu(y) if relu else y

    def _has_all(self, x: Tensor, residual: Tensor | None) -> bool:
        """Whether the engine takes the input, by the statistics that the mode asks for."""
        statistics = () if self.training else (self.running_mean, self.running_var)
        read = [t for t in (self.weight, self.bias, *statistics) if t is not None]
        if len(read) < 2 + len(statistics) or not runs_batchnorm(x, residual, *read):
            return False
        # Of a single value per channel torch says what is wrong with it.
        return not self.training or x.numel() > x.shape[1]

    def _needs_no_gradient(self, x: Tensor, residual: Tensor | None) -> bool:
        """Whether a pass may be no part of a graph, which evaluation on the engine is not."""
        if torch.compiler.is_compiling():
            return False
        read = (x, self.weight, self.bias, *(() if residual is None else (residual,)))
        return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read))

    def _evaluate(self, x: Tensor, residual: Tensor | None) -> Tensor:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        assert self.running_mean is not None
        assert self.running_var is not None
        return batchnorm_relu_by(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.eps, residual
        )

    def _train(self, x: Tensor, residual: Tensor | None, *, relu: bool) -> Tensor:
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
