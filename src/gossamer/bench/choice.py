"""``bench choice``: native against masked over densities; the rule of ``auto`` was fitted to it."""

from __future__ import annotations

import torch
from torch import nn

from gossamer.bench.kernels import MASKED, NATIVE, forward_backward
from gossamer.bench.result import Entry, Finding, Measured, Row, timed_rows
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.timing import Effort, geometric_mean, interleave
from gossamer.nn import sparse_layers, to_bayesian, to_sparse
from gossamer.ops import AUTO, choose

USUAL = Effort(rounds=7, seconds=0.5)
SPARSITIES = (0.0, 0.5, 0.7, 0.8, 0.9)
BATCH = 128
Layers = dict[str, tuple[nn.Module, tuple[int, ...]]]


def _linear(inputs: int, outputs: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Linear(inputs, outputs), (BATCH, inputs)


def _conv(
    inputs: int, outputs: int, size: int, kernel: int = 3
) -> tuple[nn.Module, tuple[int, ...]]:
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    return layer, (BATCH, inputs, size, size)


def _layers(*, quick: bool) -> Layers:
    if quick:
        return {"linear 32→10": (nn.Linear(32, 10), (4, 32))}
    found: Layers = {}
    for inputs, outputs in ((512, 10), (1024, 10), (300, 100), (784, 300), (1024, 1024)):
        found[f"linear {inputs}→{outputs}"] = _linear(inputs, outputs)
    for inputs, outputs, size in ((3, 64, 32), (16, 32, 16), (64, 64, 16), (256, 256, 4)):
        found[f"conv 3x3 {inputs}→{outputs}@{size}²"] = _conv(inputs, outputs, size)
    found["conv 5x5 1→6@28²"] = _conv(1, 6, 28, 5)
    transposed = nn.ConvTranspose2d(32, 32, 3, padding=1)
    found["transposed 3x3 32→32@16²"] = transposed, (BATCH, 32, 16, 16)
    return found


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Every layer with and without noise at one number of threads."""
    rows: list[Row] = []
    gains, lost = [], []
    for name, (layer, shape) in _layers(quick=settings.quick).items():
        for noisy, convert in ((True, to_bayesian), (False, to_sparse)):
            case = f"{name}, {'Bayesian' if noisy else 'deterministic'}"
            tell(f"{case}, {threads} thread(s)")
            x, runs, chosen = torch.randn(shape), {}, {}
            for sparsity in SPARSITIES:
                for backend in (MASKED, NATIVE):
                    sparse = convert(layer, sparsity, backend=backend)
                    runs[Entry(backend, sparsity)] = forward_backward(sparse, x)
                    twin = next(iter(sparse_layers(sparse).values()))
                    chosen[sparsity] = choose(
                        AUTO, twin.layout, twin.nnz, x.device, x.dtype, noisy=noisy
                    )
            timings = interleave(runs, settings.effort(USUAL))
            for sparsity in SPARSITIES:
                masked, native = Entry(MASKED, sparsity), Entry(NATIVE, sparsity)
                pair = {entry: timings[entry] for entry in (masked, native)}
                taken = pair[Entry(chosen[sparsity], sparsity)]
                rows += timed_rows(case, {**pair, Entry(AUTO, sparsity): taken}, masked, threads)
                gains.append(pair[masked].median / taken.median)
                lost.append(taken.median / min(timing.median for timing in pair.values()))
    return Measured(
        tuple(rows),
        (
            Finding("masked over what auto takes, geometric mean", threads, geometric_mean(gains)),
            Finding(
                "what auto takes over the faster, geometric mean", threads, geometric_mean(lost)
            ),
            Finding("what auto takes over the faster, worst case", threads, max(lost)),
        ),
    )
