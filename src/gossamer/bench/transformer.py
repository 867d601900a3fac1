"""``bench transformer``: a whole training step of networks of tokens, against dense ones."""

from __future__ import annotations

from gossamer.bench import targets
from gossamer.bench.networks import DenseStep, SparseStep
from gossamer.bench.result import Entry, Finding, Measured, Row, timed_rows
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.swapping import add, averaged
from gossamer.bench.timing import Effort, Run, Timing, interleave
from gossamer.bench.token_networks import FULL, QUICK, VIT, TokenNetwork

USUAL = Effort(rounds=5, seconds=6.0)
BATCH, QUICK_BATCH = 64, 4
SPARSITIES = (0.90, 0.95)

DENSE_VI, DENSE = Entry("dense VI"), Entry("deterministic")


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """Every network at one number of threads."""
    rows: list[Row] = []
    findings: list[Finding] = []
    for network in QUICK if settings.quick else FULL:
        size = QUICK_BATCH if settings.quick else BATCH
        case = f"{network.name}, batch {size}"
        tell(f"{case}, {threads} thread(s)")
        timings = averaged(interleave(_runs(network, size), settings.effort(USUAL)))
        rows += timed_rows(case, timings, DENSE_VI, threads)
        findings += _findings(network, timings, threads)
    return Measured(tuple(rows), tuple(findings))


def _runs(network: TokenNetwork, size: int) -> dict[Entry, Run]:
    model, batch = network.build(), network.batch(size)
    runs: dict[Entry, Run] = {
        DENSE_VI: DenseStep.variational(model, batch).plain,
        DENSE: DenseStep(network.build(), None, batch).plain,
    }
    for sparsity in SPARSITIES:
        add(runs, Entry("gossamer erk", sparsity), SparseStep(model, sparsity, "erk", batch))
    return runs


def _findings(network: TokenNetwork, timings: dict[Entry, Timing], threads: int) -> list[Finding]:
    found = []
    for sparsity in SPARSITIES:
        ours = timings[Entry("gossamer erk", sparsity)].median
        name = f"{network.name} {100 * sparsity:g} %: over"
        is_promised = network is VIT and sparsity == 0.95 and threads == 1
        for entry, words, goal in (
            (DENSE_VI, "dense VI", targets.TRANSFORMER_STEP),
            (DENSE, "deterministic dense", targets.TRANSFORMER_OVER_DETERMINISTIC),
        ):
            target = goal if is_promised else None
            ratio = timings[entry].median / ours
            found.append(Finding(f"{name} {words}", threads, ratio, target=target))
    return found
