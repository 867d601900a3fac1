"""What is asked of every network of the zoo, and what it answers: a row of docs/zoo.md."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.nn import at_mean, sparse_layers
from zoo.entries import Entry, Inputs

SPARSITY = 0.9
STEPS = 12
EVERY = 5  # steps 5 and 10: two swaps


@dataclass(frozen=True)
class Row:
    """How a network fared; every question that fails raises instead.

    Attributes:
        converted: Share of its parameters that became weights of sparse layers.
        layers: Sparse layers.
        nnz: Kept weights, equal after every step.
        moved: Weights whose position changed by the swaps.
        told: Whether a warning said that most of the network stayed dense.
    """

    converted: float
    layers: int
    nnz: int
    moved: int
    told: bool


def examine(entry: Entry) -> Row:
    """Convert, train through two swaps, store, load, give back and predict."""
    torch.manual_seed(0)
    network, inputs = entry.build()
    classes = [type(each) for each in network.modules()]
    converted, told = _converted(network)
    found = gs.summary(converted)
    assert 0 < found.nnz == round((1 - SPARSITY) * found.numel)
    moved = _train(entry, converted, inputs, found.nnz)
    _stored_and_loaded(entry, converted, inputs)
    _given_back(entry, converted, inputs, classes)
    _predicts_by_seed(entry, converted, inputs)
    return Row(found.converted, len(sparse_layers(converted)), found.nnz, moved, told)


def _converted(network: nn.Module) -> tuple[nn.Module, bool]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = gs.to_bayesian(network, sparsity=SPARSITY)
    return found, any("were converted" in str(each.message) for each in caught)


def _train(entry: Entry, network: nn.Module, inputs: Inputs, nnz: int) -> int:
    network.train()
    optimizer = torch.optim.Adam(gs.parameter_groups(network, lr=1e-3))
    subspace = gs.Subspace(network, optimizer, total_steps=2 * STEPS, update_every=EVERY)
    before = _positions(network)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = entry.call(network, inputs).square().mean() + 1e-6 * gs.kl_divergence(network)
        loss.backward()
        optimizer.step()
        subspace.step()
        assert torch.isfinite(loss)
        assert gs.summary(network).nnz == nnz
    pairs = zip(before, _positions(network), strict=True)
    moved = sum(len(set(old) - set(new)) for old, new in pairs)
    assert moved > 0
    return moved


def _positions(network: nn.Module) -> list[list[int]]:
    layers = sparse_layers(network).values()
    return [each.indices.tolist() for each in layers if each.indices is not None]


def _stored_and_loaded(entry: Entry, network: nn.Module, inputs: Inputs) -> None:
    torch.manual_seed(1)
    other, _ = _converted(entry.build()[0])
    other.load_state_dict(network.state_dict())
    mine, theirs = network.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert torch.equal(_mean(entry, network, inputs), _mean(entry, other, inputs))


def _given_back(entry: Entry, network: nn.Module, inputs: Inputs, classes: list[type]) -> None:
    dense = gs.to_deterministic(network)
    assert [type(each) for each in dense.modules()] == classes
    with torch.no_grad():
        given = entry.call(dense.eval(), inputs)
    mean = _mean(entry, network, inputs)
    assert torch.allclose(given, mean, rtol=1e-4, atol=1e-5), (given - mean).abs().max()


def _mean(entry: Entry, network: nn.Module, inputs: Inputs) -> Tensor:
    with torch.no_grad(), at_mean(network.eval()):
        return entry.call(network, inputs)


def _predicts_by_seed(entry: Entry, network: nn.Module, inputs: Inputs) -> None:
    def draws(seed: int) -> Tensor:
        if not entry.is_row_wise:
            with torch.no_grad(), gs.sampling(network, seed=seed):
                return entry.call(network, inputs)
        found = gs.predict(
            network,
            copy.deepcopy(inputs),
            num_samples=3,
            seed=seed,
            output=entry.output,
            class_dim=entry.class_dim,
        )
        assert torch.allclose(found.probs.sum(entry.class_dim), torch.ones(()), atol=1e-4)
        return found.probs

    first = draws(1)
    assert torch.equal(first, draws(1))
    assert not torch.equal(first, draws(2))
