"""The backend protocol: every numerical thing that a layer asks for, and who does it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gossamer.errors import UnknownName
from gossamer.ops.growth import Growth
from gossamer.ops.layout import Layout
from gossamer.ops.native.backend import NativeBackend
from gossamer.ops.pattern import Pattern
from gossamer.ops.torch.masked import MaskedBackend


class Backend(Protocol):
    """Products of an input with a weight given by values on a support.

    ``pattern`` is the support with what ``prepare`` derived from it; ``values``, ``mean`` and
    ``variance`` are vectors over it. With a ``growth`` the backward pass also catches addition
    scores. ``bias`` is dense and deterministic.
    """

    @property
    def name(self) -> str:
        """The name under which the backend is chosen, stored and shown."""
        ...

    @property
    def derived(self) -> tuple[str, ...]:
        """Names of what ``prepare`` gives, in its order."""
        ...

    def supports(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether a layer of this layout can run here."""
        ...

    def prepare(self, indices: Tensor | None, layout: Layout) -> tuple[Tensor, ...]:
        """What the backend derives from a support, in O(nnz); nothing where it cannot run."""
        ...

    def weight(
        self, values: Tensor, pattern: Pattern, layout: Layout, growth: Growth | None
    ) -> Tensor:
        """The dense weight, zero off the support, differentiable.

        For parents that read ``layer.weight``.
        """
        ...

    def product(
        self,
        x: Tensor,
        values: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        growth: Growth | None,
    ) -> Tensor:
        """The linear map itself: W x + b."""
        ...

    def local(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        seed: Tensor,
        growth: Growth | None,
    ) -> Tensor:
        """Local reparameterisation: y = μx + b + sqrt(σ² x²) ⊙ ε, Eq. (4) of li2024ssvi.

        ``variance`` is σ², however it is parametrised; ε is ``normal_like(seed, y)``. Where the
        output's variance is 0 the output is its mean, and no gradient flows to the variance.
        """
        ...

    def moments(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of the output for a fixed input."""
        ...

    def samples(
        self,
        x: Tensor,
        mean: Tensor,
        std: Tensor,
        pattern: Pattern,
        layout: Layout,
        bias: Tensor | None,
        seeds: Tensor,
    ) -> Tensor:
        """``product`` for S draws of the weight, each with rows of its own.

        Draw s is θ = mean + std ⊙ ``normal_like(seeds[s], mean)``; ``x`` is ``[S · B, ...]`` with
        the rows of draw 0 first, and so is the output.
        """
        ...


BACKENDS: dict[str, Backend] = {"masked": MaskedBackend(), "native": NativeBackend()}


def get_backend(name: str) -> Backend:
    """The backend of that name, or a plain error."""
    if name not in BACKENDS:
        raise UnknownName("backend", name, list(BACKENDS))
    return BACKENDS[name]
