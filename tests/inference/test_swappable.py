"""Models and optimisers that Subspace refuses, several optimisers, layers set free in a run."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.inference import Alone
from gossamer.nn import sparse_layers


class Together(Alone):
    """A group of two that have the same gradients."""

    size = 2

    def sum_(self, block):
        return block.mul_(2)


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4))
    return gs.to_bayesian(net, 0.5).train()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(gs.parameter_groups(model, lr=1e-2))


def subspace(model, optimizer, **settings) -> gs.Subspace:
    settings = {"total_steps": 40, "update_every": 2, "end_fraction": 1.0, **settings}
    return gs.Subspace(model, optimizer, swap_fraction=0.4, **settings)


def train(model, optimizers, moves, steps):
    """So many steps; the supports after each."""
    seen = []
    for _ in range(steps):
        for each in optimizers:
            each.zero_grad()
        (model(torch.randn(16, 8)) - 1.0).square().mean().backward()
        for each in optimizers:
            each.step()
        moves.step()
        seen.append({n: m.indices.clone() for n, m in sparse_layers(model).items()})
    return seen


@pytest.fixture(params=[1, 2])
def world(request):
    """A process group that talks to nobody, as large as it says."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    distributed.destroy_process_group()


def test_several_processes_need_a_group(world):
    model = network()
    opt = adam(model)
    if world == 1:
        assert subspace(model, opt).group.size == 1
        return
    with pytest.raises(InvalidValue, match=r"group: is needed: .*has 2 processes.*group= "):
        subspace(model, opt)
    assert subspace(model, opt, group=Together()).group.size == 2
    assert subspace(model, opt, group=Alone()).group.size == 1, "each trains its own, on purpose"


def test_ddp_needs_a_group(world):
    model = DistributedDataParallel(network())
    opt = adam(model)
    for each in (model, nn.Sequential(model)):
        with pytest.raises(InvalidValue, match=r"model = DistributedDataParallel: .*group="):
            subspace(each, opt)
    assert subspace(model, opt, group=Together()).group.size == 2


def test_sharded_parameters_are_refused(world):
    if world > 1:
        return  # a rank of several would wait for the others
    model = network()
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    fully_shard(model, mesh=mesh)
    opt = torch.optim.Adam(model.parameters())
    with pytest.raises(InvalidValue, match=r"weight_mean of layer 0 = DTensor: is spread over"):
        subspace(model, opt)


def test_zero_is_refused(world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its package compiles with torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = network()
    opt = ZeroRedundancyOptimizer(list(model.parameters()), torch.optim.Adam, lr=1e-2)
    with pytest.raises(InvalidValue, match=r"optimizer = ZeroRedundancyOptimizer: .*share"):
        subspace(model, opt, group=Together())


def test_lbfgs_is_refused_at_once():
    model = network()
    with pytest.raises(InvalidValue, match=r"optimizer = LBFGS: .*flat vector"):
        subspace(model, torch.optim.LBFGS(model.parameters()))


def test_deepspeed_is_refused_by_its_package():
    class Stage2(torch.optim.Adam):
        """Stands for those of the package."""

    Stage2.__module__ = "deepspeed.runtime.zero.stage_1_and_2"
    model = network()
    with pytest.raises(InvalidValue, match=r"optimizer = Stage2: flattens parameters"):
        subspace(model, Stage2(model.parameters()))


class Outer(torch.optim.SGD):
    """Wraps an optimiser, whose state it hides."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, lr=0.01)

    def step(self, closure=None):
        return self.inner.step(closure)


def test_a_wrapper_that_hides_state_is_refused():
    model = network()
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    with pytest.raises(InvalidValue, match=r"Outer: wraps Adam.*\[outer, inner\]"):
        subspace(model, Outer(inner))
    outer = Outer(inner)
    assert subspace(model, [outer, inner]).optimizers == (outer, inner)


class Half(torch.optim.Adam):
    """Keeps the state of every other parameter elsewhere."""

    def step(self, closure=None):
        self.state.update(getattr(self, "elsewhere", {}))
        super().step(closure)
        hidden = [p for group in self.param_groups for p in group["params"]][::2]
        self.elsewhere = {p: self.state.pop(p) for p in hidden}


def test_a_stepped_parameter_without_state_is_refused():
    model = network()
    opt = Half(model.parameters(), lr=0.01)
    moves = subspace(model, opt)
    before = model[0].indices.clone()
    with pytest.raises(InvalidValue, match=r"state of Half: is missing for \d parameters.*group 0"):
        train(model, [opt], moves, 2)
    assert torch.equal(model[0].indices, before)


def test_no_state_at_all_or_in_a_group_is_fine():
    """SGD without momentum keeps none; a group may have its own momentum."""
    model = network()
    opt = torch.optim.SGD(gs.parameter_groups(model, lr=0.01), momentum=0.9)
    opt.param_groups[1]["momentum"] = 0.0
    assert train(model, [opt], subspace(model, opt), 4)
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    assert train(model, [opt], subspace(model, opt), 4)


def test_a_layer_without_gradients_needs_no_state():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.rest = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            return self.used(x)

    model = gs.to_bayesian(Unused(), 0.5)
    opt = adam(model)
    with torch.no_grad():
        model.rest.weight_mean.mul_(1.0)
    seen = train(model, [opt], subspace(model, opt), 4)
    assert torch.equal(seen[0]["rest"], seen[-1]["rest"])


# ----- several optimisers -----


def split(model, second) -> list[torch.optim.Optimizer]:
    means = [p for n, p in model.named_parameters() if not n.endswith("raw_std")]
    scales = [p for n, p in model.named_parameters() if n.endswith("raw_std")]
    return [torch.optim.Adam(means, lr=1e-2), second(scales, lr=1e-2)]


def test_two_optimizers_are_the_one_that_does_both():
    runs = []
    for several in (False, True):
        model = network()
        opts = split(model, torch.optim.Adam) if several else [adam(model)]
        moves = subspace(model, opts if several else opts[0])
        torch.manual_seed(1)
        train(model, opts, moves, 10)
        runs.append(model.state_dict())
    for name, value in runs[0].items():
        assert torch.equal(value, runs[1][name]), name


def test_the_state_of_each_optimizer_moves():
    model = network()
    opts = split(model, torch.optim.SGD)
    for group in opts[1].param_groups:
        group["momentum"] = 0.9
    moves = subspace(model, opts)
    train(model, opts, moves, 1)
    old = dict(
        zip(
            model[0].indices.tolist(),
            opts[1].state[model[0].weight_raw_std]["momentum_buffer"].tolist(),
            strict=True,
        )
    )
    model(torch.randn(16, 8)).square().mean().backward()
    moves.step()
    now = opts[1].state[model[0].weight_raw_std]["momentum_buffer"].tolist()
    wanted = [old.get(position, 0.0) for position in model[0].indices.tolist()]
    assert now == wanted
    assert set(old) != set(model[0].indices.tolist())


def test_every_parameter_needs_an_optimizer():
    model = network()
    opts = split(model, torch.optim.Adam)
    with pytest.raises(InvalidValue, match=r"Adam: lacks the parameter 0.weight_raw_std"):
        subspace(model, opts[:1])
    with pytest.raises(InvalidValue, match=r"optimizer = \[\]: must be one or more"):
        subspace(model, [])


# ----- layers that are frozen and set free -----


@pytest.mark.parametrize("addition", ["grad", "random", "grad_mean"])
def test_a_layer_set_free_joins_the_swaps(addition):
    model = network()
    model[0].requires_grad_(False)
    opt = adam(model)
    moves = subspace(model, opt, addition=addition)
    x = torch.randn(16, 8)

    def run(steps):
        for _ in range(steps):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
            moves.step(lambda: model(x).square().mean())

    first = model[0].indices.clone()
    run(4)
    assert torch.equal(model[0].indices, first)
    model[0].requires_grad_(True)
    run(2)
    assert torch.equal(model[0].indices, first), "no optimiser steps it yet"
    opt.add_param_group({"params": list(model[0].parameters())})
    run(4)
    assert not torch.equal(model[0].indices, first)
    then = model[0].indices.clone()
    model[0].requires_grad_(False)
    run(4)
    assert torch.equal(model[0].indices, then), "frozen again"
    assert model[0].growth is None
