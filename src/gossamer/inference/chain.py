"""What methods that walk through the posterior share: cycles, and the samples they keep.

A cycle begins with large steps, which find a mode, and ends with small ones, which sample it
(Zhang et al., ICLR 2020). Samples are kept near the end of every cycle. The sampler of Algorithms 2
and 3 of cvadam2023, which two methods use, stands at the end.

A cycle whose second half explains its targets worse than a constant answer would (``divergence``)
was thrown out by its large steps: it gives no samples, and the chain goes back to its last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.core.langevin import check_betas
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.batch import Batch
from gossamer.inference.collect import Collection
from gossamer.inference.divergence import Watch
from gossamer.inference.group import ALONE, Group
from gossamer.inference.objective import Objective
from gossamer.inference.sampler import SamplerConfig, SamplerMethod, sampler_groups
from gossamer.inference.state import not_own_state, require_own_state
from gossamer.likelihoods import Likelihood
from gossamer.nn import weights_of
from gossamer.optim import CVSGHMC, Langevin
from gossamer.optim.langevin import VELOCITY
from gossamer.prediction import Posterior, StoredDraws

MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class ChainConfig(SamplerConfig):
    """Settings that all chains share; those of prior and step size are inherited.

    Attributes:
        samples_per_cycle: Samples kept at the end of each.
        sample_every: Steps between the samples of a cycle; a twentieth of it if ``None``.
        explore: Share of each cycle that is walked without noise.
        freeze: At the end of a cycle, stop for good the weights that moved since the end of the
            last one by less than this share of their layer's root mean square; ``None``: never.
        budget_mb: Memory for samples; ``None`` for no limit.
        sample_folder: Where samples beyond the budget go.
    """

    samples_per_cycle: int = 3
    sample_every: int | None = None
    explore: float = 0.0
    freeze: float | None = None
    budget_mb: float | None = None
    sample_folder: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_cycle < 1:
            raise InvalidValue("samples_per_cycle", self.samples_per_cycle, "must be at least 1")
        if self.sample_every is not None and self.sample_every < 1:
            raise InvalidValue("sample_every", self.sample_every, "must be at least 1")
        if self.freeze is not None and not self.freeze >= 0.0:
            raise InvalidValue("freeze", self.freeze, "must not be negative, or none")
        if not 0.0 <= self.explore <= 1.0:
            raise InvalidValue("explore", self.explore, "must lie in [0, 1], a share of a cycle")
        if self.budget_mb is not None and not self.budget_mb > 0.0:
            raise InvalidValue("budget_mb", self.budget_mb, "must be positive or none")


def sample_steps(config: ChainConfig, total_steps: int) -> frozenset[int]:
    """Steps after which a sample is kept: the last ones of every cycle, ``sample_every`` apart."""
    cycle = total_steps / config.cycles
    every = config.sample_every or max(1, int(cycle / 20))
    found: set[int] = set()
    for number in range(1, config.cycles + 1):
        end = -(-number * total_steps // config.cycles)  # the last step before the restart
        start = -(-(number - 1) * total_steps // config.cycles)
        found |= {
            end - i * every for i in range(config.samples_per_cycle) if end - i * every > start
        }
    return frozenset(found)


class ChainMethod(SamplerMethod):
    """A method whose posterior samples are states of one chain.

    Args:
        name: Key in the registry.
        model: Converted network.
        likelihood: How outputs and targets meet.
        optimizer: The sampler, over the parameters of both.
        config: Settings.
        total_steps: Steps of the run.
        energy: See ``SamplerMethod``.
        group: The processes that train together.
    """

    config: ChainConfig

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        optimizer: Langevin,
        config: ChainConfig,
        total_steps: int,
        *,
        energy: Objective | None = None,
        group: Group = ALONE,
    ) -> None:
        super().__init__(
            name, model, likelihood, optimizer, config, total_steps, energy=energy, group=group
        )
        self.sample_steps = sample_steps(config, total_steps)
        budget = None if config.budget_mb is None else int(config.budget_mb * MEGABYTE)
        self.samples = Collection(budget, config.sample_folder)
        self.watch = Watch(likelihood, group)
        self.lost: str | None = None
        self._likelihood_then: dict[str, Tensor] = {}  # at the last sample, which holds none
        self.base_temperature = [group["temperature"] for group in optimizer.param_groups]

    def snapshot(self) -> dict[str, Tensor]:
        """The network that predictions would use now."""
        return dict(self.model.state_dict())

    def posterior(self) -> Posterior:
        """The kept samples; before the first one the present state is the only sample."""
        samples = self.samples if len(self.samples) else [self.snapshot()]
        draws = StoredDraws(self.model, samples, self.samples.budget)
        return Posterior(draws, self.likelihood)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        own: dict[str, Any] = {"samples": self.samples.state_dict()}
        own["watch"] = self.watch.state_dict()
        own |= {"lost": self.lost, "likelihood_then": dict(self._likelihood_then)}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        require_own_state(self, state)
        if "samples" not in state:
            raise not_own_state(self.name)
        super().load_state_dict(state)
        self.samples.load_state_dict(state["samples"])
        self.watch.forget()
        if "watch" in state:  # states of earlier versions have none
            self.watch.load_state_dict(state["watch"])
        self.lost = state.get("lost")
        then = state.get("likelihood_then", {})
        self._likelihood_then = {name: tensor.clone() for name, tensor in then.items()}

    def _watched(self, batch: Batch, nll: float) -> str | None:
        """Note the second half of every cycle, and judge it where a sample is due."""
        cycles, total = self.schedule.cycles, self.schedule.steps
        done = (self.steps - 1) * cycles % total  # of the cycle, before this step, in its own units
        if done < cycles:
            self.watch.forget()
            self.lost = None
        if 2 * done >= total:
            self.watch.note(batch, nll)
        if self.steps not in self.sample_steps or self.lost is not None:
            return None
        why = self.watch.verdict()
        if why is None:
            return None
        number = (self.steps - 1) * cycles // total + 1
        self.lost = f"cycle {number} of {cycles} diverged: {why}"
        return f"{self.lost}; none of its samples is kept"

    def _after_step(self, rows: int) -> None:
        """Keep a sample where one is due, and stop weights at the end of a cycle."""
        if self.steps in self.sample_steps and self.lost is None:
            self.samples.add(self.snapshot())
            then = self.likelihood.state_dict()
            self._likelihood_then = {name: tensor.clone() for name, tensor in then.items()}
        cycles, total = self.schedule.cycles, self.schedule.steps
        if self.lost is not None and self.steps * cycles % total < cycles:
            self._go_back(self.lost)
        if self.config.freeze is not None and self.steps * cycles % total < cycles:
            self._freeze(self.config.freeze)  # the next step begins a cycle

    @torch.no_grad()
    def _go_back(self, why: str) -> None:
        """Begin the next cycle at the last sample, at rest, unless its support was another one.

        Raises:
            NonFinite: The last cycle is over and no cycle gave a sample.
        """
        if len(self.samples) == 0:
            if self.steps >= self.schedule.steps:
                raise NonFinite(
                    "chain",
                    None,
                    f"gave no sample that is better than a constant answer ({why})",
                    "lower lr, and standardise inputs and targets",
                )
            return
        if self._likelihood_then:  # its noise reads all samples, and was thrown out with the chain
            self.likelihood.load_state_dict(self._likelihood_then)
        here, sample = self.model.state_dict(), self.samples[-1]
        if any(sample[name].shape != tensor.shape for name, tensor in here.items()):
            return
        for name, tensor in here.items():
            tensor.copy_(sample[name])
        for state in self.optimizer.state.values():
            if VELOCITY in state:
                state[VELOCITY].zero_()

    @torch.no_grad()
    def _freeze(self, share: float) -> None:
        """Stop the weights that came back to where they were a cycle ago."""
        for weight in weights_of(self.model):
            if not weight.is_trained:
                continue
            p = weight.values
            state = self.optimizer.state[p]
            before = state.get("cycle_end")
            state["cycle_end"] = p.detach().clone()
            if before is not None:
                settled = (p - before).abs() < share * p.square().mean().sqrt()
                if "moving" in state:
                    settled |= state["moving"] == 0.0
                self.optimizer.set_frozen(p, settled)

    def _schedule(self) -> float:
        """Step size and temperature of this step; the factor of the former."""
        factor = super()._schedule()
        total = self.schedule.steps
        explores = self.steps * self.schedule.cycles % total < self.config.explore * total
        for group, temperature in zip(
            self.optimizer.param_groups, self.base_temperature, strict=True
        ):
            if temperature is not None:
                group["temperature"] = 0.0 if explores else temperature
        return factor


@dataclass(frozen=True, kw_only=True)
class PreconditionedConfig(ChainConfig):
    """Settings of preconditioned SGHMC; ``lr`` is Δt².

    Attributes:
        temperature: 1 for the posterior; ``None`` with a ``noise_scale``.
        noise_scale: k in units of 1/√N, as the authors set it: 1 is their k = 1/√N.
        betas: (β₁, β₂): what is kept of the velocity, and the weight of the gradient.
        tau_lr: η, the step on logit τ.
    """

    label_lr: ClassVar[float] = 0.05
    real_lr: ClassVar[float] = 0.003

    temperature: float | None = 1.0  # type: ignore[assignment]
    noise_scale: float | None = None
    betas: tuple[float, float] = (0.9, 1.0)
    tau_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise_scale", "tau_lr"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        if (self.temperature is None) == (self.noise_scale is None):
            raise InvalidValue(
                "temperature, noise_scale",
                (self.temperature, self.noise_scale),
                "exactly one must be given",
                "set the other to none",
            )
        if self.explore > 0.0 and self.temperature is None:
            raise InvalidValue(
                "explore",
                self.explore,
                "walks at temperature 0, and a noise_scale has no temperature",
                "set a temperature instead of noise_scale, or explore to 0",
            )
        check_betas(self.betas)


AUTHORS: dict[str, Any] = {
    "temperature": None,
    "noise_scale": 1.0,
    "betas": (0.1, 1.0),
    "tau_lr": 0.1,
    "decay_biases": True,
}
"""The sampler of the cvadam2023 authors; docs/samplers.md says at what temperature it samples."""


def preconditioned(
    config: PreconditionedConfig, model: nn.Module, likelihood: Likelihood, num_data: int
) -> CVSGHMC:
    """The sampler over the parameters of model and likelihood."""
    scale = None if config.noise_scale is None else config.noise_scale / sqrt(num_data)
    return CVSGHMC(
        sampler_groups(config, model, likelihood, num_data),
        config.step_for(likelihood),
        num_data=num_data,
        temperature=config.temperature,
        noise_scale=scale,
        betas=config.betas,
        tau_lr=config.tau_lr,
    )
