"""Optimiser state at a swap: refusals and warnings; that it follows is in the invariants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.core.support import Support
from gossamer.errors import InvalidValue
from gossamer.nn import move, weights_of


def model_with_one_weight_to_swap() -> nn.Module:
    return gs.to_sparse(nn.Linear(8, 1, bias=False), 0.5)


class Odd(torch.optim.SGD):
    """An optimiser with a state tensor that is not elementwise."""

    shape_factor = (2,)

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["roughness"] = torch.ones(*p.shape, *self.shape_factor)
        return super().step(closure)


class Unknown(Odd):
    """An elementwise state that no table knows."""

    shape_factor = ()


def swap(model: nn.Module, opt: torch.optim.Optimizer, closure=None):
    subspace = gs.Subspace(model, opt, total_steps=100, update_every=1, swap_fraction=0.6)
    x = torch.arange(1.0, 9.0)[None]

    def loss():
        opt.zero_grad()
        value = model(x).square().sum()
        value.backward()
        return value

    if closure:
        opt.step(loss)
    else:
        loss()
        opt.step()
    return subspace.step()


def by_position(model: nn.Module) -> dict[int, float]:
    return dict(zip(model.support.positions().tolist(), model.weight_values.tolist(), strict=True))


def test_state_of_another_shape_raises_naming_the_optimizer():
    model = model_with_one_weight_to_swap()
    with pytest.raises(InvalidValue, match=r"state 'roughness' of Odd = \(4, 2\).*shape \(4,\)"):
        swap(model, Odd(model.parameters(), lr=0.01))


def test_a_refused_swap_leaves_the_model_as_it_was():
    """The error must come before anything has moved, or the model is half swapped."""
    model = gs.to_bayesian(nn.Linear(8, 2), 0.5)
    opt = Odd(model.parameters(), lr=0.0)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(InvalidValue, match="roughness"):
        swap(model, opt)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("bias", [True, False])
def test_lbfgs_raises(bias):
    """Its history is one flat vector over all parameters, also where there is only one."""
    model = gs.to_sparse(nn.Linear(8, 1, bias=bias), 0.5)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    with pytest.raises(InvalidValue, match="LBFGS"):
        swap(model, opt, closure=True)


def test_unknown_state_warns_and_starts_at_zero():
    model = model_with_one_weight_to_swap()
    old = set(model.support.positions().tolist())
    opt = Unknown(model.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match="state 'roughness' of Unknown is not known"):
        info = swap(model, opt)
    assert info.layers[""].added > 0
    now = model.support.positions().tolist()
    wanted = [1.0 if position in old else 0.0 for position in now]
    assert opt.state[model.weight_values]["roughness"].tolist() == wanted


def test_a_layer_with_one_weight_keeps_its_scalars():
    """nnz = 1: the vectors have one element like the step count, which must stay."""
    model = gs.to_sparse(nn.Linear(2, 1, bias=False), 0.5)
    (weight,) = weights_of(model)
    p = weight.values
    opt = torch.optim.Adam([p], lr=0.1)
    p.grad = torch.tensor([2.0])
    opt.step()
    other = 1 - int(model.indices[0])
    move(
        weight,
        Support.from_positions(torch.tensor([other]), (1, 2)),
        torch.tensor([-1]),
        optimizer=opt,
    )
    state = opt.state[p]
    assert float(state["step"]) == 1.0
    assert state["exp_avg"].tolist() == [0.0]
    # No weight stayed to average: the removed one's own size is the only scale there is.
    assert state["exp_avg_sq"].tolist() == pytest.approx([0.001 * 4.0])


def test_an_optimizer_that_has_not_stepped_has_nothing_to_follow():
    model = model_with_one_weight_to_swap()
    opt = torch.optim.Adam(model.parameters())
    subspace = gs.Subspace(model, opt, total_steps=100, update_every=1, swap_fraction=0.6)
    model(torch.ones(1, 8)).sum().backward()
    assert subspace.step() is not None
    assert len(opt.state) == 0


def test_fresh_weights_take_moderate_adam_steps():
    """Second moments at the mean of the kept ones: no step of a fresh weight exceeds 1.5 lr.

    With second moments of 0 the first steps would be up to (1-β₁)/√(1-β₂) = 3.2 lr and more.
    """
    torch.manual_seed(0)
    model = gs.to_sparse(nn.Linear(32, 1, bias=False), 0.5)
    lr = 1e-3
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    subspace = gs.Subspace(model, opt, total_steps=1000, update_every=20, swap_fraction=0.5)
    largest = 0.0
    fresh: list[int] = []
    for step in range(40):
        x = torch.randn(16, 32)
        opt.zero_grad()
        (model(x).squeeze(1) - x.sum(1)).square().mean().backward()
        before = by_position(model)
        opt.step()
        after = by_position(model)
        if fresh:
            largest = max(largest, *(abs(after[q] - before[q]) for q in fresh))
        if subspace.step() is not None and step < 30:
            fresh = sorted(set(model.support.positions().tolist()) - set(after))
    assert fresh
    assert 0.0 < largest < 1.5 * lr
