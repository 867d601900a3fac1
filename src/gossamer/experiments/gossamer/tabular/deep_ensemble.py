"""The deep ensemble of 5 (Lakshminarayanan et al. 2017), in plain torch, as a user would write it.

Networks that give a mean and a variance, trained by the normal NLL from different starts on all
rows; the prediction is the normal distribution with the moments of their even mixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Array = NDArray[np.float64]

_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class EnsembleSettings:
    """How it trains.

    Attributes:
        networks: How many.
        hidden: Widths.
        steps: Of each network, about; at least ``least_epochs`` passes.
        least_epochs: Passes over the rows.
        batch_size: Rows of a step.
        lr: Adam's, falling to 0 by a cosine.
        weight_decay: Adam's.
    """

    networks: int = 5
    hidden: tuple[int, ...] = (64, 64)
    steps: int = 2000
    least_epochs: int = 20
    batch_size: int = 64
    lr: float = 1e-2
    weight_decay: float = 1e-4


class DeepEnsemble:
    """Fit and predict.

    Args:
        settings: How it trains.
        seed: Of starts and of the order of rows.
    """

    def __init__(self, settings: EnsembleSettings, seed: int) -> None:
        self.settings, self._seed = settings, seed
        self._networks: list[nn.Sequential] = []

    def fit(self, x: Array, y: Array) -> DeepEnsemble:
        """Train on standardised rows."""
        self._at, self._by = x.mean(0), x.std(0) + 1e-12
        self._centre, self._scale = float(y.mean()), float(y.std()) or 1.0
        inputs = self._inputs(x)
        target = torch.from_numpy((y - self._centre) / self._scale).float()
        generator = torch.Generator().manual_seed(self._seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            for _ in range(self.settings.networks):
                self._networks.append(self._trained(inputs, target, generator))
        return self

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Mean and std ``[N]``."""
        inputs = self._inputs(x)
        with torch.no_grad():
            found = [_mean_and_variance(network, inputs) for network in self._networks]
        means, variances = (torch.stack(part).double().numpy() for part in zip(*found, strict=True))
        total = (variances + means**2).mean(0) - means.mean(0) ** 2
        return self._centre + self._scale * means.mean(0), self._scale * np.sqrt(total)

    def _inputs(self, x: Array) -> Tensor:
        return torch.from_numpy((x - self._at) / self._by).float()

    def _trained(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Sequential:
        about, layers, width = self.settings, [], x.shape[1]
        for hidden in about.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        network = nn.Sequential(*layers, nn.Linear(width, 2))
        per_epoch = -(-len(x) // about.batch_size)
        epochs = max(about.least_epochs, -(-about.steps // per_epoch))
        optimizer = torch.optim.Adam(
            network.parameters(), about.lr, weight_decay=about.weight_decay
        )
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator)
            for rows in torch.split(order, about.batch_size):
                mean, variance = _mean_and_variance(network, x[rows])
                loss = 0.5 * ((y[rows] - mean).square() / variance + variance.log()).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                falling.step()
        return network


def _mean_and_variance(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    mean, raw = network(x).unbind(1)
    return mean, F.softplus(raw) + _LEAST_VARIANCE
