"""What a layer believes of the weights that it does not keep: a variance of rank one.

Off its support a layer has a delta at 0, which claims to know that nothing is there. With factors
a_i per output and b_j per input (unit or channel; all places of a kernel alike) every position of
the dense weight, kept or not, has the variance (a_i b_j)² besides: an absent weight is
N(0, (a_i b_j)²), a kept one N(mean, std² + (a_i b_j)²).

That the kept ones have it too is a choice. Noise on all positions is a sum of two independent ones,
sparse and of rank one, so that no kernel has to know of it: under local reparameterisation output i
gains the variance a_i² Σ_j b_j² x_j², one product with a vector. Without it on the support, that
product would have to be taken back by a sparse one, a difference that can come out below 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, prod

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn.stochastic import StochasticModule
from gossamer.nn.vector import Vector
from gossamer.ops import Layout, Pattern, gaussian, get_backend, normal_like

# Noise of the factors comes from the seed of the layer's own with these bits turned.
_OTHER_STREAM = 0x2B7E151628AED2A6


@dataclass(frozen=True, eq=False)
class RankOne:
    """Independent Gaussians N(0, (a_i b_j)²) on all positions of a weight.

    Attributes:
        log_out: ``[out]``, log a.
        log_in: ``[in]``, log b, over the channels of all groups.
        layout: Of the weight.
    """

    log_out: Tensor
    log_in: Tensor
    layout: Layout

    def std_at(self, positions: Tensor) -> Tensor:
        """Standard deviations ``[k]`` at flat positions ``[k]`` of the dense weight."""
        rows, columns = self._factors_of(positions.to(self.log_out.device))
        # index_select adds gradients up in one order, which indexing with several threads does not
        return (self.log_out.index_select(0, rows) + self.log_in.index_select(0, columns)).exp()

    def dense_std(self) -> Tensor:
        """Standard deviations of all positions, in the weight's shape."""
        layout, groups = self.layout, self.layout.groups
        outer, inner = self.log_out, self.log_in
        if layout.is_transposed:
            outer, inner = inner, outer
        per_group = inner.view(groups, -1).repeat_interleave(layout.shape[0] // groups, 0)
        matrix = (outer.unsqueeze(1) + per_group).exp()
        return matrix.view(*matrix.shape, *(1,) * len(layout.kernel)).expand(layout.shape)

    def variance_of(self, square: Tensor) -> Tensor:
        """Σ_j (a_i b_j)² x_j² ``[..., out]`` from x² ``[..., in]``, or with space behind."""
        return self._to_outputs(self._weighted_sum(square), (2.0 * self.log_out).exp())

    def local(self, x: Tensor, seed: Tensor) -> Tensor:
        """Noise of that variance, independent per row, output and pixel."""
        with torch.autocast(x.device.type, enabled=False):
            total = self._weighted_sum(self._precise(x).square())
            # Dead inputs: no noise, and no gradient where a root would have an infinite one.
            alive = total > 0.0
            root = torch.where(alive, torch.where(alive, total, 1.0).sqrt(), 0.0)
            std = self._to_outputs(root, self.log_out.to(root.dtype).exp())
            return std * normal_like(_other(seed), std)

    def draw(self, seed: Tensor) -> Tensor:
        """One draw of all positions, in the weight's shape."""
        std = self.dense_std()
        return std * normal_like(_other(seed), std)

    def product(self, x: Tensor, drawn: Tensor) -> Tensor:
        """``x`` mapped by a draw: the work of a dense layer."""
        return _dense_product(x, drawn.to(x.dtype), self.layout)

    def samples(self, x: Tensor, seeds: Tensor) -> Tensor:
        """``x`` ``[S · B, ...]``, the rows of each sample mapped by its own draw."""
        parts = zip(torch.chunk(x, seeds.numel()), seeds.unbind(), strict=True)
        return torch.cat([self.product(rows, self.draw(seed)) for rows, seed in parts])

    def kl_off(self, support: Tensor, prior_std: float) -> Tensor:
        """Σ KL(N(0, (a_i b_j)²) || N(0, prior_std²)) over all positions off ``support``, 0-d.

        Exact in O(out + in + nnz): the logarithm of a product is a sum, so that each factor counts
        as often as absent weights have it, and Σ a_i² b_j² over all positions is a product of sums.
        In float64, where the kept ones can be taken off again.

        Args:
            support: int64 ``[nnz]``, flat positions.
            prior_std: Of every absent weight.
        """
        layout, groups = self.layout, self.layout.groups
        log_out, log_in = _double(self.log_out), _double(self.log_in)
        places = prod(layout.kernel)
        rows, columns = self._factors_of(support.to(log_out.device))
        size_out, size_in = layout.fan_in * places, layout.fan_out // groups * places
        off_out = size_out - torch.bincount(rows, minlength=log_out.numel())
        off_in = size_in - torch.bincount(columns, minlength=log_in.numel())
        squares = [(2.0 * v).exp().view(groups, -1).sum(1) for v in (log_out, log_in)]
        kept = (2.0 * (log_out.index_select(0, rows) + log_in.index_select(0, columns))).exp()
        square = places * (squares[0] * squares[1]).sum() - kept.sum()
        logs = (off_out * log_out).sum() + (off_in * log_in).sum()
        count = layout.numel - support.numel()
        found = 0.5 * (square / prior_std**2 - count) - logs + count * log(prior_std)
        return found.to(self.log_out)

    def _factors_of(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Which output and which input a position belongs to."""
        layout, positions = self.layout, positions.to(torch.int64)
        pair = positions // prod(layout.kernel)
        outer, inner = pair // layout.shape[1], pair % layout.shape[1]
        group = outer // (layout.shape[0] // layout.groups)
        inner = inner + group * layout.shape[1]
        return (inner, outer) if layout.is_transposed else (outer, inner)

    def _weighted_sum(self, square: Tensor) -> Tensor:
        """Σ_j b_j² x_j² of a group ``[..., groups]``; ``[..., groups, *space]`` by a box filter."""
        layout, weight = self.layout, (2.0 * self.log_in).exp().to(square.dtype)
        dims, groups = layout.dims, layout.groups
        if layout.is_linear and groups == 1:
            return (square @ weight).unsqueeze(-1)
        if layout.is_linear:
            return (square * weight).reshape(*square.shape[:-1], groups, -1).sum(-1)
        weighted = square * weight.view(-1, *(1,) * dims)
        lead, space = square.shape[: -dims - 1], square.shape[-dims:]
        summed = weighted.reshape(*lead, groups, -1, *space).sum(-dims - 1)
        box = replace(layout, shape=(groups, 1, *layout.kernel))
        return _dense_product(summed, summed.new_ones(box.shape), box)

    def _to_outputs(self, total: Tensor, factor: Tensor) -> Tensor:
        """What the outputs of a group share, times a factor per output."""
        layout, factor = self.layout, factor.to(total.dtype)
        if layout.is_linear:  # one total, or one for each group
            return (total.unsqueeze(-1) * factor.view(layout.groups, -1)).flatten(-2)
        dims = layout.dims
        factor = factor.view(layout.groups, -1, *(1,) * dims)
        return (total.unsqueeze(-dims - 1) * factor).flatten(-dims - 2, -dims - 1)

    def _precise(self, x: Tensor) -> Tensor:
        return x.to(torch.promote_types(torch.promote_types(x.dtype, torch.float32), self.dtype))

    @property
    def dtype(self) -> torch.dtype:
        """That of the factors."""
        return self.log_out.dtype


class AbsentWeights(StochasticModule):
    """The part of a Bayesian layer that may give weights off its support a variance.

    Attributes:
        absent_log_out: ``[out]``, log a; ``None`` where absent weights are 0.
        absent_log_in: ``[in]``, log b; likewise.
        absent_prior_std: Of the Gaussian prior of absent weights.
    """

    layout: Layout
    absent_log_out: nn.Parameter | None
    absent_log_in: nn.Parameter | None
    absent_prior_std: float = 0.0

    def spread_absent(self, std: float, prior_std: float) -> None:
        """Give every position of the dense weight a variance of rank one, ``std``² at first.

        Args:
            std: At every position, > 0.
            prior_std: Of the Gaussian prior of absent weights, > 0.
        """
        for name, value in (("std", std), ("prior_std", prior_std)):
            if not 0.0 < value < inf:
                raise InvalidValue(f"{name} of absent weights", value, "must be finite and > 0")
        like = gaussian.at_least_float32(next(self.parameters(recurse=False)).detach())
        sizes = {"absent_log_out": self.layout.fan_out, "absent_log_in": self.layout.channels}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(like.new_full((size,), 0.5 * log(std))))
        self.absent_prior_std = prior_std

    def absent(self, layout: Layout | None = None) -> RankOne | None:
        """The variance of all positions, if there is one; ``layout`` is that of this call."""
        if self.absent_log_out is None or self.absent_log_in is None:
            return None
        return RankOne(self.absent_log_out, self.absent_log_in, layout or self.layout)

    @property
    def factors(self) -> tuple[Vector, ...]:
        """``absent_log_out`` and ``absent_log_in``, if the layer has them."""
        found = (("absent_log_out", self.absent_log_out), ("absent_log_in", self.absent_log_in))
        return tuple(Vector(name, p, "scale") for name, p in found if p is not None)

    def absent_variance(self, square: Tensor) -> Tensor | None:
        """What all positions, the kept ones too, add to the variance of the outputs, from x²."""
        absent = self.absent()
        return None if absent is None else absent.variance_of(square)

    def draw_absent(self, absent: RankOne) -> Tensor:
        """One draw of all positions, once where the context holds draws."""
        state = self.sampling_state
        if state is None or not state.holds or torch.compiler.is_compiling():
            return absent.draw(self.seed("weight"))
        if state.drawn_absent is None:
            state.drawn_absent = absent.draw(self.seed("weight"))
        return state.drawn_absent


def _double(vector: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (vector.cpu() if vector.device.type == "mps" else vector).double()


def _other(seed: Tensor) -> Tensor:
    return seed ^ _OTHER_STREAM


def _dense_product(x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    """The map of a dense weight, padded as the layout asks."""
    return get_backend("masked").product(x, weight.reshape(-1), Pattern(None), layout, None, None)
