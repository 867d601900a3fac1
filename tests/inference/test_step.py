"""One step for all methods: its order, its parts, its settings, and several ranks."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference import Batch, Energy, SwapRule
from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.inference.group import Alone
from gossamer.inference.step import Step, StepConfig
from gossamer.nn import sparse_layers


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def data(rows: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=generator), torch.arange(rows) % 3


def step_of(net: nn.Module, optimizer=None, group=None, **settings) -> Step:
    likelihood = gs.Categorical()
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    energy = Energy(net, num_data=24)
    return Step(net, likelihood, optimizer, energy, StepConfig(**settings), group or Alone())


def test_a_step_is_that_of_a_plain_loop():
    one, two = network(), network()
    x, y = data()
    taken = step_of(one).take(Batch(x, y))
    optimizer = torch.optim.SGD(two.parameters(), lr=0.1)
    loss = F.cross_entropy(two(x), y)
    loss.backward()
    optimizer.step()
    assert taken.loss == taken.nll == pytest.approx(float(loss.detach()), rel=1e-6)
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


class Noting(torch.optim.SGD):
    """Writes down when it steps, and how long the gradient is by then."""

    def __init__(self, parameters, notes: list) -> None:
        super().__init__(parameters, lr=0.1)
        self.notes = notes

    def step(self, closure=None):
        self.notes.append(("step", norm(self.param_groups[0]["params"])))
        return super().step(closure)


class Doubling(Alone):
    """A group whose mean is twice one's own gradient."""

    size = 2

    def __init__(self, notes: list) -> None:
        self.notes = notes

    def mean_(self, gradients) -> None:
        for gradient in gradients:
            gradient.mul_(2.0)
        self.notes.append(("reduce", None))


def norm(parameters) -> float:
    return float(torch.cat([p.grad.flatten() for p in parameters]).norm())


def test_the_group_sees_gradients_before_they_are_clipped_and_used():
    net, notes = network(), []
    step = step_of(net, Noting(net.parameters(), notes), Doubling(notes), clip_norm=1e-3)
    step.take(Batch(*data()))
    assert [name for name, _ in notes] == ["reduce", "step"]
    assert notes[1][1] == pytest.approx(1e-3, rel=1e-4), "clipped after the mean was taken"


def test_a_step_that_does_not_move_leaves_gradients_for_a_swap():
    net = network()
    before = copy.deepcopy(net.state_dict())
    step_of(net).take(Batch(*data()), moves=False)
    assert all(p.grad is not None for p in net.parameters())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("count", [1, 2, 5, 24, 100])
def test_parts_of_any_number_give_the_gradient_of_the_whole(count):
    one, two = network().double(), network().double()
    x, y = data()
    batch = Batch(x.double(), y, torch.rand(24, dtype=torch.float64))
    whole = step_of(one).take(batch, moves=False)
    parts = step_of(two, accumulate=count).take(batch, moves=False)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert parts.accuracy == pytest.approx(whole.accuracy)
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


def test_autocast_computes_products_in_bfloat16():
    net = network()
    seen = []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    taken = step_of(net, autocast=True).take(Batch(*data()))
    assert seen == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in net.parameters())
    assert taken.nll == pytest.approx(step_of(network()).take(Batch(*data())).nll, rel=2e-2)


@pytest.mark.parametrize("name", ["ssvi", "csghmc"])
def test_methods_take_the_settings(name):
    method = gs.build(
        name, network(), num_data=24, total_steps=8, accumulate=3, autocast=True, clip_norm=0.5
    )
    for _ in range(3):
        assert method.step(data()).loss > 0.0
    with pytest.raises(InvalidValue, match="accumulate = 0: must be at least 1"):
        gs.build(name, network(), num_data=24, total_steps=8, accumulate=0)


def test_a_norm_that_is_not_finite_moves_nothing():
    net = network()
    before = copy.deepcopy(net.state_dict())
    step = step_of(net, clip_norm=1.0)
    net[2].weight.register_hook(lambda grad: grad * torch.inf)
    with pytest.raises(NonFinite, match="gradient norm"):
        step.take(Batch(*data()))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


class Ranks:
    """Two ranks in two threads that meet at every gradient and every block of scores."""

    size = 2

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=60)
        self.shown: list = [None, None]
        self.blocks = 0

    def of(self, rank: int):
        ranks = self

        class Rank:
            size = 2

            def __init__(self) -> None:
                self.rank = rank

            def mean_(self, gradients) -> None:
                for total, gradient in zip(ranks.exchange(rank, gradients), gradients, strict=True):
                    gradient.copy_(total / 2)

            def sum_(self, block: Tensor) -> Tensor:
                ranks.blocks += 1
                return ranks.exchange(rank, [block])[0]

        return Rank()

    def exchange(self, rank: int, tensors) -> list[Tensor]:
        self.shown[rank] = [t.clone() for t in tensors]
        self.barrier.wait()
        summed = [a + b for a, b in zip(*self.shown, strict=True)]
        self.barrier.wait()
        return summed


@pytest.mark.parametrize("backend", ["masked", "native"])
def test_two_ranks_take_the_swaps_of_one_process(backend):
    """Half a batch each, scores summed before they are ranked: the supports of the whole batch."""

    def method(group=None):
        torch.manual_seed(3)
        net = gs.to_sparse(network().double(), 0.5, backend=backend)
        config = OptimizerConfig(lr=0.05)
        swaps = SwapRule(removal="mean_abs", update_every=3, swap_fraction=0.5, end_fraction=1.0)
        elbo = gs.ELBO(net, 24, 0.0)
        return GradientMethod(
            "rigl", net, gs.Categorical(), elbo, config, 40, swaps=swaps, group=group or Alone()
        )

    x, y = data()
    x = x.double()
    alone = method()
    swapped = 0
    for _ in range(15):
        info = alone.step((x, y))
        swapped += 0 if info.swap is None else sum(s.added for s in info.swap.layers.values())
    assert swapped > 10
    ranks = Ranks()
    pair = [method(ranks.of(0)), method(ranks.of(1))]
    failures: list[BaseException] = []

    def train(rank: int) -> None:
        try:
            for _ in range(15):
                pair[rank].step((x[rank::2], y[rank::2]))
        except BaseException as error:  # the other rank must not wait for ever
            failures.append(error)
            ranks.barrier.abort()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ranks.blocks > 0
    for name, layer in sparse_layers(alone.model).items():
        for other in pair:
            twin = sparse_layers(other.model)[name]
            assert twin.support.same_as(layer.support), name
            torch.testing.assert_close(twin.leading(), layer.leading(), rtol=1e-9, atol=1e-12)
