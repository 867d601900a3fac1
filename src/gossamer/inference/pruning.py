"""One-shot pruning by the spike-and-slab group prior: soft masks, hard masks, DFP and DPF.

**Soft mask** (E step): groups whose mean square is below λ₁ get the spike's weight decay.
**Hard mask**: groups whose statistic is below λ₂ are zeroed. Under DFP (dynamic forward pruning)
they leave for good: supports, parameters and optimiser state shrink. Under DPF (dynamic pruning
with feedback, Eq. 8) the dense weights and their state stay, under the spike while they are masked;
forward and backward see m⊙w, the gradient moves w, and m is formed anew from w.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gossamer.core.groups import Group, Grouping, Statistic, Units
from gossamer.core.spike_slab import (
    Candidates,
    SpikeAndSlab,
    hard_mask,
    soft_mask,
    spike_and_slab,
    thresholds_for,
)
from gossamer.core.support import Support
from gossamer.errors import InvalidValue
from gossamer.nn import SparseLayer, Weight, move, require_movable, require_weights
from gossamer.ops import AUTO, ReadingBackend, choose
from gossamer.optim import Langevin

Pruning = Literal["dfp", "dpf"]
Scope = Literal["network", "layer"]


@dataclass(frozen=True, kw_only=True)
class PruningRule:
    """Which groups get the spike, and which leave.

    Attributes:
        pruning: ``dfp``: masked weights leave for good; ``dpf``: they may come back, and weights
            and state stay dense.
        group: Groups of the soft mask: ``kernel``, ``input``, ``output``, ``weight``; ``auto``
            takes kernels of convolutions and input units of linear layers.
        prune_group: Groups of the hard mask; ``auto`` takes input units.
        statistic: ``range`` (Eq. 9), ``abs_range`` (as printed), ``mean_square`` (Eq. 10); ``auto``
            takes ``range`` for convolutions and ``mean_square`` for linear layers and where a group
            is a single weight.
        spike_decay: δ₀/N; ``None`` is 20 times the slab's, or what the step size can follow.
        spike_threshold: λ₁, on the mean square of a group; ``None``: a tenth of the slab's
            variance.
        prune_threshold: λ₂, on the statistic of a group; ``None``: a hundredth of the slab's
            variance, or for a range a tenth of its standard deviation.
        target_scope: A target sparsity is that of the ``network``, which its layers bear according
            to scores that hold across them, or that of every ``layer``.
    """

    pruning: Pruning = "dfp"
    group: Group | Literal["auto"] = "auto"
    prune_group: Group | Literal["auto"] = "auto"
    statistic: Statistic | Literal["auto"] = "auto"
    spike_decay: float | None = None
    spike_threshold: float | None = None
    prune_threshold: float | None = None
    target_scope: Scope = "network"

    def __post_init__(self) -> None:
        for name in ("spike_decay", "spike_threshold", "prune_threshold"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InvalidValue(name, value, "must not be negative")

    def soft_group(self, layer: SparseLayer) -> Group:
        """The groups of the soft mask in a layer."""
        if self.group != "auto":
            return self.group
        return "input" if layer.layout.kind == "linear" else "kernel"

    def hard_group(self, layer: SparseLayer) -> Group:
        """The groups of the hard mask in a layer."""
        return "input" if self.prune_group == "auto" else self.prune_group

    def hard_statistic(self, layer: SparseLayer) -> Statistic:
        """What decides about a group of the hard mask."""
        if self.statistic != "auto":
            return self.statistic
        # The range of a single weight, such as the kernel of a 1x1 convolution, is always 0.
        is_single = units_of(layer).size(self.hard_group(layer)) == 1
        return "mean_square" if layer.layout.kind == "linear" or is_single else "range"


def units_of(layer: SparseLayer) -> Units:
    """The input and output units of a layer."""
    layout = layer.layout
    return Units(layout.shape, layout.groups, layout.kind == "conv_transpose")


class Pruner:
    """The masks of one network, refreshed between steps.

    Args:
        model: Deterministic sparse layers, full ones included.
        optimizer: A sampler over its parameters.
        rule: What is masked.
        backend: ``auto`` lets the layers choose their backend again as they shrink.
    """

    def __init__(
        self, model: nn.Module, optimizer: Langevin, rule: PruningRule, backend: str = AUTO
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.rule = rule
        self.backend = backend
        self.weights = require_weights(model)
        for weight in self.weights:
            _check_statistic(weight, rule)
        self.masks: dict[str, Tensor] = {}  # DPF: true where a weight takes part
        self._live: dict[str, tuple[Tensor, Tensor]] = {}  # masks, and the inputs that they leave
        self._priors = {weight.name: self._prior(weight) for weight in self._trained}

    @property
    def total(self) -> int:
        """Weights of the dense network."""
        return sum(weight.layer.layout.numel for weight in self.weights)

    @property
    def remaining(self) -> int:
        """Weights that take part."""
        return sum(
            int(self.masks[w.name].sum()) if w.name in self.masks else w.layer.nnz
            for w in self.weights
        )

    @property
    def hard_sparsity(self) -> float:
        """Share of the dense network's weights that are zero."""
        return 1.0 - self.remaining / self.total

    def soft_sparsity(self) -> float:
        """Share of the dense network's weights that are zero or under the spike."""
        spiked = sum(int((self._spikes(w) & self._active(w)).sum()) for w in self._trained)
        return 1.0 - (self.remaining - spiked) / self.total

    def refresh(self, target: float | None = None) -> None:
        """Both masks from the present weights, Algorithm 3.

        Args:
            target: Share of the dense weights (of layers that are trained) to be zero now, reached
                by the λ₂ that give it; ``None`` uses the rule's own λ₂.
        """
        thresholds = None if target is None else self._thresholds(target)
        for weight in self._trained:
            prior = self._priors[weight.name]
            own = self._own_threshold(weight) if thresholds is None else thresholds[weight.name]
            self._hard(weight, own)
            decay = torch.full_like(self._values(weight), prior.slab)
            decay[self._spikes(weight)] = prior.spike
            self.optimizer.set_decay(weight.values, decay)

    @contextmanager
    def effective(self) -> Iterator[None]:
        """Weights are m⊙w inside (DPF) and w again afterwards, also after an exception."""
        held = [
            (weight, weight.values.detach().clone(), self.masks[weight.name])
            for weight in self.weights
            if weight.name in self.masks
        ]
        try:
            for weight, values, mask in held:
                weight.values.data = values * mask
                inputs = self._live_inputs(weight, mask)
                if inputs is not None:
                    for layer in weight.layers:
                        layer.stand_in = ReadingBackend(layer.backend, inputs, weight.values)
            yield
        finally:
            for weight, values, _ in held:
                for layer in weight.layers:
                    layer.stand_in = None
                weight.values.data = values

    def _live_inputs(self, weight: Weight, mask: Tensor) -> Tensor | None:
        """The inputs of a dense linear layer that the mask leaves; ``None`` for other layers.

        On the CPU only: elsewhere the host would wait for the answer, and all inputs cost little.
        """
        layout = weight.layer.layout
        if layout.kind != "linear" or weight.layer.indices is not None or not mask.is_cpu:
            return None
        known = self._live.get(weight.name)
        if known is None or known[0] is not mask:
            known = mask, mask.view(layout.shape).any(0).nonzero().flatten()
            self._live[weight.name] = known
        return known[1]

    @property
    def _trained(self) -> list[Weight]:
        """Those that the sampler moves; frozen weights are never masked."""
        return [weight for weight in self.weights if weight.is_trained]

    def _prior(self, weight: Weight) -> SpikeAndSlab:
        parameter, rule = weight.values, self.rule
        own = next(
            settings
            for settings in self.optimizer.param_groups
            if any(parameter is p for p in settings["params"])
        )
        return spike_and_slab(
            float(own["weight_decay"]),
            lr=float(own["lr"]),
            num_data=int(own["num_data"]),
            spike_decay=rule.spike_decay,
            spike_threshold=rule.spike_threshold,
            prune_threshold=rule.prune_threshold,
        )

    def _values(self, weight: Weight) -> Tensor:
        return weight.values.detach()

    def _active(self, weight: Weight) -> Tensor:
        mask = self.masks.get(weight.name)
        return torch.ones_like(self._values(weight), dtype=torch.bool) if mask is None else mask

    def _grouping(self, layer: SparseLayer, group: Group) -> Grouping:
        return Grouping.of(layer.support, units_of(layer), group).to(layer.leading().device)

    def _spikes(self, weight: Weight) -> Tensor:
        grouping = self._grouping(weight.layer, self.rule.soft_group(weight.layer))
        threshold = self._priors[weight.name].spike_threshold
        found = soft_mask(self._values(weight), grouping, threshold)
        # What a masked weight is in the network is 0, whatever it would come back with.
        return found | ~self._active(weight)

    def _own_threshold(self, weight: Weight) -> float:
        """λ₂ in the units of the layer's statistic."""
        prior, statistic = self._priors[weight.name], self.rule.hard_statistic(weight.layer)
        return prior.prune_threshold if statistic == "mean_square" else prior.range_threshold

    def _hard(self, weight: Weight, threshold: float) -> None:
        layer, values = weight.layer, self._values(weight)
        grouping = self._grouping(layer, self.rule.hard_group(layer))
        statistic = self.rule.hard_statistic(layer)
        keep = ~hard_mask(values, grouping, statistic, threshold)
        if not bool(keep.any()):
            # A layer without weights would cut the network in two: its best group stays. Asked of
            # the weights, because a group that has none may tie with one that has.
            best = grouping.statistic(values, statistic)[grouping.ids].argmax()
            keep = grouping.ids == grouping.ids[best]
        if self.rule.pruning == "dpf":
            self.masks[weight.name] = keep
        elif not bool(keep.all()):
            self._shrink(weight, keep)

    def _shrink(self, weight: Weight, keep: Tensor) -> None:
        """The weights that are not kept leave: data and optimiser state sliced together."""
        require_movable(self.optimizer, [weight])
        positions = weight.layer.support.positions()
        kept = positions[keep.to(positions.device)].cpu()
        support = Support.from_positions(kept, weight.layer.layout.shape)
        move(weight, support, keep.nonzero().flatten(), optimizer=self.optimizer)
        parameter = weight.values
        if self.backend == AUTO:
            for layer in weight.layers:
                layout, nnz = layer.layout, layer.nnz
                device, dtype = parameter.device, parameter.dtype
                layer.use_backend(choose(AUTO, layout, nnz, device, dtype, noisy=False))

    def _thresholds(self, target: float) -> dict[str, float]:
        """λ₂ per layer so that the target's share of the weights is removed."""
        trained = self._trained
        found: dict[str, float] = {}
        for part in [[w] for w in trained] if self.rule.target_scope == "layer" else [trained]:
            dense = sum(weight.layer.layout.numel for weight in part)
            gone = dense - sum(self._values(weight).numel() for weight in part)
            own = thresholds_for(list(map(self._candidates, part)), round(target * dense) - gone)
            found.update(zip((weight.name for weight in part), own, strict=True))
        return found

    def _candidates(self, weight: Weight) -> Candidates:
        layer = weight.layer
        grouping = self._grouping(layer, self.rule.hard_group(layer))
        return Candidates.of(self._values(weight), grouping, self.rule.hard_statistic(layer))


def _check_statistic(weight: Weight, rule: PruningRule) -> None:
    statistic, wanted = rule.hard_statistic(weight.layer), rule.hard_group(weight.layer)
    if statistic != "mean_square" and units_of(weight.layer).size(wanted) == 1:
        raise InvalidValue(
            "statistic",
            statistic,
            f"is always 0 in layer {weight.title}: each {wanted} is a single weight",
            "use mean_square, or auto",
        )
