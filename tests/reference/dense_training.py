"""Training with swaps, written again on dense tensors.

Masks, plain autograd and Python sets stand where the library has vectors over the support, bounded
buffers and permutations. Slow and simple; for `nn.Sequential` networks of linear and 2-d
convolution layers. Only the noise is taken from the library: it is an input of both.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.nn import BayesianLayer, SparseLayer
from gossamer.ops import draw_seed, normal_like

FIRST = {"exp_avg", "momentum_buffer"}
SECOND = {"exp_avg_sq", "square_avg"}


def swapped(kept: set[int], removal: Tensor, addition: Tensor, count: int) -> set[int]:
    """The kept positions after one swap, by sorting Python lists.

    Ties favour staying, then the lower position.
    """
    low_first = sorted(kept, key=lambda i: (float(removal[i]), i))
    removed = set(low_first[:count])
    free = set(range(addition.numel())) - kept
    best_first = sorted(free | removed, key=lambda i: (-float(addition[i]), i not in removed, i))
    return (kept - removed) | set(best_first[:count])


def cosine_fraction(step: int, total_steps: int, fraction: float, end_fraction: float) -> float:
    """r_t of PAPERS.md, section 1: fraction/2 · (1 + cos(π t / T_end))."""
    return fraction / 2 * (1 + math.cos(math.pi * step / (end_fraction * total_steps)))


class DenseLayer(nn.Module):
    """A layer with a dense mean and raw std; positions off the mask hold exact zeros of both."""

    def __init__(self, layer: SparseLayer) -> None:
        super().__init__()
        self.layout = layer.layout
        self.bayesian = isinstance(layer, BayesianLayer)
        flat = torch.zeros(self.layout.numel, dtype=torch.bool)
        flat[layer.support.positions()] = True
        self.mask = flat.view(self.layout.shape)
        self.mean = nn.Parameter(self._scatter(layer.leading().detach()))
        if isinstance(layer, BayesianLayer):
            self.prior_std = layer.prior.std
            self.raw_std = nn.Parameter(self._scatter(layer.weight_raw_std.detach()))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())

    def _scatter(self, values: Tensor) -> Tensor:
        dense = torch.zeros(self.layout.shape, dtype=values.dtype)
        dense[self.mask] = values
        return dense

    @property
    def std(self) -> Tensor:
        return F.softplus(self.raw_std) * self.mask

    def kl(self) -> Tensor:
        q = torch.distributions.Normal(self.mean[self.mask], self.std[self.mask])
        p = torch.distributions.Normal(0.0, self.mean.new_tensor(self.prior_std))
        return torch.distributions.kl_divergence(q, p).sum()

    def apply_to(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.layout.kind == "linear":
            return F.linear(x, weight, bias)
        padding = self.layout.symmetric_padding
        return F.conv2d(x, weight, bias, self.layout.stride, padding)

    def forward(self, x: Tensor, *, noisy: bool) -> Tensor:
        y = self.apply_to(x, self.mean, self.bias)
        if not (self.bayesian and noisy):
            return y
        variance = self.apply_to(x.square(), self.std.square(), None)
        live = variance > 0
        spread = torch.zeros_like(variance).masked_scatter(live, variance[live].sqrt())
        return y + spread * normal_like(draw_seed(), variance)

    def kept(self) -> set[int]:
        return set(self.mask.flatten().nonzero().flatten().tolist())


class DenseTraining:
    """The dense twin of a converted `nn.Sequential` and of its optimiser.

    Args:
        model: Converted network; copied.
        make_optimizer: From a list of parameters to a torch optimiser.
        removal: `snr` or `mean_abs`.
        kl_weight: Factor of KL / num_data, here one number.
    """

    def __init__(self, model, make_optimizer, removal: str = "snr", kl_weight: float = 0.0) -> None:
        self.parts = [
            DenseLayer(m) if isinstance(m, SparseLayer) else copy.deepcopy(m) for m in model
        ]
        self.layers = [m for m in self.parts if isinstance(m, DenseLayer)]
        self.removal = removal
        self.kl_weight = kl_weight
        self.parameters = [p for m in self.parts for p in m.parameters()]
        self.optimizer = make_optimizer(self.parameters)

    def __call__(self, x: Tensor, *, noisy: bool = True, frozen: bool = False) -> Tensor:
        for part in self.parts:
            if isinstance(part, DenseLayer):
                x = part(x, noisy=noisy)
            elif isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d) and frozen:
                x = F.batch_norm(x, None, None, part.weight, part.bias, True, 0.0, part.eps)
            else:
                x = part(x)
        return x

    def scores(self, x: Tensor, y: Tensor, draws: int, *, noisy: bool) -> list[Tensor]:
        """Mean over `draws` passes of |d nll / d mean|, per layer, dense; leaves no trace."""
        total = [torch.zeros_like(layer.mean) for layer in self.layers]
        for _ in range(draws):
            nll = F.cross_entropy(self(x, noisy=noisy, frozen=True), y)
            gradients = torch.autograd.grad(nll, [layer.mean for layer in self.layers])
            total = [t + g.abs() / draws for t, g in zip(total, gradients, strict=True)]
        return total

    def backward(self, x: Tensor, y: Tensor, weight: float = 1.0) -> list[Tensor]:
        """Add the gradient of `weight` · (nll + KL) to `.grad`, on the mask only.

        Returns |d nll / d mean| per layer, dense.
        """
        nll = F.cross_entropy(self(x), y)
        means = [layer.mean for layer in self.layers]
        scores = [g.abs() for g in torch.autograd.grad(nll, means, retain_graph=True)]
        kl = sum((layer.kl() for layer in self.layers if layer.bayesian), torch.zeros(()))
        (weight * (nll + self.kl_weight * kl)).backward()
        for layer in self.layers:
            for p in (layer.mean, layer.raw_std) if layer.bayesian else (layer.mean,):
                p.grad *= layer.mask
        return scores

    @torch.no_grad()
    def swap(self, scores: list[Tensor], fraction: float) -> None:
        for layer, score in zip(self.layers, scores, strict=True):
            old = layer.kept()
            if len(old) == layer.mask.numel():
                continue
            size = layer.mean.abs()
            if self.removal == "snr":
                size = size / layer.std.clamp(min=1e-300)
            count = int(fraction * len(old))
            new = swapped(old, size.flatten(), score.flatten(), count)
            self._move(layer, sorted(old & new), sorted(new - old), sorted(old - new))

    def _move(self, layer: DenseLayer, stay: list[int], enter: list[int], leave: list[int]) -> None:
        mean_std = float(layer.std.flatten()[stay].mean()) if layer.bayesian else 0.0
        layer.mask.view(-1)[leave] = False
        layer.mask.view(-1)[enter] = True
        for p in (layer.mean, layer.raw_std) if layer.bayesian else (layer.mean,):
            p.view(-1)[leave] = 0.0
            for name, state in self.optimizer.state[p].items():
                if state.shape != p.shape:
                    continue
                flat = state.view(-1)
                assert name in FIRST | SECOND, name
                flat[enter] = flat[stay].mean() if name in SECOND else 0.0
                flat[leave] = 0.0
        if layer.bayesian:
            layer.raw_std.view(-1)[enter] = math.log(math.expm1(mean_std))
