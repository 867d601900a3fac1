"""Networks of torch's own layers, put together as people do: the core that every test run has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from zoo.entries import Entry


class Recurrent(nn.Module):
    """A recurrent layer, and a classifier on its last state."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 16, batch_first=True, **options)
        width = options.get("proj_size") or 16
        self.head = nn.Linear(width * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, 6]`` to ``[B, 4]``."""
        states, _ = self.rnn(x)
        return self.head(states[:, -1])


class Attention(nn.Module):
    """Attention of tokens on each other, and a classifier on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, 6]`` to ``[B, 4]``."""
        x = self.embed(x)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head((x + mixed).mean(1))


class Encoder(nn.Module):
    """A transformer encoder, and a classifier on its first token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.embed = nn.Linear(6, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, 6]`` to ``[B, 4]``."""
        return self.head(self.encoder(self.embed(x))[:, 0])


class Cell(nn.Module):
    """A recurrent network written by hand: one layer, called at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(6 + 16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, 6]`` to ``[B, 4]``."""
        state = x.new_zeros(len(x), 16)
        for part in x.unbind(1):
            state = torch.tanh(self.step(torch.cat([part, state], 1)))
        return self.head(state)


class Tied(nn.Module):
    """An autoencoder whose decoder reads the encoder's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 20]`` to ``[B, 20]``."""
        return nn.functional.linear(torch.relu(self.encode(x)), self.encode.weight.T)


class Pairs(nn.Module):
    """A bilinear form of two halves of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(10, 10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, 20]`` to ``[B, 4]``."""
        return self.head(torch.relu(self.pair(x[:, :10], x[:, 10:])))


class Words(nn.Module):
    """Embedded words, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, ids: Tensor) -> Tensor:
        """int64 ``[B, T]`` to ``[B, 4]``."""
        return self.body(self.embed(ids).mean(1))


def _rows() -> Tensor:
    return torch.randn(12, 20)


def _tokens() -> Tensor:
    return torch.randn(12, 5, 6)


def _images(channels: int = 3) -> Tensor:
    return torch.randn(8, channels, 12, 12)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, padding="same"),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, padding_mode="circular"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def _autoencoder() -> nn.Module:
    down, up = nn.Conv2d(3, 8, 4, stride=2, padding=1), nn.ConvTranspose2d(8, 3, 4, 2, 1)
    return nn.Sequential(down, nn.ReLU(), up)


def _normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(20, 32)), nn.ReLU(), nn.Linear(32, 4))


ENTRIES = (
    Entry("torch", "MLP with LayerNorm", lambda: (_mlp(), _rows())),
    Entry("torch", "CNN: groups, strides, circular padding", lambda: (_cnn(), _images())),
    Entry("torch", "autoencoder, ConvTranspose2d", lambda: (_autoencoder(), _images())),
    Entry("torch", "tied autoencoder, F.linear", lambda: (Tied(), _rows())),
    Entry("torch", "weight_norm", lambda: (_normed(), _rows())),
    Entry("torch", "hand-made recurrent cell", lambda: (Cell(), _tokens())),
    Entry("torch", "nn.MultiheadAttention", lambda: (Attention(), _tokens())),
    Entry("torch", "nn.TransformerEncoder", lambda: (Encoder(), _tokens())),
    Entry(
        "torch",
        "nn.LSTM, two layers, both ways",
        lambda: (Recurrent(nn.LSTM, num_layers=2, bidirectional=True), _tokens()),
    ),
    Entry("torch", "nn.LSTM, proj_size", lambda: (Recurrent(nn.LSTM, proj_size=8), _tokens())),
    Entry("torch", "nn.GRU", lambda: (Recurrent(nn.GRU), _tokens())),
    Entry("torch", "nn.Bilinear", lambda: (Pairs(), _rows())),
    Entry("torch", "nn.Embedding", lambda: (Words(), torch.randint(50, (12, 7)))),
)
