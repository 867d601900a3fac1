"""Algorithm 3 of cvadam2023 on dense tensors, masks multiplied in: the slow truth of ``em_mcmc``.

Written from the formulas of the paper (as PAPERS.md corrects them) with nothing of gossamer: no
supports, no optimiser, no shared code. The normals are those that the method under test drew.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call

# Axes that a group's statistic runs over, by kind of layer: [out, in, *kernel].
CONV_AXES = {"kernel": (2, 3), "input": (0, 2, 3), "output": (1, 2, 3), "weight": ()}
LINEAR_AXES = {"kernel": (), "input": (0,), "output": (1,), "weight": ()}


def statistic(w: Tensor, mask: Tensor, group: str, kind: str) -> Tensor:
    """A number per group, spread over the group's weights, from those that are not masked."""
    axes = (CONV_AXES if w.dim() == 4 else LINEAR_AXES)[group]
    if not axes:
        return w.square() if kind == "mean_square" else torch.zeros_like(w)
    if kind == "mean_square":
        count = mask.sum(axes, keepdim=True).clamp(min=1)
        return ((w.square() * mask).sum(axes, keepdim=True) / count).expand_as(w)
    v = w.abs() if kind == "abs_range" else w
    top = torch.where(mask, v, -math.inf).amax(axes, keepdim=True)
    low = torch.where(mask, v, math.inf).amin(axes, keepdim=True)
    return torch.where(mask.any(dim=axes[0], keepdim=True), top - low, 0.0).expand_as(w)


class DenseEM:
    """One run over all parameters of a plain network; ``noise`` of every step is passed in."""

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int,
        lr,
        betas,
        tau_lr,
        temperature,
        slab,
        spike,
        soft_threshold,
        hard_threshold,
        soft,
        hard,
        kinds,
        feedback: bool,
    ) -> None:
        self.net = net
        self.w = {n: p.detach().clone() for n, p in net.named_parameters()}
        self.weights = [n for n, p in self.w.items() if p.dim() > 1]
        self.v = {n: torch.zeros_like(p) for n, p in self.w.items()}
        self.rho = {n: torch.zeros_like(p) for n, p in self.w.items()}
        self.eps = {n: torch.zeros_like(p) for n, p in self.w.items()}
        self.mask = {n: torch.ones_like(self.w[n], dtype=torch.bool) for n in self.weights}
        self.decay = {
            n: torch.full_like(p, slab if p.dim() > 1 else 0.0) for n, p in self.w.items()
        }
        self.num_data, self.lr, self.betas, self.tau_lr = num_data, lr, betas, tau_lr
        self.temperature, self.last_lr = temperature / num_data, 0.0
        self.slab, self.spike = slab, spike
        self.soft_threshold, self.hard_threshold = soft_threshold, hard_threshold
        self.soft, self.hard, self.kinds, self.feedback = soft, hard, kinds, feedback

    def seen(self) -> dict[str, Tensor]:
        """m⊙w: what the network computes with."""
        return {n: p * self.mask[n] if n in self.mask else p for n, p in self.w.items()}

    def gradients(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        leaves = {n: p.clone().requires_grad_() for n, p in self.seen().items()}
        loss = nn.functional.cross_entropy(functional_call(self.net, leaves, (x,)), y)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def step(self, x: Tensor, y: Tensor, noise: dict[str, Tensor], factor: float) -> None:
        """Algorithm 2 with the noise over √τ; Eq. (8) where masked weights get feedback."""
        grads = self.gradients(x, y)
        beta1, beta2 = self.betas
        lr = self.lr * factor
        temperature = self.temperature
        # v is a displacement: it goes with the step.
        scale, self.last_lr = (math.sqrt(lr / self.last_lr) if self.last_lr else 1.0), lr
        alpha = math.sqrt((1 - beta1) * beta2 * temperature * lr / (1 + beta1**2))
        for n, g in grads.items():
            tau = 1 / (1 + torch.exp(-self.rho[n]))
            self.rho[n] = self.rho[n] + self.tau_lr * (
                temperature / tau - alpha**2 * self.decay[n] * tau - alpha * self.eps[n] * g
            )
            tau = 1 / (1 + torch.exp(-self.rho[n]))
            self.eps[n] = noise[n]
            full = g + self.decay[n] * self.w[n]
            kick = math.sqrt(2 + 2 * beta1**2) * alpha * noise[n] / tau.sqrt()
            self.v[n] = beta1 * scale * self.v[n] - beta2 * lr * full + kick
            self.w[n] = self.w[n] + tau * self.v[n]
        if not self.feedback:
            for n, m in self.mask.items():
                self.w[n], self.v[n] = self.w[n] * m, self.v[n] * m

    def refresh(self) -> None:
        """Hard mask, then soft mask of what is left."""
        for n in self.weights:
            w, everything = self.w[n], torch.ones_like(self.mask[n])
            among = everything if self.feedback else self.mask[n]
            found = statistic(w, among, self.hard, self.kinds[w.dim()])
            keep = among & ~(found < self.hard_threshold)
            if not keep.any():  # the best group stays
                keep = among & (found == found[among].max())
            self.mask[n] = keep
            if not self.feedback:
                self.w[n] = w * keep
            square = statistic(
                self.w[n],
                among & keep if not self.feedback else everything,
                self.soft[w.dim()],
                "mean_square",
            )
            self.decay[n] = torch.full_like(w, self.slab)
            self.decay[n][square < self.soft_threshold] = self.spike
            self.decay[n][~keep] = self.spike
