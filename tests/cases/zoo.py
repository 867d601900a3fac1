"""The zoo: every kind of layer and model that conversion must get right.

``LAYERS`` are single layers with an input shape, for values and gradients against the slow truth.
``MODELS`` are whole models, for conversion, state, sampling and cost. ``BACKENDS`` are the engines
of the package's own table, so that a new one joins every test by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from gossamer.nn import GroupedLinear
from gossamer.ops import BACKENDS as _TABLE

BACKENDS = sorted(_TABLE)


@dataclass(frozen=True)
class Layer:
    """One torch layer and an input for it.

    Attributes:
        build: Makes the layer.
        shape: Input shape, batch axis included where there is one.
        batch_dims: Leading axes that are not part of one example.
        output_size: Passed to a transposed convolution.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_dims: int = 1
    output_size: tuple[int, ...] | None = None

    @property
    def call(self) -> dict[str, object]:
        """Keyword arguments of a forward."""
        return {} if self.output_size is None else {"output_size": list(self.output_size)}


@dataclass(frozen=True)
class Model:
    """One torch model and an input for it."""

    name: str
    build: Callable[[], nn.Module]
    input: Callable[[], Tensor]


def _linears() -> list[Layer]:
    return [
        Layer("linear", lambda: nn.Linear(5, 4), (3, 5)),
        Layer("linear-no-bias", lambda: nn.Linear(5, 4, bias=False), (3, 5)),
        Layer("linear-vector", lambda: nn.Linear(5, 4), (5,), batch_dims=0),
        Layer("linear-leading", lambda: nn.Linear(4, 6), (2, 3, 2, 4), batch_dims=3),
        Layer("linear-one-output", lambda: nn.Linear(7, 1), (4, 7)),
        Layer("linear-one-weight", lambda: nn.Linear(1, 1), (2, 1)),
        Layer("linear-groups", lambda: GroupedLinear(6, 4, groups=2), (3, 6)),
        Layer("linear-groups-leading", lambda: GroupedLinear(9, 3, 3, bias=False), (2, 3, 9), 2),
    ]


_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_SPATIAL = {1: (7,), 2: (6, 5), 3: (4, 3, 5)}
_MIXED: dict[int, dict[str, object]] = {
    1: {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2},
    2: {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
    3: {"kernel_size": (2, 1, 3), "stride": (1, 2, 2), "padding": (1, 0, 1), "dilation": (2, 1, 1)},
}
_KERNEL = {1: (3,), 2: (3, 2), 3: (2, 1, 3)}
_SAME: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    1: [((4,), (1,)), ((2,), (3,)), ((3,), (2,))],
    2: [((2, 3), (1, 1)), ((4, 2), (1, 2)), ((3, 3), (1, 1))],
    3: [((2, 1, 3), (1, 1, 1)), ((2, 2, 2), (1, 1, 2))],
}


def _convs(n: int) -> list[Layer]:
    kind, spatial = _CONV[n], _SPATIAL[n]
    rows: list[tuple[str, dict[str, object], bool]] = [
        ("plain", {"kernel_size": 2}, True),
        ("no-bias", {"kernel_size": 2, "bias": False}, True),
        ("pointwise", {"kernel_size": 1}, True),
        ("mixed", _MIXED[n], True),
        ("valid", {"kernel_size": 3, "padding": "valid"}, True),
        ("groups", {"kernel_size": 2, "groups": 2, "channels": (4, 6)}, True),
        ("depthwise", {"kernel_size": 3, "groups": 3, "channels": (3, 3), "padding": 1}, True),
        ("multiplier", {"kernel_size": 2, "groups": 2, "channels": (2, 6)}, True),
        ("unbatched", {"kernel_size": 2, "padding": 1}, False),
    ]
    for kernel, dilation in _SAME[n]:
        options = {"kernel_size": kernel, "dilation": dilation, "padding": "same"}
        rows.append((f"same-{'x'.join(map(str, kernel))}", options, True))
    for mode in ("reflect", "replicate", "circular"):
        uneven = {"kernel_size": _SAME[n][0][0], "padding": "same", "padding_mode": mode}
        strided = {"kernel_size": _KERNEL[n], "stride": 2, "padding": 1, "padding_mode": mode}
        rows += [
            (mode, strided, True),
            (f"{mode}-same", uneven, True),
            (f"{mode}-unbatched", strided, False),
        ]
    rows.append(("mixed-groups", {**_MIXED[n], "groups": 2, "channels": (2, 4)}, True))
    return [_layer(f"conv{n}d-{name}", kind, dict(o), spatial, b) for name, o, b in rows]


_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_SMALL = {1: (5,), 2: (3, 4), 3: (2, 3, 2)}
_MIXED_TRANSPOSED: dict[int, dict[str, object]] = {
    1: {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "output_padding": 1},
    2: {
        "kernel_size": (3, 2),
        "stride": (2, 3),
        "padding": (1, 0),
        "dilation": (1, 2),
        "output_padding": (1, 2),
    },
    3: {
        "kernel_size": (2, 1, 3),
        "stride": (1, 2, 2),
        "padding": (1, 0, 1),
        "dilation": (2, 1, 1),
        "output_padding": (0, 1, 1),
    },
}


def _transposed(n: int) -> list[Layer]:
    kind, spatial = _TRANSPOSED[n], _SMALL[n]
    rows: list[tuple[str, dict[str, object], bool]] = [
        ("plain", {"kernel_size": 2}, True),
        ("no-bias", {"kernel_size": 3, "stride": 2, "bias": False}, True),
        ("gaps", {"kernel_size": 1, "stride": 2}, True),  # outputs that no weight reaches
        ("mixed", _MIXED_TRANSPOSED[n], True),
        ("groups", {"kernel_size": 2, "groups": 2, "channels": (4, 6), "stride": 2}, True),
        ("depthwise", {"kernel_size": 3, "groups": 3, "channels": (3, 3), "padding": 1}, True),
        ("unbatched", {"kernel_size": 3, "stride": 2, "padding": 1}, False),
    ]
    layers = [_layer(f"transposed{n}d-{name}", kind, dict(o), spatial, b) for name, o, b in rows]
    strided = {"kernel_size": 3, "stride": 2, "padding": 1}
    smallest = [(s - 1) * 2 - 2 + 3 for s in spatial]
    sizes = {
        "output-size": (smallest[0] + 1, *smallest[1:]),
        "output-shape": (2, 3, *(s + 1 for s in smallest)),
    }
    for name, size in sizes.items():
        layers.append(_layer(f"transposed{n}d-{name}", kind, strided, spatial, True, size))
    return layers


def _layer(name, kind, options, spatial, batched, output_size=None) -> Layer:
    options = dict(options)
    channels = options.pop("channels", (2, 3))
    return Layer(
        name,
        lambda: kind(*channels, **options),
        (2, channels[0], *spatial) if batched else (channels[0], *spatial),
        int(batched),
        output_size,
    )


LAYERS = [
    *_linears(),
    *(layer for n in (1, 2, 3) for layer in _convs(n)),
    *(layer for n in (1, 2, 3) for layer in _transposed(n)),
]


class TwoNames(nn.Module):
    """One module registered, and used, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6)
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class OneParameter(nn.Module):
    """Two linear layers, biases of their own, that share one weight Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class TiedHead(nn.Module):
    """A language model's head, tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(x))))


class SelfAttention(nn.Module):
    """MultiheadAttention on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding="valid", groups=2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 4, padding="same", padding_mode="circular"),
        nn.Tanh(),
        nn.ConvTranspose1d(4, 2, 3, stride=2, padding=1, output_padding=1),
    )


def volume() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.ConvTranspose3d(3, 2, 2))


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def _rows(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(1))


MODELS = [
    Model("bare-linear", lambda: nn.Linear(6, 4), _rows(3, 6)),
    Model("bare-conv", lambda: nn.Conv2d(2, 3, 3), _rows(2, 2, 5, 5)),
    Model("mlp", mlp, _rows(4, 6)),
    Model("convnet", convnet, _rows(4, 1, 6, 6)),
    Model("autoencoder", autoencoder, _rows(3, 2, 7)),
    Model("volume", volume, _rows(2, 1, 3, 4, 3)),
    Model("two-names", TwoNames, _rows(5, 6)),
    Model("one-parameter", OneParameter, _rows(5, 6)),
    Model("tied-head", TiedHead, lambda: torch.arange(10).reshape(2, 5)),
    Model("self-attention", SelfAttention, _rows(2, 3, 8)),
    Model("encoder-layer", encoder_layer, _rows(2, 3, 8)),
]

MODEL = {model.name: model for model in MODELS}


def ids(cases: list[Layer] | list[Model]) -> list[str]:
    """Names for ``pytest.mark.parametrize``."""
    return [case.name for case in cases]


def on_every_backend(cases: list[Layer] | list[Model]) -> list[tuple[object, str]]:
    """Each case with each engine."""
    return list(product(cases, BACKENDS))
