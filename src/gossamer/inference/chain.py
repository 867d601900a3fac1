"""What methods that walk through the posterior share: steps in cycles, and the samples they keep.

A cycle begins with large steps, which find a mode, and ends with small ones, which sample it
(Zhang et al., ICLR 2020). Samples are kept near the end of every cycle.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.core.langevin import Betas, check_betas
from gossamer.core.schedule import Cyclical
from gossamer.errors import InvalidValue
from gossamer.inference.chain_prior import with_scaled_prior
from gossamer.inference.collect import Collection
from gossamer.inference.langevin_base import Langevin
from gossamer.inference.method import StepInfo
from gossamer.inference.objective import require_finite
from gossamer.inference.parameters import parameter_groups
from gossamer.likelihoods import Likelihood
from gossamer.nn import Noise, restore_engines, sparse_layers, to_sparse, weight_groups
from gossamer.nn.resize import adopt
from gossamer.ops import AUTO

MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class ChainConfig:
    """Settings that all chains share.

    Attributes:
        lr: Step at the start of a cycle: Δt², or the plain step of ``csgld``. ``None``:
            ``label_lr`` where targets are labels, else ``real_lr``, which is smaller: the curvature
            of a Gaussian likelihood is one over the square of the noise it finds.
        temperature: 1 for the posterior.
        weight_decay: δ/N, the prior's precision over the number of data; ``None`` is that of the
            prior of variational inference, which follows the width of a layer.
        decay_biases: Whether biases and normalisation have that prior too.
        cycles: Half cosines of the step size.
        samples_per_cycle: Samples kept at the end of each.
        sample_every: Steps between the samples of a cycle; a twentieth of it if ``None``.
        explore: Share of each cycle that is walked without noise.
        freeze: At the end of a cycle, stop for good the weights that moved since the end of the
            last one by less than this share of their layer's root mean square; ``None``: never.
        budget_mb: Memory for samples; ``None`` for no limit.
        sample_folder: Where samples beyond the budget go.
        sparsity: Share of weights removed before training; 0 is dense.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: Engine of the layers: ``auto`` chooses per layer.
    """

    label_lr: ClassVar[float] = 0.1
    real_lr: ClassVar[float] = 0.01

    lr: float | None = None
    temperature: float = 1.0
    weight_decay: float | None = None
    decay_biases: bool = False
    cycles: int = 4
    samples_per_cycle: int = 3
    sample_every: int | None = None
    explore: float = 0.0
    freeze: float | None = None
    budget_mb: float | None = None
    sample_folder: str | None = None
    sparsity: float = 0.0
    sparsity_distribution: str = "erk"
    backend: str = AUTO

    def __post_init__(self) -> None:
        for name in ("lr", "temperature", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")
        for name in ("cycles", "samples_per_cycle"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "must be at least 1")
        if self.sample_every is not None and self.sample_every < 1:
            raise InvalidValue("sample_every", self.sample_every, "must be at least 1")
        if self.freeze is not None and not self.freeze >= 0.0:
            raise InvalidValue("freeze", self.freeze, "must not be negative, or none")
        if not 0.0 <= self.explore <= 1.0:
            raise InvalidValue("explore", self.explore, "must lie in [0, 1], a share of a cycle")
        if self.explore > 0.0 and self.temperature is None:
            raise InvalidValue(
                "explore",
                self.explore,
                "walks at temperature 0, and a noise_scale has no temperature",
                "set a temperature instead of noise_scale, or explore to 0",
            )
        if self.budget_mb is not None and not self.budget_mb > 0.0:
            raise InvalidValue("budget_mb", self.budget_mb, "must be positive or none")
        betas: Betas | None = getattr(self, "betas", None)
        if betas is not None:
            check_betas(betas)

    def step_for(self, likelihood: Likelihood) -> float:
        """The step at the start of a cycle."""
        if self.lr is not None:
            return self.lr
        return self.label_lr if likelihood.has_labels else self.real_lr


def sparse_copy(config: ChainConfig, model: nn.Module) -> nn.Module:
    """A copy of ``model`` with deterministic layers on the support of the config."""
    return to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
    )


def chain_groups(
    config: ChainConfig, model: nn.Module, likelihood: Likelihood, num_data: int
) -> list[dict[str, Any]]:
    """Parameter groups of a sampler; the likelihood's are trained without noise.

    Biases have the weights' decay, a standard normal prior where that is ``None``, or none.
    """
    given = config.weight_decay
    groups = parameter_groups(
        model,
        lr=config.step_for(likelihood),
        weight_decay=1.0 / num_data if given is None else given,
        decay_biases=config.decay_biases,
    )
    if given is None:
        groups = with_scaled_prior(groups, model, num_data)
    extra = list(likelihood.parameters())
    if extra:
        groups.append({"name": "likelihood", "params": extra, "weight_decay": 0.0, "noisy": False})
    return groups


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


class ChainMethod:
    """A method whose posterior samples are states of one chain.

    Args:
        name: Key in the registry.
        model: Converted network.
        likelihood: How outputs and targets meet.
        optimizer: The sampler, over the parameters of both.
        config: Settings.
        total_steps: Steps of the run.
    """

    samples_by_noise = False
    keeps_samples = True

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        optimizer: Langevin,
        config: ChainConfig,
        total_steps: int,
    ) -> None:
        if config.cycles > total_steps:
            raise InvalidValue(
                "cycles", config.cycles, f"must not exceed the {total_steps} steps of the run"
            )
        self.name = name
        self.model = model
        self.likelihood = likelihood
        self.optimizer = optimizer
        self.config = config
        self.schedule = Cyclical(total_steps, config.cycles)
        self.sample_steps = sample_steps(config, total_steps) if self.keeps_samples else frozenset()
        budget = None if config.budget_mb is None else int(config.budget_mb * MEGABYTE)
        self.samples = Collection(budget, config.sample_folder)
        self.base_lr = [float(group["lr"]) for group in optimizer.param_groups]
        self.base_temperature = [group["temperature"] for group in optimizer.param_groups]
        self.steps = 0

    @property
    def max_samples(self) -> int | None:
        """As many as were kept; before the first one the present state is the only sample."""
        return max(1, len(self.samples))

    def step(self, batch: tuple[Tensor, Tensor]) -> StepInfo:
        """One step of the chain on a batch of inputs and targets."""
        x, target = batch
        self.model.train()
        factor = self._schedule()
        with self._effective():
            output = self.model(x)
            nll = -self.likelihood.log_lik(output, target).mean()
            require_finite(nll.detach(), self.model)
            self.optimizer.zero_grad(set_to_none=True)
            nll.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        self._after_step(x.shape[0])
        if self.steps in self.sample_steps:
            self.samples.add(self.snapshot())
        cycles, total = self.schedule.cycles, self.schedule.steps
        if self.config.freeze is not None and self.steps * cycles % total < cycles:
            self._freeze(self.config.freeze)  # the next step begins a cycle
        return StepInfo(
            loss=float(nll.detach()),
            nll=float(nll.detach()),
            kl=0.0,
            kl_weight=0.0,
            lr=self.base_lr[0] * factor,
            accuracy=self.likelihood.accuracy(output.detach(), target),
            swap=None,
        )

    def snapshot(self) -> dict[str, Tensor]:
        """The network that predictions would use now."""
        return dict(self.model.state_dict())

    @contextmanager
    def sample(self, index: int, *, seed: int, noise: Noise) -> Iterator[nn.Module]:
        """The network as kept sample ``index``, counted back from the latest: 0 is the last one.

        Before the first kept sample it is the present state.
        """
        wanted = self.samples[-1 - index] if len(self.samples) else self.snapshot()
        held = copy.deepcopy(dict(self.model.state_dict()))
        grads = [(p, p.grad) for p in self.model.parameters()]
        try:
            for p, _ in grads:
                p.grad = None
            adopt(self.model, wanted)
            yield self.model
        finally:
            adopt(self.model, held)
            for p, grad in grads:
                p.grad = grad

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``."""
        return {
            "method": self.name,
            "model": dict(self.model.state_dict()),
            "likelihood": dict(self.likelihood.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples.state_dict(),
            "steps": self.steps,
            "engines": {name: layer.engine for name, layer in sparse_layers(self.model).items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("method") != self.name:
            raise InvalidValue(
                "state",
                state.get("method"),
                f"was not saved by a {self.name} run with these settings",
            )
        adopt(self.model, state["model"])
        self.likelihood.load_state_dict(state["likelihood"])
        restore_engines(self.model, state["engines"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.samples.load_state_dict(state["samples"])
        self.steps = int(state["steps"])

    @torch.no_grad()
    def _freeze(self, share: float) -> None:
        """Stop the weights that came back to where they were a cycle ago."""
        for group in weight_groups(self.model):
            p = group.first.leading()
            if not p.requires_grad:
                continue
            state = self.optimizer.state[p]
            before = state.get("cycle_end")
            state["cycle_end"] = p.detach().clone()
            if before is not None:
                settled = (p - before).abs() < share * p.square().mean().sqrt()
                if "moving" in state:
                    settled |= state["moving"] == 0.0
                self.optimizer.set_frozen(p, settled)

    def _effective(self) -> AbstractContextManager[None]:
        """Where forward and backward run; pruned methods mask weights inside."""
        return nullcontext()

    def _after_step(self, rows: int) -> None:
        """What a method does between steps, before a sample is kept."""

    def _schedule(self) -> float:
        """Step size and temperature of this step; the factor of the former."""
        factor = self.schedule(self.steps)
        total = self.schedule.steps
        explores = self.steps * self.schedule.cycles % total < self.config.explore * total
        for group, lr, temperature in zip(
            self.optimizer.param_groups, self.base_lr, self.base_temperature, strict=True
        ):
            group["lr"] = lr * factor
            if temperature is not None:
                group["temperature"] = 0.0 if explores else temperature
        return factor
