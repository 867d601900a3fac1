"""The mean of the weights over the last part of a run, as a network of its own.

Steps that stay large wander around a minimum; the mean of where they were lies nearer to its middle
than the last of them (Polyak & Juditsky, 1992; Izmailov et al., UAI 2018). It begins where the
support has come to rest, so that every weight has one meaning for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gossamer.errors import InvalidValue
from gossamer.likelihoods import Likelihood
from gossamer.nn import sampling
from gossamer.nn.replica import replicate

M = TypeVar("M", bound=nn.Module)

NORM_PASSES = 32
"""Passes over the last batches from which normalisation learns its statistics at the mean: some
thousand rows, for about a third of so many steps."""


class TailAverage:
    """Follows the parameters of a network after its optimiser's steps.

    Args:
        model: The network in training.
        likelihood: Its noise, if it learns one, is averaged too.
        share: Of the run, at its end, over which weights are averaged: in (0, 1).
        total_steps: Optimiser steps of the run.
        rest: From this share of the run on the support rests.
        as_predicted: From the mean to the network that predicts, over the same tensors; BatchNorm
            learns its statistics under that one's noise.

    Raises:
        InvalidValue: The support still moves when the average begins.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        share: float,
        total_steps: int,
        rest: float,
        as_predicted: Callable[[nn.Module], nn.Module],
    ) -> None:
        if 1.0 - share < rest - 1e-9:
            raise InvalidValue(
                "average",
                share,
                f"begins before the support rests, at {rest:g} of the run",
                f"use an end_fraction of {1.0 - share:g} or less",
            )
        self.model, self._present, self._as_predicted = model, likelihood, as_predicted
        self.start = total_steps - max(1, round(share * total_steps))
        self._norm_start = max(self.start, total_steps - NORM_PASSES)
        self.network: nn.Module | None = None
        self.likelihood: Likelihood | None = None
        self.count = 0
        self.norm_passes = 0

    def follow(self, steps: int, x: Tensor) -> None:
        """Take the parameters in after optimiser step number ``steps`` (the first is 1).

        Args:
            steps: Steps done.
            x: The inputs of that step; normalisation learns from those of the last ones.
        """
        if steps <= self.start:
            return
        if self.network is None or self.likelihood is None:
            self.network, self.likelihood = _own(self.model), _own(self._present)
        self.count += 1
        with torch.no_grad():  # the first one replaces what the copies hold
            for mean, now in self._pairs(self.network, self.likelihood):
                mean.lerp_(now, 1.0 / self.count)
            self._take_buffers(self.network)
        if steps > self._norm_start:
            self._learn_norms(self.network, x)

    def _take_buffers(self, network: nn.Module) -> None:
        """Other state is that of the network in training, BatchNorm's until it learns its own."""
        learnt = {id(b) for m in _norms(network) for b in m.buffers()} if self.norm_passes else ()
        present = dict(self.model.named_buffers(remove_duplicate=False))
        for name, mean in network.named_buffers():
            if mean.is_floating_point() and id(mean) not in learnt:  # supports rest: no indices
                mean.copy_(present[name])

    def _learn_norms(self, network: nn.Module, x: Tensor) -> None:
        """One more pass of the statistics of BatchNorm at the mean weights, if there are any.

        Where draws around the mean predict, the pass is one of them: layers behind a noisy one see
        larger variances than at the mean.
        """
        if not _norms(network):
            return
        network = self._as_predicted(network).eval()
        norms = _norms(network)
        self.norm_passes += 1
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train()
            norm.momentum = 1.0 / self.norm_passes  # the mean over the passes, not a running one
        try:
            with torch.no_grad(), sampling(network, seed=self.norm_passes):
                network(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
                norm.eval()

    def _pairs(self, network: nn.Module, likelihood: Likelihood) -> Iterator[tuple[Tensor, Tensor]]:
        """Every mean with the parameter that it is of."""
        yield from zip(network.parameters(), self.model.parameters(), strict=True)
        yield from zip(likelihood.parameters(), self._present.parameters(), strict=True)

    def original_of(self, parameter: Tensor) -> Tensor:
        """The parameter in training whose mean ``parameter`` is."""
        assert self.network is not None
        pairs = zip(self.network.parameters(), self.model.parameters(), strict=True)
        return next(now for mean, now in pairs if mean is parameter)

    def state_dict(self) -> dict[str, Any]:
        """Counts, and the tensors of the mean once it has begun."""
        held = {"network": self.network, "likelihood": self.likelihood}
        return {
            "count": self.count,
            "norm_passes": self.norm_passes,
            **{n: None if m is None else dict(m.state_dict()) for n, m in held.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; the network in training must have its own by now."""
        self.count, self.norm_passes = int(state["count"]), int(state["norm_passes"])
        self.network = self.likelihood = None
        if state["network"] is not None:
            self.network = _own(self.model, state["network"])
            self.likelihood = _own(self._present, state["likelihood"])


def _norms(network: nn.Module) -> list[_BatchNorm]:
    """Normalisation that keeps statistics."""
    found = (m for m in network.modules() if isinstance(m, _BatchNorm))
    return [norm for norm in found if norm.running_mean is not None]


def _own(module: M, tensors: Mapping[str, Tensor] | None = None) -> M:
    """A replica over tensors of its own: copies of the module's, or of those given."""
    present = {n: t for n, t in module.state_dict().items() if isinstance(t, Tensor)}
    held = present if tensors is None else tensors
    # A checkpoint is read on the CPU, wherever the run goes on.
    copies = {n: t.detach().to(present[n].device, copy=True) for n, t in held.items()}
    replica = replicate(module, copies).eval()
    assert isinstance(replica, type(module))
    return replica
