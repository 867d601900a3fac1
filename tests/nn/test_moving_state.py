"""Optimiser state at a swap: refusals and warnings; that it follows is in the invariants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.core.sigma_init import mean_of_survivors
from gossamer.core.support import Support
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import move, register_state, weights_of


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


def test_unknown_state_raises_naming_the_way_and_nothing_has_moved():
    """Zero is right for a momentum and wrong for a copy of σ: nobody can know which it is."""
    model = model_with_one_weight_to_swap()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(InvalidValue, match=r"'roughness' of Unknown: is not known.*register_state"):
        swap(model, Unknown(model.parameters(), lr=0.0))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_move_by_hand_refuses_unknown_state_before_it_changes_anything():
    model = model_with_one_weight_to_swap()
    (weight,) = weights_of(model)
    opt = Unknown(model.parameters(), lr=0.0, momentum=0.9)
    model(torch.ones(1, 8)).sum().backward()
    opt.step()
    weight.values.grad.fill_(3.0)
    source = torch.tensor([0, 1, 2, -1])
    with pytest.raises(InvalidValue, match="roughness"):
        move(weight, model.support, source, optimizer=opt)
    assert weight.values.grad.tolist() == [3.0] * 4
    move(weight, model.support, torch.tensor([0, 1, 3, 2]), optimizer=opt)  # nothing fresh


@pytest.mark.parametrize(("kind", "fresh"), [("first", 0.0), ("second", 1.0), ("tracks", 0.0)])
def test_registered_state_is_known(kind, fresh):
    class Own(Unknown):
        """A class of its own, so that the registration ends with the test."""

    register_state("roughness", kind, Own)
    model = model_with_one_weight_to_swap()
    old = set(model.support.positions().tolist())
    opt = Own(model.parameters(), lr=0.01)
    info = swap(model, opt)
    assert info.layers[""].added > 0
    wanted = [1.0 if q in old else fresh for q in model.support.positions().tolist()]
    assert opt.state[model.weight_values]["roughness"].tolist() == wanted
    other = model_with_one_weight_to_swap()
    with pytest.raises(InvalidValue, match="roughness"):
        swap(other, Unknown(other.parameters(), lr=0.01))


def test_a_registration_must_be_sensible():
    with pytest.raises(UnknownName, match="kind of state = third"):
        register_state("roughness", "third")
    with pytest.raises(InvalidValue, match=r"'exp_avg' = tracks: is 'first'.*class of yours"):
        register_state("exp_avg", "tracks")
    register_state("exp_avg", "first")


def test_an_optimizer_may_name_its_fresh_state():
    class Naming(Unknown):
        def fresh_state(self, parameter, name):
            return 7.0 if name == "roughness" else None

    model = model_with_one_weight_to_swap()
    old = set(model.support.positions().tolist())
    opt = Naming(model.parameters(), lr=0.01, momentum=0.9)
    swap(model, opt)
    wanted = [1.0 if q in old else 7.0 for q in model.support.positions().tolist()]
    assert opt.state[model.weight_values]["roughness"].tolist() == wanted


class Grouped(torch.optim.SGD):
    """Keeps one flat vector over all parameters of a group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["hess"] = torch.ones(sum(p.numel() for p in group["params"]))
        return super().step(closure)


class Nested(torch.optim.SGD):
    """Keeps tensors in a dictionary of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["inner"] = {"exp_avg": torch.zeros_like(p)}
        return super().step(closure)


@pytest.mark.parametrize(("optimizer", "name"), [(Grouped, "hess"), (Nested, "inner")])
def test_state_out_of_reach_raises(optimizer, name):
    model = model_with_one_weight_to_swap()
    with pytest.raises(InvalidValue, match=f"state '{name}' of {optimizer.__name__}"):
        swap(model, optimizer(model.parameters(), lr=0.01))


# ----- state that is another copy of the parameter -----


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Schedule-free AdamW (Defazio et al., 2024, Algorithm 1) in training mode.

    The parameter is y = (1 - β₁) z + β₁ x; the state holds z.
    """

    def __init__(self, params, lr=5e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), exp_avg_sq=torch.zeros_like(p))
                v, z, average = state["exp_avg_sq"], state["z"], 1.0 / group["k"]
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                root = (v / (1 - beta2 ** group["k"])).sqrt_().add_(group["eps"])
                direction = p.grad / root
                p.lerp_(z, average).add_(direction, alpha=lr * (beta1 * (1 - average) - 1))
                z.sub_(direction, alpha=lr)


def spread_of_std(optimizer, *, swaps: bool) -> torch.Tensor:
    """Quantiles of σ over both layers after 200 steps of a regression."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    bnn = gs.to_bayesian(net, 0.7)
    opt = optimizer(gs.parameter_groups(bnn, lr=5e-3))
    elbo = gs.ELBO(bnn, num_data=256)
    subspace = gs.Subspace(bnn, opt, total_steps=200, update_every=10, swap_fraction=0.3)
    x = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    y = x[:, :4].sum(1, keepdim=True).sin()
    for _ in range(200):
        opt.zero_grad()
        elbo((bnn(x) - y).square().mean() * 8.0).backward()
        opt.step()
        if swaps:
            subspace.step()
    std = torch.cat([weight.layer.weight_std.detach() for weight in weights_of(bnn)])
    return torch.quantile(std, torch.tensor([0.1, 0.5, 0.9, 1.0]))


def test_std_is_that_of_a_run_without_swaps_where_state_tracks_the_parameter():
    """A fresh z of 0 pulled σ towards softplus(0) = 0.69: the largest was 20 times too large."""
    still, moved = (spread_of_std(ScheduleFreeAdamW, swaps=swaps) for swaps in (False, True))
    assert moved.tolist() == pytest.approx(still.tolist(), rel=0.1)


@pytest.mark.parametrize(
    ("optimizer", "name"), [(ScheduleFreeAdamW, "z"), (torch.optim.ASGD, "ax")]
)
def test_tracking_state_begins_with_the_fresh_parameter(optimizer, name):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.Linear(8, 4), 0.5)
    opt = optimizer(bnn.parameters(), lr=0.01)
    bnn(torch.ones(2, 8)).sum().backward()
    opt.step()
    (weight,) = weights_of(bnn)
    source = torch.arange(16)
    source[[3, 9]] = -1
    with torch.no_grad():
        fresh = bnn.fresh_values(source[source >= 0], mean_of_survivors)
    move(weight, bnn.support, source, optimizer=opt)
    for vector in ("weight_mean", "weight_raw_std"):
        parameter = getattr(bnn, vector)
        state = opt.state[parameter][name]
        assert torch.equal(state[[3, 9]], parameter.detach()[[3, 9]])
        assert state[3] == float(fresh[vector])


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
