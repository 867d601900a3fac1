"""``bench kernels``: forward and backward of one layer, through autograd."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gossamer.bench import targets
from gossamer.bench.dense_vi import to_dense_vi
from gossamer.bench.networks import channels_last
from gossamer.bench.result import Entry, Finding, Measured, Row, fastest, timed_rows
from gossamer.bench.rivals import (
    BAYESIAN_TORCH,
    CSR,
    SPARSEPROP,
    bayesian_network,
    deterministic_rivals,
    is_installed,
)
from gossamer.bench.settings import Settings, Tell
from gossamer.bench.timing import Effort, Run, Timing, geometric_mean, interleave, line
from gossamer.nn import to_bayesian, to_deterministic, to_sparse

USUAL = Effort(rounds=9, seconds=4.0)
SPARSITIES = (0.90, 0.95, 0.98)
GROWTH_SPARSITIES = (*SPARSITIES, 0.99)
MIDDLE = 0.95

DENSE_VI = Entry("dense VI")
DENSE = "deterministic"
DENSE_LAST = "deterministic channels_last"
NATIVE, MASKED = "native", "masked"


@dataclass(frozen=True)
class Case:
    """A layer and its input.

    Attributes:
        kind: ``linear``, or ``conv`` for 3x3, stride 1, padding 1.
        inputs: Features or channels in.
        outputs: Features or channels out.
        size: Height and width of the image.
        batch: Rows.
    """

    kind: Literal["linear", "conv"]
    inputs: int
    outputs: int
    batch: int
    size: int = 0

    @property
    def name(self) -> str:
        """For a reader."""
        if self.kind == "linear":
            return f"linear {self.inputs}→{self.outputs}, batch {self.batch}"
        return f"conv 3x3 {self.inputs}@{self.size}², batch {self.batch}"

    def layer(self) -> nn.Module:
        """The dense torch layer; without a bias, whose cost all contenders share."""
        if self.kind == "linear":
            return nn.Linear(self.inputs, self.outputs, bias=False)
        return nn.Conv2d(self.inputs, self.outputs, 3, padding=1, bias=False)

    def input(self) -> Tensor:
        """A random input."""
        spatial = (self.size, self.size) if self.kind == "conv" else ()
        return torch.randn(self.batch, self.inputs, *spatial)


FULL = (
    Case("linear", 1024, 1024, 128),
    Case("linear", 4096, 1024, 128),
    Case("linear", 1024, 4096, 128),
    Case("conv", 64, 64, 64, 32),
    Case("conv", 128, 128, 64, 16),
    Case("conv", 256, 256, 64, 8),
    Case("conv", 512, 512, 64, 4),
)
QUICK = (Case("linear", 64, 64, 16), Case("conv", 16, 16, 8, 8))


def measure(settings: Settings, threads: int, tell: Tell) -> Measured:
    """All cases at one number of threads."""
    cases = QUICK if settings.quick else FULL
    effort = settings.effort(USUAL)
    bayesian: dict[Case, dict[Entry, Timing]] = {}
    deterministic: dict[Case, dict[Entry, Timing]] = {}
    rows: list[Row] = []
    for case in cases:
        tell(f"{case.name}, {threads} thread(s)")
        bayesian[case] = interleave(_bayesian(case), effort)
        deterministic[case] = interleave(_deterministic(case), effort)
        rows += timed_rows(case.name, bayesian[case], DENSE_VI, threads)
        baseline = fastest(deterministic[case], DENSE, DENSE_LAST)
        rows += timed_rows(f"{case.name}, deterministic", deterministic[case], baseline, threads)
    findings = [
        *_over_dense_vi(bayesian, threads),
        *_over_rivals(deterministic, threads),
        *_intercepts(bayesian, threads),
    ]
    return Measured(tuple(rows), tuple(findings))


def _bayesian(case: Case) -> dict[Entry, Run]:
    """The layers with a posterior. Dense ones run once, whatever the sparsity of the others."""
    dense, x = case.layer(), case.input()
    runs = {DENSE_VI: forward_backward(to_dense_vi(dense), x)}
    runs |= {Entry(name): run for name, run in _dense(dense, x).items()}
    rival = bayesian_network(dense)
    if rival is not None:
        runs[Entry(BAYESIAN_TORCH)] = forward_backward(rival[0], x)
    for sparsity in SPARSITIES:
        runs[Entry(MASKED, sparsity)] = forward_backward(
            to_bayesian(dense, sparsity, backend=MASKED), x
        )
    for sparsity in GROWTH_SPARSITIES:
        runs[Entry(NATIVE, sparsity)] = forward_backward(
            to_bayesian(dense, sparsity, backend=NATIVE), x
        )
    return runs


def _deterministic(case: Case) -> dict[Entry, Run]:
    """The layers without one, at 95 %, all on one support."""
    dense, x = case.layer(), case.input()
    sparse = to_sparse(dense, MIDDLE, backend=NATIVE)
    runs = {Entry(name): run for name, run in _dense(dense, x).items()}
    for name, rival in deterministic_rivals(to_deterministic(sparse), MIDDLE).items():
        runs[Entry(name, MIDDLE)] = forward_backward(rival, x)
    runs[Entry(NATIVE, MIDDLE)] = forward_backward(sparse, x)
    return runs


def _dense(layer: nn.Module, x: Tensor) -> dict[str, Run]:
    runs = {DENSE: forward_backward(layer, x)}
    if x.dim() == 4:
        last = x.to(memory_format=torch.channels_last)
        runs[DENSE_LAST] = forward_backward(channels_last(layer), last)
    return runs


def forward_backward(layer: nn.Module, x: Tensor) -> Run:
    """Forward and backward with a given gradient of the output, in the layout of the input."""
    x = x.detach().clone().requires_grad_()
    held = [x, *layer.parameters()]
    with torch.no_grad():
        gradient = torch.randn_like(layer(x))

    def run() -> None:
        for tensor in held:
            tensor.grad = None
        layer(x).backward(gradient)

    return run


def _over_dense_vi(measured: Mapping[Case, Mapping[Entry, Timing]], threads: int) -> list[Finding]:
    found = []
    for kind in ("linear", "conv"):
        of_kind = [timings for case, timings in measured.items() if case.kind == kind]
        for sparsity in SPARSITIES:
            for contender in (NATIVE, MASKED):
                mean = geometric_mean(
                    timings[DENSE_VI].median / timings[Entry(contender, sparsity)].median
                    for timings in of_kind
                )
                is_ours = contender == NATIVE
                target = targets.LAYER[kind][sparsity] if is_ours else None
                name = f"{kind} {100 * sparsity:g} %: {contender} over dense VI"
                found.append(Finding(name, threads, mean, target=target))
        name = f"{kind} {100 * MIDDLE:g} %: native over deterministic dense"
        ratios = [
            timings[fastest(timings, DENSE, DENSE_LAST)].median
            / timings[Entry(NATIVE, MIDDLE)].median
            for timings in of_kind
        ]
        found.append(Finding(name, threads, geometric_mean(ratios)))
    return found


def _over_rivals(measured: Mapping[Case, Mapping[Entry, Timing]], threads: int) -> list[Finding]:
    note = "" if is_installed("sparseprop") else "pip install sparseprop"
    found = []
    for kind in ("linear", "conv"):
        of_kind = [timings for case, timings in measured.items() if case.kind == kind]
        name = f"{kind} {100 * MIDDLE:g} %, deterministic: native over"
        mean = geometric_mean(_ratios(of_kind, SPARSEPROP))
        found.append(Finding(f"{name} {SPARSEPROP}", threads, mean, note=note))
        if kind == "linear":  # torch has no sparse convolution
            found.append(Finding(f"{name} {CSR}", threads, geometric_mean(_ratios(of_kind, CSR))))
    name = f"all shapes {100 * MIDDLE:g} %, deterministic: native over {SPARSEPROP}"
    mean = geometric_mean(_ratios(measured.values(), SPARSEPROP))
    goal = targets.OVER_SPARSEPROP
    return [*found, Finding(name, threads, mean, target=goal, note=note)]


def _ratios(measured: Iterable[Mapping[Entry, Timing]], rival: str) -> list[float]:
    """How many times faster than a rival, used in the better of its ways; without it, none."""
    found = []
    for timings in measured:
        ways = [e.contender for e in timings if e.contender.startswith(rival)]
        if ways:
            best = timings[fastest(timings, *ways)].median
            found.append(best / timings[Entry(NATIVE, MIDDLE)].median)
    return found


def _intercepts(measured: Mapping[Case, Mapping[Entry, Timing]], threads: int) -> list[Finding]:
    """What a layer without any weight would cost, by the line through time against nnz.

    The worst case is the one that is judged.
    """
    shares = {}
    for case, timings in measured.items():
        points = [(1 - s, timings[Entry(NATIVE, s)].median) for s in GROWTH_SPARSITIES]
        shares[case] = line(points)[0] / timings[Entry(NATIVE, MIDDLE)].median
    worst = max(shares, key=lambda case: shares[case], default=None)
    found = [
        Finding(f"intercept of time against nnz, {case.name}", threads, share, "%")
        for case, share in shares.items()
    ]
    value = math.nan if worst is None else shares[worst]
    note = "share of the time at 95 %"
    name = "intercept of time against nnz, worst case"
    return [*found, Finding(name, threads, value, "%", targets.INTERCEPT, note)]
