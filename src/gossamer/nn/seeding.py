"""The contexts in which a model samples, whatever its mode; exception-safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from gossamer.errors import UnknownName
from gossamer.nn.base import SparseLayer
from gossamer.nn.stochastic import Noise, SamplingState, Stochastic
from gossamer.nn.walk import stochastic_modules, weights_of
from gossamer.ops import draw_seed, fold_seed


@contextmanager
def sampling(
    model: nn.Module, *, seed: int | None = None, noise: Noise = "weight"
) -> Iterator[nn.Module]:
    """Within the context the stochastic modules of ``model`` sample, whatever its mode.

    Outside, ``eval()`` uses the means.

    Args:
        model: Any module; deterministic parts are untouched, BatchNorm keeps the mode it has.
        seed: Fixes the draw. With ``noise="weight"`` every forward in the context uses the same θ.
            ``None`` draws a seed from torch's generator.
        noise: ``weight`` draws one θ for all rows; ``local`` is the training noise, independent per
            row and pixel.

    Example:
        >>> bnn, x = gossamer.to_bayesian(nn.Linear(4, 2)).eval(), torch.randn(3, 4)
        >>> with sampling(bnn, seed=0):
        ...     one, two = bnn(x), bnn(x)
        >>> torch.equal(one, two), torch.equal(one, bnn(x))
        (True, False)
    """
    if noise not in ("weight", "local"):
        raise UnknownName("noise", str(noise), ("weight", "local"))
    with _override(model, [int(draw_seed()) if seed is None else seed], noise):
        yield model


@contextmanager
def sampling_together(
    model: nn.Module, *, seeds: Sequence[int], rows: int, noise: Noise
) -> Iterator[nn.Module]:
    """Within the context a forward pass of ``model`` takes the rows of several samples at once.

    Its input is ``[S · B, ...]``: the B rows of sample 0, then those of sample 1. Under
    ``noise="weight"`` sample s sees the θ of ``sampling(model, seed=seeds[s])``; local noise is
    independent per row, so that samples differ by it anyway.

    Args:
        model: In evaluation mode; its rows must not depend on each other.
        seeds: One per sample.
        rows: S · B.
        noise: As in ``sampling``.

    Raises:
        NeedsOwnPass: In the forward pass, where a layer cannot tell the samples apart: its weight
            is read by its parent, or its input has no plain axis of rows.
    """
    with _override(model, seeds, noise, rows):
        yield model


@contextmanager
def holding_draws(model: nn.Module) -> Iterator[None]:
    """Within a ``sampling`` context: draw the θ of a layer at its first pass for all that follow.

    Weights must not change inside, nor may gradients be wanted.
    """
    modules = stochastic_modules(model).values()
    found = (getattr(module, "sampling_state", None) for module in modules)
    states = [state for state in found if state is not None]
    try:
        for state in states:
            state.holds = True
        yield
    finally:
        for state in states:
            state.holds, state.drawn, state.drawn_absent = False, None, None


@contextmanager
def at_mean(model: nn.Module) -> Iterator[nn.Module]:
    """Within the context the stochastic modules of ``model`` use means, whatever its mode."""
    with _override(model, [0], None):
        yield model


@contextmanager
def _override(
    model: nn.Module, seeds: Sequence[int], noise: Noise | None, rows: int | None = None
) -> Iterator[None]:
    before: list[tuple[Stochastic, SamplingState | None]] = []
    try:
        for place, module in _places(model):
            before.append((module, getattr(module, "sampling_state", None)))
            folded = torch.tensor([fold_seed(s, place) for s in seeds], dtype=torch.int64)
            seed = folded[0] if rows is None else folded
            module.sampling_state = SamplingState(noise, seed, rows=rows)
        yield
    finally:
        for module, state in before:
            module.sampling_state = state


def _places(model: nn.Module) -> Iterator[tuple[int, Stochastic]]:
    """Every stochastic module with the number that its seed is folded with.

    Layers that share a weight share its number. Other modules are counted after the weights, so
    that a gate beside a layer does not change what the layer draws.
    """
    weights = weights_of(model)
    numbers = {id(layer): n for n, weight in enumerate(weights) for layer in weight.layers}
    others = len(weights)
    for module in stochastic_modules(model).values():
        if isinstance(module, SparseLayer):
            yield numbers[id(module)], module
        else:
            yield others, module
            others += 1
