"""Compiled training through several swaps: two graphs, and the numbers of the plain loop."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F

import gossamer as gs
from gossamer.nn import sparse_layers

# torch's own tracing makes an instance of an autograd.Function, which torch deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.usefixtures("fresh_compiler"),
]
TOTAL, SWAPS = 30, [3, 6, 9, 12, 15, 18, 21, 24, 27]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(model: nn.Module, call, *, seed: int, optimizer=torch.optim.Adam, total: int = TOTAL):
    """Train ``model`` through ``call``; returns the steps at which something was swapped."""
    opt = optimizer(model.parameters(), lr=0.01)
    subspace = gs.Subspace(
        model, opt, total_steps=total, swap_fraction=0.6, end_fraction=1.0, update_every=3
    )
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(seed)
    swaps = []
    for _ in range(total):
        x = torch.randn(8, 6, generator=data)
        y = torch.randint(3, (8,), generator=data)
        opt.zero_grad()
        F.cross_entropy(call(x), y).backward()
        opt.step()
        info = subspace.step()
        if info is not None:
            swaps.append(info.step)
    return swaps


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 6, 3, padding=1),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


@pytest.mark.parametrize(
    ("build", "convert"), [(mlp, gs.to_bayesian), (convnet, gs.to_bayesian), (mlp, gs.to_sparse)]
)
def test_aot_eager_is_the_plain_loop(build, convert):
    """The same kernels, so equal to the last bit; nine swaps cost no further graph."""
    graphs = []

    def counting(module, inputs):
        graphs.append(module)
        return aot_eager(module, inputs)

    torch.manual_seed(0)
    plain = convert(build(), 0.5).train()
    compiled = copy.deepcopy(plain)
    start = [layer.support.positions() for layer in sparse_layers(plain).values()]
    call = torch.compile(compiled, backend=counting, fullgraph=True)
    assert train(plain, plain, seed=2) == SWAPS
    assert train(compiled, call, seed=2) == SWAPS
    for name, value in plain.state_dict().items():
        assert torch.equal(value, compiled.state_dict()[name]), name
    end = [layer.support.positions() for layer in sparse_layers(plain).values()]
    assert any(not torch.equal(a, b) for a, b in zip(start, end, strict=True))
    assert len(graphs) == 2, "one graph armed, one not"


def test_the_compiled_module_itself_is_accepted():
    """Subspace, ELBO and parameter_groups on the wrapper that torch.compile returns."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(mlp(), 0.5).train()
    compiled = torch.compile(bnn, backend="aot_eager")
    opt = torch.optim.SGD(gs.parameter_groups(compiled, lr=0.01))
    assert {id(p) for g in opt.param_groups for p in g["params"]} == {
        id(p) for p in bnn.parameters()
    }
    elbo = gs.ELBO(compiled, num_data=10)
    subspace = gs.Subspace(compiled, opt, total_steps=8, update_every=1)
    x, y = torch.randn(4, 6), torch.randint(3, (4,))
    swaps = 0
    for _ in range(4):
        opt.zero_grad()
        elbo(F.cross_entropy(compiled(x), y)).backward()
        opt.step()
        swaps += subspace.step() is not None
    assert swaps == 4
    assert float(elbo.parts.kl) > 0.0


# Importing inductor itself uses what torch deprecates.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# A pool of compiling processes costs more than these four kernels.
@torch._inductor.config.patch(fallback_random=True, compile_threads=1)
def test_inductor_follows_the_plain_loop():
    """Generated kernels sum in another order: 1e-4 over 12 steps, same support throughout."""
    torch.manual_seed(0)
    plain = gs.to_bayesian(mlp(), 0.5).train()
    compiled = copy.deepcopy(plain)
    call = torch.compile(compiled, backend="inductor")
    swaps = train(plain, plain, seed=2, optimizer=torch.optim.SGD, total=12)
    assert swaps == [3, 6, 9]
    assert train(compiled, call, seed=2, optimizer=torch.optim.SGD, total=12) == swaps
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, compiled.state_dict()[name], rtol=1e-4, atol=1e-5)
