"""``bench predict``: 16 posterior samples, for one row and for many."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer.bench import targets
from gossamer.bench.dense_vi import draw_weights, to_dense_vi
from gossamer.bench.networks import Network, channels_last, networks
from gossamer.bench.result import Entry, Finding, Measured, Row, fastest, timed_rows
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.timing import Effort, Run, Timing, geometric_mean, interleave
from gossamer.nn import to_bayesian
from gossamer.prediction import predict, predict_moments

USUAL = Effort(rounds=3, seconds=2.0)
SPARSITY = 0.95
SAMPLES, QUICK_SAMPLES = 16, 2
BATCHES, QUICK_BATCHES = (1, 256), (1, 4)
CHUNK = 256
"""Rows of a dense pass over repeated rows: no slower than all at once, and it fits in memory."""

OURS = Entry("gossamer", SPARSITY)
LOCAL = Entry("gossamer, local noise", SPARSITY)
MOMENTS = Entry("gossamer, moments", SPARSITY)
MASKED = Entry("masked", SPARSITY)
DRAWN = "dense VI, a pass per sample"
NOISY = "dense VI, local noise, a pass per sample"
REPEATED_VI = "dense VI, rows repeated"
PASSES = "deterministic, a pass per sample"
REPEATED = "deterministic, rows repeated"
LAST = " (channels_last)"
COMPARED = {
    OURS: {DRAWN: targets.PREDICT, REPEATED_VI: None, PASSES: None, REPEATED: None},
    LOCAL: {NOISY: targets.PREDICT, REPEATED_VI: None},
}
"""What each way of drawing is compared with; the first of them draws alike, for every sample."""


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Both networks and both batches at one number of threads."""
    samples = QUICK_SAMPLES if settings.quick else SAMPLES
    rows: list[Row] = []
    measured: list[dict[Entry, Timing]] = []
    resnet, mlp = networks(quick=settings.quick)
    for network, distribution in ((mlp, "erk"), (resnet, "uniform_dense_first")):
        for batch in QUICK_BATCHES if settings.quick else BATCHES:
            case = f"{network.name}, {samples} samples, batch {batch}"
            tell(f"{case}, {threads} thread(s)")
            runs = _runs(network, distribution, batch, samples)
            timings = interleave(runs, settings.effort(USUAL))
            measured.append(timings)
            rows += timed_rows(case, timings, Entry(DRAWN), threads)
    findings = []
    for ours, baselines in COMPARED.items():
        for baseline, goal in baselines.items():
            ratios = [
                timings[fastest(timings, baseline, baseline + LAST)].median / timings[ours].median
                for timings in measured
            ]
            name = f"{ours.contender}, {samples} samples at {100 * SPARSITY:g} %: over {baseline}"
            mean = geometric_mean(ratios)
            findings.append(Finding(name, threads, mean, target=goal))
            findings.append(Finding(f"{name}, worst case", threads, min(ratios), target=goal))
    return Measured(tuple(rows), tuple(findings))


def _runs(network: Network, distribution: str, batch: int, samples: int) -> dict[Entry, Run]:
    model = network.build().eval()
    x = network.batch(batch)[0]

    def sparse(backend: str) -> nn.Module:
        return to_bayesian(
            model, SPARSITY, sparsity_distribution=distribution, backend=backend
        ).eval()

    ours, masked = sparse("auto"), sparse("masked")
    runs: dict[Entry, Run] = {
        Entry(DRAWN): _passes(draw_weights(to_dense_vi(model)), x, samples),
        Entry(NOISY): _passes(to_dense_vi(model), x, samples),
        Entry(REPEATED_VI): _repeated(to_dense_vi(model), x, samples),
        Entry(PASSES): _passes(model, x, samples),
        Entry(REPEATED): _repeated(model, x, samples),
    }
    if x.dim() == 4:
        last, x_last = channels_last(model), x.to(memory_format=torch.channels_last)
        runs[Entry(PASSES + LAST)] = _passes(last, x_last, samples)
        runs[Entry(REPEATED + LAST)] = _repeated(last, x_last, samples)
    runs[MASKED] = lambda: predict(masked, x, samples)
    runs[LOCAL] = lambda: predict(ours, x, samples, noise="local")
    runs[MOMENTS] = lambda: predict_moments(ours, x)
    runs[OURS] = lambda: predict(ours, x, samples)
    return runs


def _passes(model: nn.Module, x: Tensor, samples: int) -> Run:
    """One pass over all rows for every sample."""
    return _averaged(lambda: [model(x) for _ in range(samples)])


def _repeated(model: nn.Module, x: Tensor, samples: int) -> Run:
    """One pass over every row as often as there are samples."""

    def outputs() -> list[Tensor]:
        repeated = x.repeat(samples, *(1 for _ in x.shape[1:]))
        if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
            repeated = repeated.contiguous(memory_format=torch.channels_last)
        found = torch.cat([model(rows) for rows in torch.split(repeated, CHUNK)])
        return list(torch.split(found, x.shape[0]))

    return _averaged(outputs)


def _averaged(outputs: Callable[[], list[Tensor]]) -> Run:
    """Averaged class probabilities, the least that a prediction consists of."""

    def run() -> Tensor:
        with torch.no_grad():
            return torch.stack(outputs()).softmax(-1).mean(0)

    return run
