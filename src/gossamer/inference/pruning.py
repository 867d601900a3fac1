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
from gossamer.core.spike_slab import Candidates, hard_mask, soft_mask, thresholds_for
from gossamer.errors import InvalidValue
from gossamer.inference.chain_prior import SpikeAndSlab, spike_and_slab
from gossamer.inference.langevin_base import Langevin
from gossamer.inference.optimizer_state import check_optimizer, shrink_optimizer
from gossamer.nn.base import SparseLayer
from gossamer.nn.resize import resize
from gossamer.nn.walk import WeightGroup, require_groups
from gossamer.ops import AUTO, choose

Pruning = Literal["dfp", "dpf"]
Scope = Literal["network", "layer"]


@dataclass(frozen=True, kw_only=True)
class PruningRule:
    """Which groups get the spike, and which leave.

    Attributes:
        pruning: ``dfp`` or ``dpf``.
        group: Of the soft mask; ``auto`` takes kernels of convolutions and input units of linear
            layers.
        prune_group: Of the hard mask; ``auto`` takes input units.
        statistic: Of the hard mask; ``auto`` takes ``range``, Eq. (9), for convolutions and
            ``mean_square``, Eq. (10), for linear layers and where a group is a single weight.
        spike_decay: δ₀/N; the slab's is the optimiser's ``weight_decay``.
        spike_threshold: λ₁.
        prune_threshold: λ₂. These three follow from the slab where they are ``None``
            (``chain_prior``).
        target_scope: Whether a target is the share of the ``network``, which its layers bear
            according to their ``Candidates.scores``, or that of every ``layer``.
    """

    pruning: Pruning
    group: Group | Literal["auto"]
    prune_group: Group | Literal["auto"]
    statistic: Statistic | Literal["auto"]
    spike_decay: float | None
    spike_threshold: float | None
    prune_threshold: float | None
    target_scope: Scope

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
        backend: ``auto`` lets the layers choose their engine again as they shrink.
    """

    def __init__(
        self, model: nn.Module, optimizer: Langevin, rule: PruningRule, backend: str = AUTO
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.rule = rule
        self.backend = backend
        self.groups = require_groups(model)
        for group in self.groups:
            _check_statistic(group, rule)
        self.masks: dict[str, Tensor] = {}  # DPF: true where a weight takes part
        self._live: dict[str, tuple[Tensor, Tensor]] = {}  # masks, and the inputs that they leave
        self._priors = {group.name: self._prior(group) for group in self._trained}

    @property
    def total(self) -> int:
        """Weights of the dense network."""
        return sum(group.first.layout.numel for group in self.groups)

    @property
    def remaining(self) -> int:
        """Weights that take part."""
        return sum(
            int(self.masks[g.name].sum()) if g.name in self.masks else g.first.nnz
            for g in self.groups
        )

    @property
    def hard_sparsity(self) -> float:
        """Share of the dense network's weights that are zero."""
        return 1.0 - self.remaining / self.total

    def soft_sparsity(self) -> float:
        """Share of the dense network's weights that are zero or under the spike."""
        spiked = sum(int((self._spikes(g) & self._active(g)).sum()) for g in self._trained)
        return 1.0 - (self.remaining - spiked) / self.total

    def refresh(self, target: float | None = None) -> None:
        """Both masks from the present weights, Algorithm 3.

        Args:
            target: Share of the dense weights (of layers that are trained) to be zero now, reached
                by the λ₂ that give it; ``None`` uses the rule's own λ₂.
        """
        thresholds = None if target is None else self._thresholds(target)
        for group in self._trained:
            prior = self._priors[group.name]
            own = self._own_threshold(group) if thresholds is None else thresholds[group.name]
            self._hard(group, own)
            decay = torch.full_like(self._values(group), prior.slab)
            decay[self._spikes(group)] = prior.spike
            self.optimizer.set_decay(group.first.leading(), decay)

    @contextmanager
    def effective(self) -> Iterator[None]:
        """Weights are m⊙w inside (DPF) and w again afterwards, also after an exception."""
        held = [
            (group, group.first.leading().detach().clone(), self.masks[group.name])
            for group in self.groups
            if group.name in self.masks
        ]
        try:
            for group, values, mask in held:
                group.first.leading().data = values * mask
                inputs = self._live_inputs(group, mask)
                for layer in group.layers:
                    layer.note_read_inputs(inputs)
            yield
        finally:
            for group, values, _ in held:
                for layer in group.layers:
                    layer.note_read_inputs(None)
                group.first.leading().data = values

    def _live_inputs(self, group: WeightGroup, mask: Tensor) -> Tensor | None:
        """The inputs of a dense linear layer that the mask leaves; ``None`` for other layers.

        On the CPU only: elsewhere the host would wait for the answer, and all inputs cost little.
        """
        layout = group.first.layout
        if layout.kind != "linear" or group.first.indices is not None or not mask.is_cpu:
            return None
        known = self._live.get(group.name)
        if known is None or known[0] is not mask:
            known = mask, mask.view(layout.shape).any(0).nonzero().flatten()
            self._live[group.name] = known
        return known[1]

    @property
    def _trained(self) -> list[WeightGroup]:
        """Those that the sampler moves; frozen weights are never masked."""
        return [group for group in self.groups if group.first.leading().requires_grad]

    def _prior(self, group: WeightGroup) -> SpikeAndSlab:
        parameter, rule = group.first.leading(), self.rule
        own = next(
            settings
            for settings in self.optimizer.param_groups
            if any(parameter is p for p in settings["params"])
        )
        return spike_and_slab(
            own,
            spike_decay=rule.spike_decay,
            spike_threshold=rule.spike_threshold,
            prune_threshold=rule.prune_threshold,
        )

    def _values(self, group: WeightGroup) -> Tensor:
        return group.first.leading().detach()

    def _active(self, group: WeightGroup) -> Tensor:
        mask = self.masks.get(group.name)
        return torch.ones_like(self._values(group), dtype=torch.bool) if mask is None else mask

    def _grouping(self, layer: SparseLayer, group: Group) -> Grouping:
        return Grouping.of(layer.support, units_of(layer), group).to(layer.leading().device)

    def _spikes(self, group: WeightGroup) -> Tensor:
        grouping = self._grouping(group.first, self.rule.soft_group(group.first))
        threshold = self._priors[group.name].spike_threshold
        found = soft_mask(self._values(group), grouping, threshold)
        # What a masked weight is in the network is 0, whatever it would come back with.
        return found | ~self._active(group)

    def _own_threshold(self, group: WeightGroup) -> float:
        """λ₂ in the units of the layer's statistic."""
        prior, statistic = self._priors[group.name], self.rule.hard_statistic(group.first)
        return prior.prune_threshold if statistic == "mean_square" else prior.range_threshold

    def _hard(self, group: WeightGroup, threshold: float) -> None:
        layer, values = group.first, self._values(group)
        grouping = self._grouping(layer, self.rule.hard_group(layer))
        statistic = self.rule.hard_statistic(layer)
        keep = ~hard_mask(values, grouping, statistic, threshold)
        if not bool(keep.any()):
            # A layer without weights would cut the network in two: its best group stays. Asked of
            # the weights, because a group that has none may tie with one that has.
            best = grouping.statistic(values, statistic)[grouping.ids].argmax()
            keep = grouping.ids == grouping.ids[best]
        if self.rule.pruning == "dpf":
            self.masks[group.name] = keep
        elif not bool(keep.all()):
            self._shrink(group, keep)

    def _shrink(self, group: WeightGroup, keep: Tensor) -> None:
        """The weights that are not kept leave: data and optimiser state sliced together."""
        parameter = group.first.leading()
        check_optimizer(self.optimizer, [parameter])
        positions = group.first.support.positions()[keep.cpu()]
        resize(group, positions.to(torch.int32), parameter.detach()[keep])
        shrink_optimizer(self.optimizer, parameter, keep)
        if self.backend == AUTO:
            for layer in group.layers:
                layout, nnz = layer.layout, layer.nnz
                device, dtype = parameter.device, parameter.dtype
                layer.use_engine(choose(AUTO, layout, nnz, device, dtype, noisy=False))

    def _thresholds(self, target: float) -> dict[str, float]:
        """λ₂ per layer so that the target's share of the weights is removed."""
        trained = self._trained
        found: dict[str, float] = {}
        for part in [[g] for g in trained] if self.rule.target_scope == "layer" else [trained]:
            dense = sum(group.first.layout.numel for group in part)
            gone = dense - sum(self._values(group).numel() for group in part)
            own = thresholds_for(list(map(self._candidates, part)), round(target * dense) - gone)
            found.update(zip((group.name for group in part), own, strict=True))
        return found

    def _candidates(self, group: WeightGroup) -> Candidates:
        layer = group.first
        grouping = self._grouping(layer, self.rule.hard_group(layer))
        return Candidates.of(self._values(group), grouping, self.rule.hard_statistic(layer))


def _check_statistic(group: WeightGroup, rule: PruningRule) -> None:
    statistic, wanted = rule.hard_statistic(group.first), rule.hard_group(group.first)
    if statistic != "mean_square" and units_of(group.first).size(wanted) == 1:
        raise InvalidValue(
            "statistic",
            statistic,
            f"is always 0 in layer {group.name or 'root'}: each {wanted} is a single weight",
            "use mean_square, or auto",
        )
