"""The slow truth of the layers: plain loops over every product of an input with a weight.

A linear map is the list of its products (output element, input element, weight element), found by
Python loops from the torch module's own arguments. Everything after that is numpy in float64, with
the gradients derived by hand: no product of torch or of the package is used, and no autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from gossamer.nn import GroupedLinear


@dataclass(frozen=True)
class Products:
    """Every product of the map of one example: out[o] += x[i] * weight[w], flat indices."""

    out_shape: tuple[int, ...]
    o: np.ndarray
    i: np.ndarray
    w: np.ndarray

    def on(self, positions: np.ndarray) -> Products:
        """Only the products with a kept weight; ``w`` becomes its slot among ``positions``."""
        slot = np.full(1 + max(self.w.max(), positions.max()), -1)
        slot[positions] = np.arange(len(positions))
        keep = slot[self.w] >= 0
        return Products(self.out_shape, self.o[keep], self.i[keep], slot[self.w[keep]])


@dataclass(frozen=True)
class Result:
    """Output of a pass and the gradients of Σ upstream · output."""

    y: np.ndarray
    x: np.ndarray
    mean: np.ndarray
    raw_std: np.ndarray
    bias: np.ndarray
    variance: np.ndarray


def products_of(module: nn.Module, in_shape: tuple[int, ...], output_size=None) -> Products:
    """The products of a torch layer for one example of shape ``in_shape`` (channels first)."""
    if isinstance(module, nn.Linear):
        rows, columns = module.weight.shape
        triples = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]
        return _products((rows,), triples)
    if isinstance(module, GroupedLinear):
        rows, columns = module.weight.shape
        first = [columns * (r // (rows // module.groups)) for r in range(rows)]
        triples = [(r, first[r] + c, r * columns + c) for r in range(rows) for c in range(columns)]
        return _products((rows,), triples)
    if isinstance(module, _ConvTransposeNd):
        return _transposed(module, in_shape, output_size)
    return _convolution(module, in_shape)


def softplus(raw: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, raw)


def local(products, x, mean, raw_std, bias, noise, upstream) -> Result:
    """y = μx + b + sqrt(σ² x²) ε, Eq. (4); where the variance is 0, y = μx + b and no gradient."""
    std = softplus(raw_std)
    centre = _forward(products, x, mean) + _per_channel(bias, products)
    variance = _forward(products, x**2, std**2)
    alive = variance > 0
    root = np.sqrt(np.where(alive, variance, 1.0)) * alive
    to_variance = upstream * noise * 0.5 / np.where(alive, root, 1.0) * alive
    to_std = _to_weight(products, x**2, to_variance, mean.size) * 2.0 * std
    return Result(
        y=centre + root * noise,
        x=_to_input(products, upstream, mean, x.shape[1])
        + 2.0 * x * _to_input(products, to_variance, std**2, x.shape[1]),
        mean=_to_weight(products, x, upstream, mean.size),
        raw_std=to_std * _sigmoid(raw_std),
        bias=_to_bias(upstream, products),
        variance=variance,
    )


def drawn(products, x, mean, raw_std, bias, noise, upstream) -> Result:
    """y = θx + b with one θ = μ + σε for all rows; ``noise`` 0 is the mean."""
    theta = mean + softplus(raw_std) * noise
    to_theta = _to_weight(products, x, upstream, mean.size)
    return Result(
        y=_forward(products, x, theta) + _per_channel(bias, products),
        x=_to_input(products, upstream, theta, x.shape[1]),
        mean=to_theta,
        raw_std=to_theta * noise * _sigmoid(raw_std),
        bias=_to_bias(upstream, products),
        variance=_forward(products, x**2, softplus(raw_std) ** 2),
    )


def dense_gradient(products: Products, x, upstream, numel: int) -> np.ndarray:
    """d Σ upstream · y / d weight at every position, kept or not. Use all products."""
    return _to_weight(products, x, upstream, numel)


def _forward(p: Products, x, weight):
    size = prod(p.out_shape)
    return np.stack([np.bincount(p.o, row[p.i] * weight[p.w], minlength=size) for row in x])


def _to_weight(p: Products, x, upstream, size):
    rows = [
        np.bincount(p.w, g[p.o] * r[p.i], minlength=size) for r, g in zip(x, upstream, strict=True)
    ]
    return np.sum(rows, axis=0)


def _to_input(p: Products, upstream, weight, size):
    return np.stack([np.bincount(p.i, g[p.o] * weight[p.w], minlength=size) for g in upstream])


def _to_bias(upstream, p: Products):
    return upstream.reshape(len(upstream), p.out_shape[0], -1).sum(axis=(0, 2))


def _per_channel(bias, p: Products):
    return 0.0 if bias is None else np.repeat(bias, prod(p.out_shape[1:]))


def _sigmoid(raw):
    return 1.0 / (1.0 + np.exp(-raw))


def _products(out_shape, triples) -> Products:
    table = np.array(triples, dtype=np.int64).reshape(-1, 3)
    return Products(tuple(out_shape), table[:, 0], table[:, 1], table[:, 2])


def _flat(index, shape) -> int:
    place = 0
    for i, n in zip(index, shape, strict=True):
        place = place * n + i
    return place


def _padding(module) -> list[tuple[int, int]]:
    sizes = list(zip(module.kernel_size, module.dilation, strict=True))
    if module.padding == "valid":
        return [(0, 0) for _ in sizes]
    if module.padding == "same":  # torch puts the odd one after
        return [((k - 1) * d // 2, (k - 1) * d - (k - 1) * d // 2) for k, d in sizes]
    return [(p, p) for p in module.padding]


def _source(place: int, length: int, mode: str) -> int | None:
    """The input element that stands at ``place`` of the padded axis; ``None`` for a zero."""
    if 0 <= place < length:
        return place
    if mode == "zeros":
        return None
    if mode == "replicate":
        return 0 if place < 0 else length - 1
    if mode == "circular":
        return place % length
    return -place if place < 0 else 2 * (length - 1) - place  # reflect


def _convolution(module, in_shape) -> Products:
    spatial = in_shape[1:]
    pads = _padding(module)
    out_spatial = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, (a, b), d, k, s in zip(
            spatial, pads, module.dilation, module.kernel_size, module.stride, strict=True
        )
    ]
    out_shape = (module.out_channels, *out_spatial)
    per_group = module.in_channels // module.groups
    triples = []
    for at in product(*map(range, out_spatial)):
        for k in product(*map(range, module.kernel_size)):
            source = [
                _source(a * s + t * d - before, n, module.padding_mode)
                for a, t, s, d, (before, _), n in zip(
                    at, k, module.stride, module.dilation, pads, spatial, strict=True
                )
            ]
            if None in source:
                continue
            for c in range(module.out_channels):
                group = c // (module.out_channels // module.groups)
                for j in range(per_group):
                    i = _flat((group * per_group + j, *source), in_shape)
                    w = _flat((c, j, *k), module.weight.shape)
                    triples.append((_flat((c, *at), out_shape), i, w))
    return _products(out_shape, triples)


def _transposed(module, in_shape, output_size) -> Products:
    spatial = in_shape[1:]
    axes = list(
        zip(module.stride, module.padding, module.dilation, module.kernel_size, strict=True)
    )
    if output_size is None:
        out_spatial = [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, (s, p, d, k), e in zip(spatial, axes, module.output_padding, strict=True)
        ]
    else:
        out_spatial = list(output_size[-len(spatial) :])
    out_shape = (module.out_channels, *out_spatial)
    per_group = module.out_channels // module.groups
    triples = []
    for at in product(*map(range, spatial)):
        for k in product(*map(range, module.kernel_size)):
            goal = [a * s + t * d - p for a, t, (s, p, d, _) in zip(at, k, axes, strict=True)]
            if not all(0 <= g < n for g, n in zip(goal, out_spatial, strict=True)):
                continue
            for c in range(module.in_channels):
                group = c // (module.in_channels // module.groups)
                for j in range(per_group):
                    o = _flat((group * per_group + j, *goal), out_shape)
                    w = _flat((c, j, *k), module.weight.shape)
                    triples.append((o, _flat((c, *at), in_shape), w))
    return _products(out_shape, triples)
