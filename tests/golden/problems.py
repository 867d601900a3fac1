"""The data and networks of the cases: digits, a few hundred of them, and small nets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gossamer import models

ROWS, BATCH = 192, 64
"""An epoch is three steps: EM-MCMC forms its masks once per epoch."""

MORE_ROWS = 300
"""Of a prediction that takes two blocks of 256 rows."""


@lru_cache(maxsize=1)
def _digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x).float() / 16.0, torch.from_numpy(y).long()


def _few_columns(x: Tensor) -> Tensor:
    """All but a few columns 0: their gradients are 0, and ties decide who enters and who leaves."""
    kept = torch.zeros_like(x)
    kept[:, 18:24] = x[:, 18:24]
    return kept


INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "images": lambda x: x.view(-1, 1, 8, 8),
    "tokens": lambda x: x.view(-1, 8, 8),
    "few": _few_columns,
}

TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "categorical": lambda y: y,
    "bernoulli": lambda y: (y > 4).float(),
    "gaussian": lambda y: (y.float() - 4.5) / 3.0,
    "poisson": lambda y: y.float(),
}


def batch(kind: str, likelihood: str, step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets of step 1, 2, …: the rows in turn."""
    x, y = _digits()
    first = (step - 1) * BATCH % ROWS
    rows = slice(first, first + BATCH)
    return INPUTS[kind](x[rows]).to(dtype), TARGETS[likelihood](y[rows])


def unseen(kind: str, count: int, dtype: torch.dtype) -> Tensor:
    """``count`` rows that no step sees."""
    return INPUTS[kind](_digits()[0][ROWS : ROWS + count]).to(dtype)


class Shared(nn.Module):
    """One layer called twice, and one weight under two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.twice = nn.Linear(16, 16)
        self.one, self.other = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.other.weight = self.one.weight
        self.last = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.twice(torch.relu(self.twice(x))))
        return self.last(torch.relu(self.other(torch.relu(self.one(x)))))


class Attention(nn.Module):
    """Rows of an image as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x).mean(1))


def _mlp(outputs: int) -> Callable[[], nn.Module]:
    return lambda: models.mlp(input_shape=(64,), output_size=outputs, hidden=(24, 16))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 10),
    )


def _other_layers() -> nn.Module:
    """A convolution of sequences with dilation, and a transposed one."""
    return nn.Sequential(
        nn.Unflatten(1, (4, 16)),
        nn.Conv1d(4, 6, 3, dilation=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Unflatten(1, (8, 3, 3)),
        nn.ConvTranspose2d(8, 3, 2, stride=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(108, 10),
    )


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp": ("rows", _mlp(10)),
    "mlp-few": ("few", _mlp(10)),
    "mlp-real": ("rows", _mlp(1)),
    "mlp-head": ("rows", _mlp(2)),
    "conv": ("images", _convolutional),
    "others": ("rows", _other_layers),
    "resnet": ("images", lambda: models.resnet20(in_channels=1, num_classes=10)),
    "shared": ("rows", Shared),
    "attention": ("tokens", Attention),
}
"""By name: the kind of input, and how it is built from torch's generator."""
