"""The networks of ``bench transformer``: plain torch, as small as people train on a laptop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention with one projection in and one out, ``[B, T, D] → [B, T, D]``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens that looked at each other."""
        batch, tokens, width = x.shape
        parts = self.project(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class TokenMixing(nn.Module):
    """A perceptron over tokens, ``[B, T, D] → [B, T, D]``."""

    def __init__(self, tokens: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(tokens, hidden), nn.GELU(), nn.Linear(hidden, tokens))

    def forward(self, x: Tensor) -> Tensor:
        """Every feature by itself."""
        out: Tensor = self.body(x.transpose(1, 2))
        return out.transpose(1, 2)


class Block(nn.Module):
    """Mixes tokens, then features, each after a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, mixing: nn.Module) -> None:
        super().__init__()
        self.mixing = mixing
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, D]``."""
        x = x + self.mixing(self.norms[0](x))
        out: Tensor = x + self.body(self.norms[1](x))
        return out


class TokenNet(nn.Module):
    """Embeds, runs blocks, averages the tokens and classifies."""

    def __init__(self, embed: nn.Module, tokens: int, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.embed = embed
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Patches ``[B, T, P]`` or words ``[B, T]`` to ``[B, 10]``."""
        out: Tensor = self.head(self.blocks(self.embed(x) + self.position).mean(1))
        return out


@dataclass(frozen=True)
class TokenNetwork:
    """A network of tokens and its data.

    Attributes:
        name: For a reader.
        tokens: Of an example.
        width: Features of a token.
        depth: Blocks.
        heads: Of attention; 0 for a mixer.
        patch: Numbers of a patch; ``None`` for words.
    """

    name: str
    tokens: int
    width: int
    depth: int
    heads: int
    patch: int | None

    def build(self) -> nn.Module:
        """The plain torch network."""
        embed = (
            nn.Embedding(1000, self.width)
            if self.patch is None
            else nn.Linear(self.patch, self.width)
        )
        blocks = [Block(self.width, self._mixing()) for _ in range(self.depth)]
        return TokenNet(embed, self.tokens, self.width, blocks)

    def _mixing(self) -> nn.Module:
        if self.heads:
            return Attention(self.width, self.heads)
        return TokenMixing(self.tokens, self.width // 2)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Random examples and classes."""
        y = torch.randint(10, (size,))
        if self.patch is None:
            return torch.randint(1000, (size, self.tokens)), y
        return torch.randn(size, self.tokens, self.patch), y


VIT = TokenNetwork("ViT-tiny", 16, 192, 12, 3, 192)
FULL = (
    VIT,
    TokenNetwork("MLP-Mixer", 64, 192, 4, 0, 48),
    TokenNetwork("BERT-mini", 32, 256, 4, 4, None),
)
QUICK = (
    TokenNetwork("ViT, small", 4, 32, 1, 2, 12),
    TokenNetwork("MLP-Mixer, small", 4, 32, 1, 0, 12),
    TokenNetwork("BERT, small", 4, 32, 1, 2, None),
)
