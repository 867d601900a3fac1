"""``bench step``: a whole training step, with the KL and a hundredth of a swap."""

from __future__ import annotations

import torch

from gossamer.bench import methods, targets
from gossamer.bench.networks import DenseStep, Network, SparseStep, channels_last, networks
from gossamer.bench.result import Entry, Finding, Measured, Row, fastest, timed_rows
from gossamer.bench.rivals import BAYESIAN_TORCH, bayesian_network
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.swapping import add, averaged
from gossamer.bench.timing import Effort, Run, Timing, interleave

USUAL = Effort(rounds=5, seconds=4.0)
BATCH, QUICK_BATCH = 128, 8

DENSE_VI = Entry("dense VI")
DENSE, DENSE_LAST = Entry("deterministic"), Entry("deterministic channels_last")
UNIFORM, ERK = "uniform_dense_first", "erk"


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Layers of both networks, then whole methods, at one number of threads."""
    resnet, mlp = networks(quick=settings.quick)
    # The perceptron has no small first layer that could stay dense.
    plans = ((resnet, (UNIFORM, ERK), (0.90, 0.95)), (mlp, (ERK,), (0.95,)))
    rows: list[Row] = []
    findings: list[Finding] = []
    for network, distributions, sparsities in plans:
        batch = QUICK_BATCH if settings.quick else BATCH
        case = f"{network.name}, batch {batch}"
        tell(f"{case}, {threads} thread(s)")
        runs = _runs(network, batch, distributions, sparsities)
        timings = averaged(interleave(runs, settings.effort(USUAL)))
        rows += timed_rows(case, timings, DENSE_VI, threads)
        findings += _findings(network, timings, threads, is_mlp=network is mlp)
    whole = methods.measure_steps(settings, threads, tell)
    return Measured((*rows, *whole.rows), (*findings, *whole.findings))


def _runs(
    network: Network, size: int, distributions: tuple[str, ...], sparsities: tuple[float, ...]
) -> dict[Entry, Run]:
    model, batch = network.build(), network.batch(size)
    runs: dict[Entry, Run] = {
        DENSE_VI: DenseStep.variational(model, batch).plain,
        DENSE: DenseStep(network.build(), None, batch).plain,
    }
    if batch[0].dim() == 4:
        last = (batch[0].to(memory_format=torch.channels_last), batch[1])
        runs[DENSE_LAST] = DenseStep(channels_last(model), None, last).plain
    rival = bayesian_network(model)
    if rival is not None:
        runs[Entry(BAYESIAN_TORCH)] = DenseStep(*rival, batch).plain
    middle = max(sparsities)
    masked = SparseStep(model, middle, distributions[0], batch, backend="masked")
    add(runs, Entry(f"masked {distributions[0]}", middle), masked)
    for distribution in distributions:
        for sparsity in sparsities:
            ours = SparseStep(model, sparsity, distribution, batch)
            add(runs, Entry(f"gossamer {distribution}", sparsity), ours)
    return runs


def _findings(
    network: Network, timings: dict[Entry, Timing], threads: int, *, is_mlp: bool
) -> list[Finding]:
    deterministic = fastest(timings, DENSE.contender, DENSE_LAST.contender)
    found = []
    for entry, timing in timings.items():
        if not entry.contender.startswith("gossamer") or entry.sparsity is None:
            continue
        distribution = entry.contender.removeprefix("gossamer ")
        name = f"{network.name} {100 * entry.sparsity:g} %, {distribution}: over"
        goal = over = None
        if is_mlp:
            goal = targets.MLP_STEP
        elif distribution == UNIFORM:
            goal = targets.STEP.get(entry.sparsity)
            over = targets.STEP_OVER_DETERMINISTIC.get(entry.sparsity)
        ratio = timings[DENSE_VI].median / timing.median
        found.append(Finding(f"{name} dense VI", threads, ratio, target=goal))
        ratio = timings[deterministic].median / timing.median
        found.append(Finding(f"{name} deterministic dense", threads, ratio, target=over))
    return found
