"""Algorithm 3 of cvadam2023 as plain dense torch code: an independent second implementation.

It shares nothing with ``gossamer.inference``: an ``nn.Sequential``, masks that are multiplied, a
loop over parameters. Tests hold the sparse implementation against it; the measurement of time
compares with it.
"""

from __future__ import annotations

from math import cos, pi, sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class DenseEMMCMC:
    """EM-MCMC in the authors' printed form on linear layers, groups being input units.

    Noise is drawn from torch's default generator, parameter by parameter, weights before biases,
    for the weights that have not left.

    Args:
        network: Linear layers; changed in place.
        num_data: N.
        total_steps: Of the run.
        warmup_steps: Before the first masks.
        cycles: Half cosines of Δt².
        pruning: ``dfp`` or ``dpf``.
        lr: Δt₀².
        slab_decay: δ₁/N, also of biases.
        spike_decay: δ₀/N.
        spike_threshold: λ₁.
        prune_threshold: λ₂.
        regression: Squared error without ½, else binary cross-entropy.
        betas: (β₁, β₂).
        tau_lr: η.
    """

    def __init__(
        self,
        network: nn.Sequential,
        *,
        num_data: int,
        total_steps: int,
        warmup_steps: int,
        cycles: int,
        pruning: Literal["dfp", "dpf"],
        lr: float,
        slab_decay: float,
        spike_decay: float,
        spike_threshold: float,
        prune_threshold: float,
        regression: bool,
        betas: tuple[float, float] = (0.1, 1.0),
        tau_lr: float = 0.1,
    ) -> None:
        self.network = network
        self.num_data, self.total_steps, self.warmup_steps = num_data, total_steps, warmup_steps
        self.cycles, self.pruning, self.lr, self.betas = cycles, pruning, lr, betas
        self.slab_decay, self.spike_decay = slab_decay, spike_decay
        self.spike_threshold, self.prune_threshold = spike_threshold, prune_threshold
        self.tau_lr = tau_lr
        self.regression = regression
        named = {name: p.detach() for name, p in network.named_parameters()}
        weights = [name for name, p in named.items() if p.dim() == 2]
        biases = [name for name, p in named.items() if p.dim() != 2]
        self.params = {name: named[name] for name in weights + biases}
        self.masks = {name: torch.ones_like(p) for name, p in self.params.items()}
        self.decays = {name: torch.full_like(p, slab_decay) for name, p in self.params.items()}
        self.rho = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.noise = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.velocity: dict[str, Tensor] = {}
        self.steps = 0
        self.rows = 0

    def step(self, batch: tuple[Tensor, Tensor]) -> float:
        """One step; the masks are formed anew after every epoch beyond the warm-up."""
        x, y = batch
        grads, loss = self._gradients(x, y)
        share = (self.steps * self.cycles % self.total_steps) / self.total_steps
        lr = self.lr * 0.5 * (1.0 + cos(pi * share))
        with torch.no_grad():
            for name, w in self.params.items():
                self._move(name, w, grads[name], lr)
        self.steps += 1
        self.rows += len(x)
        if self.rows >= self.num_data and self.steps >= self.warmup_steps:
            self.rows = 0
            self._form_masks()
        return loss

    def effective(self) -> dict[str, Tensor]:
        """The weights that predictions use, m⊙w, by name."""
        return {name: w * self.masks[name] for name, w in self.params.items()}

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], float]:
        """At m⊙w; under DPF (Eq. 8) they move the whole of w."""
        leaves = {name: w.requires_grad_() for name, w in self.effective().items()}
        output = functional_call(self.network, leaves, (x,)).squeeze(1)
        if self.regression:
            loss = F.mse_loss(output, y)
        else:
            loss = F.binary_cross_entropy_with_logits(output, y)
        grads = torch.autograd.grad(loss, list(leaves.values()))
        return dict(zip(leaves, grads, strict=True)), float(loss.detach())

    def _move(self, name: str, w: Tensor, grad: Tensor, lr: float) -> None:
        """Algorithm 2 with k = 1/√N, α = kΔt^{1.5}, where Δt² = ``lr``."""
        beta1, beta2 = self.betas
        alpha = lr**0.75 / sqrt(self.num_data)
        decay, rho = self.decays[name], self.rho[name]
        if name not in self.velocity:
            self.velocity[name] = 0.001 * self._normal(name)
        tau = torch.sigmoid(rho)
        rho += self.tau_lr * (
            1.0 / (self.num_data * tau) - alpha**2 * decay * tau - alpha * self.noise[name] * grad
        )
        tau = torch.sigmoid(rho)
        noise = self._normal(name)
        velocity = beta1 * self.velocity[name] - beta2 * lr * (grad + decay * w)
        velocity += sqrt(2.0 + 2.0 * beta1**2) * alpha * noise
        w += tau * velocity
        if self.pruning == "dfp":
            w *= self.masks[name]
        self.velocity[name], self.noise[name] = velocity, noise

    def _normal(self, name: str) -> Tensor:
        """Noise for the weights that have not left."""
        w = self.params[name]
        if self.pruning == "dpf" or w.dim() != 2:
            return torch.randn(w.shape, dtype=w.dtype)
        noise, kept = torch.zeros_like(w), self.masks[name].bool()
        noise[kept] = torch.randn(int(kept.sum()), dtype=w.dtype)
        return noise

    def _form_masks(self) -> None:
        """Hard masks by Eq. (10), then soft ones, from the mean squares of the columns."""
        for name, w in self.params.items():
            if w.dim() != 2:
                continue
            size = w.square().mean(0)
            keep = size >= self.prune_threshold
            if self.pruning == "dfp":
                keep &= self.masks[name][0].bool()
            if not bool(keep.any()):
                keep[size.argmax()] = True
            self.masks[name] = keep.to(w).expand_as(w).clone()
            if self.pruning == "dfp":
                w.mul_(self.masks[name])
            spike, slab = w.new_tensor(self.spike_decay), w.new_tensor(self.slab_decay)
            # A masked column is under the spike; under DFP it is 0 and has no use for either.
            decay = torch.where((size < self.spike_threshold) | ~keep, spike, slab)
            self.decays[name] = decay.expand_as(w).clone()
