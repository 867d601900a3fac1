"""``cvadam2023/temperature``: at what temperature the authors' settings sample.

And how Algorithms 1 and 2, which the paper calls equivalent, spread on the same posterior.

Thousands of chains side by side are one parameter of the optimisers themselves, on a Gaussian whose
posterior is known; each chain gives one draw, so that the standard errors are those of independent
draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from gossamer.core.langevin import sampled_temperature
from gossamer.experiments.experiment import Experiment, Finished, Scope
from gossamer.experiments.news import Watch
from gossamer.experiments.outcome import Outcome, TextTable
from gossamer.experiments.task import FunctionTask, Task, Values
from gossamer.optim import CVSGHMC, CVAdam, Langevin

CHAINS = 20_000
_RATE = 0.2
"""τβ₂aΔt² of the chains that measure a temperature, 2(1+β₁) being the limit of stability."""
AUTHORS = (0.1, 1.0)
"""Their β."""


@dataclass(frozen=True)
class Setting:
    """One setting of Algorithm 2.

    Attributes:
        label: Where it comes from.
        num_data: N.
        lr: Δt².
        noise_scale: k; ``None`` for ``temperature=1`` with exact noise.
        batch_size: B of the mini-batch noise of examples whose gradients have variance 1, that is
            1/B - 1/N; ``None`` for the full gradient.
    """

    label: str
    num_data: int
    lr: float
    noise_scale: float | None
    batch_size: int | None = None


def _cycle(label: str, num_data: int, start: float, k: float) -> list[Setting]:
    """The start of a cycle, and where the cosine has brought Δt² to a hundredth."""
    return [
        Setting(f"{label}, start of a cycle", num_data, start, k),
        Setting(f"{label}, at 1 % of Δt₀²", num_data, 0.01 * start, k),
    ]


SETTINGS = (
    *_cycle("Examples 1 and 2, Δt₀² = 0.01, k = 1/√N", 10_000, 0.01, 0.01),
    Setting("the same at the start, batches of 1,024", 10_000, 0.01, 0.01, 1024),
    *_cycle("Example 3, Δt₀² = 0.1, k = 1/√N", 10_000, 0.1, 0.01),
    *_cycle("CIFAR, Δt₀² = 1, k = 1/N", 50_000, 1.0, 1 / 50_000),
    Setting("ours, temperature = 1, Δt² = 0.01", 10_000, 0.01, None),
    Setting("ours, temperature = 1, Δt² = 1", 10_000, 1.0, None),
)


@dataclass(frozen=True)
class Temperature:
    """Temperatures relative to the posterior's at τ = ½, where τ starts.

    Attributes:
        label: The setting.
        formula: (1+β₁²)k²τ/(hβ₂)·N, with the share of mini-batch noise.
        measured: From the variance of the chains by the exact finite-step law.
        standard_error: Of ``measured``.
    """

    label: str
    formula: float
    measured: float
    standard_error: float


def temperature_of(setting: Setting, seed: int, chains: int = CHAINS) -> Temperature:
    """Formula, and measurement on L = aw²/2.

    The temperature does not depend on a, which is chosen for the chains to forget their start soon.
    """
    beta1, beta2 = AUTHORS
    n, dt, tau = setting.num_data, sqrt(setting.lr), 0.5
    variance = 0.0 if setting.batch_size is None else 1 / setting.batch_size - 1 / n
    formula = 1.0
    if setting.noise_scale is not None:
        kept = 2 + 2 * beta1**2
        k = sqrt(setting.noise_scale**2 + beta2**2 * variance * dt / kept)
        formula = n * sampled_temperature(k, dt, AUTHORS, tau)

    generator = torch.Generator().manual_seed(seed)
    w = nn.Parameter(torch.zeros(chains, dtype=torch.float64))
    opt = CVSGHMC(
        [w],
        setting.lr,
        num_data=n,
        temperature=1.0 if setting.noise_scale is None else None,
        noise_scale=setting.noise_scale,
        betas=AUTHORS,
        tau_lr=0.0,
        generator=generator,
    )
    curvature = _RATE / (tau * beta2 * setting.lr)
    for _ in range(100):  # a factor of 0.8 or so each
        w.grad = curvature * w.detach()
        if variance > 0.0:
            noise = torch.randn(chains, dtype=torch.float64, generator=generator)
            w.grad.add_(noise, alpha=sqrt(variance))
        opt.step()
    square = float(w.detach().square().mean())
    measured = n * square * curvature * (1 - _RATE / (2 * (1 + beta1)))
    return Temperature(setting.label, formula, measured, measured * sqrt(2 / chains))


@dataclass(frozen=True)
class Spread:
    """Draws on a posterior of two weights with correlation 0.9.

    Attributes:
        label: The algorithm.
        std: Standard deviation of the draws of a weight, in units of the posterior's.
        correlation: Of the two weights.
        next_step: Correlation of a weight with itself one step later.
        after_100: And 100 steps later.
    """

    label: str
    std: float
    correlation: float
    next_step: float
    after_100: float


CORRELATION = 0.9
PLANE_DATA = 10_000


def plane() -> tuple[Tensor, Tensor]:
    """Covariance of the posterior, and A, the Hessian of L, each [2, 2]."""
    hessian = torch.tensor([[1.0, -CORRELATION], [-CORRELATION, 1.0]], dtype=torch.float64)
    return torch.linalg.inv(hessian) / PLANE_DATA, hessian


def spread_of(
    label: str,
    build: Callable[[nn.Parameter], Langevin],
    *,
    tau_lr: float,
    steps: int,
    chains: int = CHAINS,
) -> Spread:
    """Run ``steps`` with τ adapting, as many with it frozen, and 100 more to see how draws follow.

    Args:
        label: For the table.
        build: The optimiser.
        tau_lr: η of the first steps.
        steps: Twice these are taken before the first draw.
        chains: Side by side.
    """
    covariance, hessian = plane()
    w = nn.Parameter(torch.zeros(chains, 2, dtype=torch.float64))
    opt = build(w)

    def go(count: int) -> Tensor:
        for _ in range(count):
            w.grad = w.detach() @ hessian
            opt.step()
        return w.detach().clone()

    opt.param_groups[0]["tau_lr"] = tau_lr
    go(steps)
    opt.param_groups[0]["tau_lr"] = 0.0
    first = go(steps)
    second = go(1)
    last = go(99)
    return Spread(
        label,
        float(first.std(0).mean() / covariance[0, 0].sqrt()),
        _correlation(first[:, 0], first[:, 1]),
        _correlation(first[:, 0], second[:, 0]),
        _correlation(first[:, 0], last[:, 0]),
    )


@dataclass(frozen=True)
class Measurement:
    """What decides the temperature of a setting.

    Attributes:
        setting: The setting.
        seed: Of the chains.
        chains: Side by side.
    """

    setting: Setting
    seed: int
    chains: int = CHAINS


@dataclass(frozen=True)
class Draws:
    """What decides the spreads.

    Attributes:
        seed: Of all ways together.
        chains: Side by side.
        steps: Half of those before the first draw.
    """

    seed: int
    chains: int = CHAINS // 4
    steps: int = 4000


def measure(settings: Measurement, watch: Watch) -> Values:
    """A :class:`Temperature` as JSON values."""
    return asdict(temperature_of(settings.setting, settings.seed, settings.chains))


def spreads(settings: Draws, watch: Watch) -> Values:
    """Algorithm 1, and Algorithm 2 as the authors run it and at the posterior's temperature."""
    generator = torch.Generator().manual_seed(settings.seed)
    n, lr = PLANE_DATA, 0.1
    # η of the authors (0.1) moves τ by 1e-5 a step at this N; a larger one settles within the run.
    ways: list[tuple[str, Callable[[nn.Parameter], Langevin], float]] = [
        (
            "Algorithm 1, α = 2/√N",
            lambda w: CVAdam([w], lr, num_data=n, alpha=2 / sqrt(n), generator=generator),
            0.02 * n,
        ),
        (
            "Algorithm 2, the authors' k = 1/√N",
            lambda w: CVSGHMC([w], lr, num_data=n, noise_scale=1 / sqrt(n), generator=generator),
            0.1,
        ),
        (
            "Algorithm 2, temperature = 1",
            lambda w: CVSGHMC([w], lr, num_data=n, temperature=1.0, generator=generator),
            0.1,
        ),
    ]
    found = []
    for number, (label, build, tau_lr) in enumerate(ways):
        watch.tell(number / len(ways), label)
        steps, chains = settings.steps, settings.chains
        found.append(asdict(spread_of(label, build, tau_lr=tau_lr, steps=steps, chains=chains)))
    return {"spreads": found}


_SPREADS = "spreads"


def tasks(scope: Scope) -> list[Task]:
    """A task for every setting, and the spreads."""
    found: list[Task] = []
    for number, setting in enumerate(SETTINGS):
        settings = Measurement(setting, len(SETTINGS) * scope.seed + number)
        told = ("formula", "measured")
        found.append(FunctionTask(f"temperature-{number}", measure, settings, told))
    return [*found, FunctionTask(_SPREADS, spreads, Draws(scope.seed))]


def conclude(found: Finished) -> Outcome:
    """Both tables."""
    measured = [row for name, row in found.rows.items() if name != _SPREADS]
    drawn = found.rows.get(_SPREADS, {}).get("spreads", [])
    temperatures = TextTable(
        ["setting, τ = ½", "temperature by the formula", "measured"],
        [
            [row.label, f"{row.formula:.3g}", f"{row.measured:.3g} ± {row.standard_error:.1g}"]
            for row in (Temperature(**values) for values in measured)
        ],
    )
    posterior = ["the posterior", "1", str(CORRELATION), "", ""]
    rows = [[label, *map("{:.3f}".format, figures)] for label, *figures in map(dict.values, drawn)]
    spread = TextTable(
        ["draws", "std", "correlation", "with the next", "100 steps later"], [posterior, *rows]
    )
    return Outcome({"temperatures": measured, "spreads": drawn}, (temperatures, spread))


def _correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


EXPERIMENT = Experiment(
    key="cvadam2023/temperature",
    title="temperatures of the authors' settings; spread of Algorithms 1 and 2",
    tasks=tasks,
    conclude=conclude,
    cpu_only=True,
)
