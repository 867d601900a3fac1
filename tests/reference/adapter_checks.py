"""What is asked of adapters with a posterior, whoever wrote the adapters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from cases.adapters import ADAPTERS, batch, with_values
from gossamer.nn import sparse_layers

WEIGHTS = 4 * 10 + 20 * 4 + 4 * 20 + 20 * 4


def only_adapters_change(make: Callable[[], nn.Module], sparsity: float) -> None:
    """Convert, train through swaps: the budget is exact, and nothing frozen moves by a bit."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(make(), sparsity, include=ADAPTERS).train()
    layers = sparse_layers(bnn)
    assert len(layers) == 4
    assert all(".lora_" in name for name in layers)
    total = round((1 - sparsity) * WEIGHTS)
    frozen = {n: p.clone() for n, p in bnn.named_parameters() if ".lora_" not in n}
    assert not any(p.requires_grad for n, p in bnn.named_parameters() if ".lora_" not in n)
    optimizer = torch.optim.Adam(gs.parameter_groups(bnn, lr=2e-2))
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert held == 2 * total, "means and standard deviations of the adapters, and nothing else"
    subspace = gs.Subspace(bnn, optimizer, total_steps=60, update_every=5)
    elbo, (x, y), losses = gs.ELBO(bnn, num_data=32, kl_weight=0.01), batch(), []
    before = [layer.support.positions().clone() for layer in layers.values()]
    for _ in range(40):
        optimizer.zero_grad()
        loss = elbo(F.cross_entropy(bnn(x), y))
        loss.backward()
        optimizer.step()
        subspace.step()
        losses.append(float(loss.detach()))
        assert gs.summary(bnn).nnz == total
    assert sum(losses[-5:]) < sum(losses[:5])
    now = dict(bnn.named_parameters())
    assert all(torch.equal(now[name], value) for name, value in frozen.items())
    after = [layer.support.positions() for layer in layers.values()]
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert any(moved) == (sparsity > 0)


def outputs_are_those_of_dense_matrices(make: Callable[[], nn.Module]) -> None:
    """Under one draw the outputs are W x + s B A x with the A and B of that draw."""
    bnn = with_values(gs.to_bayesian(make(), 0.5, include=ADAPTERS, posterior_std=0.2)).eval()
    x, _ = batch()
    first, second, head = (_find(bnn, name) for name in ("first", "second", "head"))
    with torch.no_grad(), gs.sampling(bnn, seed=3):
        hidden = x
        for layer in (first, second):
            down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            hidden = torch.relu(layer.base_layer(hidden) + 2.0 * hidden @ down.T @ up.T)
        torch.testing.assert_close(bnn(x), head(hidden), rtol=1e-4, atol=1e-5)
    found = gs.predict(bnn, x, num_samples=5, seed=1)
    assert torch.equal(found.samples, gs.predict(bnn, x, num_samples=5, seed=1).samples)
    assert bool((found.samples.std(0) > 0).all())


def state_and_way_back(make: Callable[[], nn.Module]) -> None:
    """A state loads bit for bit into another support; the adapters come back as they were."""
    x, _ = batch()
    torch.manual_seed(0)
    plain = make()
    one = with_values(gs.to_bayesian(plain, 0.5, include=ADAPTERS)).eval()
    torch.manual_seed(9)
    two = gs.to_bayesian(make(), 0.5, include=ADAPTERS).eval()
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x), two(x))
    own = {name: value for name, value in one.state_dict().items() if ".lora_" in name}
    torch.manual_seed(0)
    three = gs.to_bayesian(make(), 0.5, include=ADAPTERS).eval()
    missing = three.load_state_dict(own, strict=False)
    assert not missing.unexpected_keys
    assert not [name for name in missing.missing_keys if ".lora_" in name]
    assert torch.equal(one(x), three(x)), "the adapters' part of the state is enough"
    dense = gs.to_deterministic(one)
    assert [type(m) for m in dense.modules()] == [type(m) for m in plain.modules()]
    torch.testing.assert_close(dense(x), one(x), rtol=1e-5, atol=1e-6)


def _find(net: nn.Module, ending: str) -> nn.Module:
    return next(m for name, m in net.named_modules() if name.split(".")[-1] == ending)
