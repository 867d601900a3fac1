"""SWAG (Maddox et al., NeurIPS 2019): the Gaussian that the last iterates of a run were drawn from.

Trains as ``sgd`` does. From ``start`` on the learning rate is constant, and now and then the
weights are looked at: their mean, their variances and the last of them make the posterior.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from gossamer.core.schedule import Constant, CosineDecay, Schedule, Warmed
from gossamer.errors import InvalidValue
from gossamer.inference.batch import Batch
from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.iterates import IterateMoments
from gossamer.inference.method import MethodEntry, StepInfo
from gossamer.inference.objective import ELBO
from gossamer.inference.state import not_own_state
from gossamer.likelihoods import Likelihood
from gossamer.nn import to_sparse
from gossamer.nn.replica import replicate
from gossamer.ops import AUTO
from gossamer.prediction import LowRankCentre, LowRankDraws, Posterior
from gossamer.settings import Within

COLLECTIONS = 30
"""About so many where ``collect_every`` is not given, as in the paper's draws."""

_OF_LIKELIHOOD = "likelihood."


@dataclass(frozen=True, kw_only=True)
class SWAGConfig(OptimizerConfig):
    """Settings of SWAG; the optimiser's are inherited.

    ``lr_schedule`` is that of the first part: ``cosine`` falls to ``swa_lr`` by ``start``.

    Attributes:
        start: Share of the run after which weights are collected.
        swa_lr: The constant learning rate from there on; ``None``: ``lr``.
        collect_every: Steps between collections; ``None``: so many that there are about 30.
        rank: How many of the last collected weights make the low-rank part; 0: a diagonal one.
        scale: Factor of the covariance; 0 is the averaged network alone (SWA).
        sparsity: Share of weights removed before training, for a static sparse network; 0 is dense.
        sparsity_distribution: ``erk``, ``uniform``, ``uniform_dense_first``.
        backend: What computes the layers; ``auto`` chooses per layer.
    """

    start: Annotated[float, Within(0.0, 1.0)] = 0.5
    swa_lr: float | None = None
    collect_every: int | None = None
    rank: int = 20
    scale: float = 1.0
    sparsity: float = 0.0
    sparsity_distribution: str = "erk"
    backend: str = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.swa_lr is not None and not self.swa_lr > 0.0:
            raise InvalidValue("swa_lr", self.swa_lr, "must be positive, or none")
        if self.lr is not None and not self.lr > 0.0:
            raise InvalidValue("lr", self.lr, "must be positive: weights at rest have no spread")
        if self.collect_every is not None and self.collect_every < 1:
            raise InvalidValue("collect_every", self.collect_every, "must be at least 1, or none")
        if self.rank < 0 or self.rank == 1:
            raise InvalidValue("rank", self.rank, "must be at least 2, or 0 for a diagonal")
        for name in ("average", "lr_floor"):
            if getattr(self, name) > 0.0:
                rule = "swag averages by itself, at a learning rate of its own"
                raise InvalidValue(name, getattr(self, name), rule, "use start and swa_lr")
        if not self.scale >= 0.0:
            raise InvalidValue("scale", self.scale, "must not be negative")


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "diagonal": {"rank": 0},
    "paper": {
        "optimizer": "sgd",
        "lr": 0.05,
        "swa_lr": 0.01,
        "start": 0.535,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "decay_biases": True,
    },
}


@dataclass(frozen=True)
class _ThenConstant:
    """One schedule for some steps, then a constant."""

    first: Schedule
    steps: int
    then: float

    def __call__(self, step: int) -> float:
        """The factor at ``step``."""
        return self.first(step) if step < self.steps else self.then


class SWAG(GradientMethod):
    """See the module."""

    may_cycle = False
    config: SWAGConfig

    def __init__(
        self,
        name: str,
        model: nn.Module,
        likelihood: Likelihood,
        elbo: ELBO,
        config: SWAGConfig,
        total_steps: int,
    ) -> None:
        super().__init__(name, model, likelihood, elbo, config, total_steps)
        self.start_step = max(1, round(config.start * total_steps))
        left = total_steps - self.start_step
        self.every = config.collect_every or max(1, left // COLLECTIONS)
        if left // self.every < 2:
            raise InvalidValue(
                "total_steps",
                total_steps,
                f"leaves {left // self.every} collections after step {self.start_step}, "
                "and a spread needs 2",
                "train longer, start earlier, or lower collect_every",
            )
        self.lr_schedule = self._schedule(total_steps)
        self.moments = IterateMoments(config.rank)
        self.norms: dict[str, Tensor] = {}

    def step(self, batch: Batch | tuple[Tensor, ...]) -> StepInfo:
        """One step as ever; then, where it is due, a look at the weights."""
        batch = Batch.of(batch)
        info = super().step(batch)
        late = self.steps - self.start_step
        if late > 0 and late % self.every == 0:
            self.moments.add(self._watched())
            self._follow_norms(batch)
        return info

    def posterior(self) -> Posterior:
        """The Gaussian of what was collected; the present network as long as that is less than 2.

        The noise of real targets is averaged with the weights, not drawn.
        """
        moments = self.moments
        if moments.count < 2:
            return super().posterior()
        watched = self._watched()
        means = {name: moments.mean[name].to(watched[name].dtype) for name in watched}
        names = [name for name in watched if not name.startswith(_OF_LIKELIHOOD)]
        centres = [
            LowRankCentre(
                name,
                moments.mean[name],
                moments.variance(name),
                tuple(point[name] for point in moments.last),
            )
            for name in names
        ]
        network = replicate(self.model, {**{name: means[name] for name in names}, **self.norms})
        likelihood = copy.deepcopy(self.likelihood)
        with torch.no_grad():
            for name, parameter in likelihood.named_parameters():
                parameter.copy_(means[_OF_LIKELIHOOD + name])
        return Posterior(LowRankDraws(network, centres, self.config.scale), likelihood)

    def state_dict(self) -> dict[str, Any]:
        """See ``Method.state_dict``; with what was collected."""
        found = {"moments": self.moments.state_dict(), "norms": dict(self.norms)}
        return {**super().state_dict(), "swag": found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Method.load_state_dict``."""
        if state.get("method", self.name) == self.name and "swag" not in state:
            raise not_own_state(self.name)
        super().load_state_dict(state)
        self.moments.load_state_dict(state["swag"]["moments"], self._watched())
        kept = dict(self.model.named_buffers())
        norms = state["swag"]["norms"].items()
        self.norms = {name: t.to(kept[name].device, copy=True) for name, t in norms}

    def _watched(self) -> dict[str, Tensor]:
        """Every trained parameter once, those of the likelihood under a name of their own."""
        found = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        extra = {_OF_LIKELIHOOD + n: p for n, p in self.likelihood.named_parameters()}
        return {**found, **extra}

    @torch.no_grad()
    def _follow_norms(self, batch: Batch) -> None:
        """Bring the running statistics of the averaged network forward by this batch.

        Those of the iterates are of other weights. Only the norms are in training mode: dropout of
        the network is off, as in prediction.
        """
        norms = {n: m for n, m in self.model.named_modules() if _keeps_statistics(m)}
        if not norms:
            return
        if not self.norms:
            self.norms = {
                f"{name}.{key}" if name else key: buffer.clone()
                for name, norm in norms.items()
                for key, buffer in norm.named_buffers(recurse=False)
            }
            for name, buffer in self.norms.items():
                if name.rpartition(".")[2] == "num_batches_tracked":
                    buffer.zero_()  # a norm that averages over all batches begins anew
        means = {
            name: self.moments.mean[name].to(p.dtype)
            for name, p in self.model.named_parameters()
            if p.requires_grad
        }
        network = replicate(self.model, {**means, **self.norms}).eval()
        for module in network.modules():
            if _keeps_statistics(module):
                module.train()
        for part in batch.parts(self.config.accumulate):
            with torch.autocast(part.x.device.type, torch.bfloat16, self.config.autocast):
                network(part.x)

    def _schedule(self, total_steps: int) -> Schedule:
        rate = self.config.swa_lr
        then = 1.0 if rate is None else rate / self.base_lr[0]
        cosine = self.config.lr_schedule == "cosine"
        first: Schedule = CosineDecay(self.start_step, then) if cosine else Constant()
        rising = round(self.config.lr_warmup * total_steps)
        first = first if rising == 0 else Warmed(first, rising)
        return _ThenConstant(first, self.start_step, then)


def _keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def build(
    config: SWAGConfig,
    model: nn.Module,
    *,
    num_data: int,
    total_steps: int,
    likelihood: Likelihood,
    generator: torch.Generator | None = None,
) -> SWAG:
    """The method on a copy of ``model``."""
    net = to_sparse(
        model,
        config.sparsity,
        sparsity_distribution=config.sparsity_distribution,
        backend=config.backend,
        generator=generator,
    )
    return SWAG("swag", net, likelihood, ELBO(net, num_data, 0.0), config, total_steps)


METHOD = MethodEntry(
    SWAGConfig,
    build,
    PRESETS,
    "a Gaussian over the iterates of a run at constant step size, dense by default",
)
