"""Shared weights: one θ per forward, one KL, one place in every list."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.distributions import kl_divergence as exact_kl

import gossamer as gs
from cases.zoo import MODELS, OneParameter, TwoNames, ids, mlp
from gossamer.errors import InvalidValue
from gossamer.nn import require_weights, sparse_layers, weights_of

SHARED = [TwoNames, OneParameter]
every_shared = pytest.mark.parametrize("model", SHARED)


def uses(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The weight that each use of the shared layers applied in one forward, by least squares."""
    found = []

    def solve(layer, inputs, output):
        found.append(torch.linalg.lstsq(inputs[0], output - layer.bias).solution.T.detach())

    first = model.first
    shared = {id(m): m for m in sparse_layers(model).values() if m.leading() is first.leading()}
    handles = [layer.register_forward_hook(solve) for layer in shared.values()]
    model(x)
    for handle in handles:
        handle.remove()
    return found


def make(model, sparsity: float = 0.4) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    bnn = gs.to_bayesian(model().double(), sparsity, posterior_std=0.5)
    return bnn, torch.randn(20, 6, dtype=torch.float64)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal up to the least squares' rounding; different draws differ by about 0.5."""
    return bool((a - b).detach().abs().max() < 1e-9)


@every_shared
def test_all_uses_in_a_forward_see_one_theta(model):
    bnn, x = make(model)
    mean = gs.to_deterministic(bnn).first.weight
    one, two = uses(bnn.train(), x)
    assert same(one, two)
    assert not same(one, mean), "training draws"
    again, _ = uses(bnn, x)
    assert not same(one, again), "the next forward draws anew"
    for noise in ("weight", "local"):
        with gs.sampling(bnn.eval(), seed=1, noise=noise):
            one, two = uses(bnn, x)
        assert same(one, two), noise
        assert not same(one, mean), noise
    one, two = uses(bnn.eval(), x)
    assert same(one, mean)
    assert same(two, mean)


@every_shared
def test_a_shared_weight_is_one_weight(model):
    bnn, _ = make(model)
    groups = weights_of(bnn)
    assert len(groups) == 2
    assert groups[0].name == "first"
    assert groups[0].layer is bnn.first
    kept = {id(p): p.numel() for n, p in bnn.named_parameters() if "weight_mean" in n}
    assert sum(kept.values()) == sum(group.layer.nnz for group in groups)


@every_shared
def test_sharing_survives_the_way_back(model):
    bnn, x = make(model)
    back = gs.to_deterministic(bnn).eval()
    second = back.again if model is TwoNames else back.second
    assert second.weight is back.first.weight
    assert not back._forward_pre_hooks, "nothing of the package stays behind"
    torch.testing.assert_close(back(x), bnn.eval()(x), rtol=1e-12, atol=1e-12)  # same products


def test_nothing_stays_behind_where_the_shared_part_is_nested():
    whole = nn.Sequential(nn.Identity(), gs.to_bayesian(TwoNames()))
    back = gs.to_deterministic(whole)
    assert not any(m._forward_pre_hooks for m in back.modules())


@every_shared
def test_a_submodule_called_directly_still_draws(model):
    """After a forward of the whole, ``bnn.first(x)`` must not repeat one old draw for ever."""
    bnn, x = make(model)
    bnn.train()(x)
    assert not torch.equal(bnn.first(x), bnn.first(x))


@every_shared
@pytest.mark.parametrize("mode", ["eval", "mlp"])
def test_evaluation_leaves_the_generator_alone(model, mode):
    """Like Dropout: how often one evaluates must not change what is trained."""
    bnn, x = make(model if mode == "eval" else mlp)
    bnn.eval()
    before = torch.get_rng_state()
    bnn(x if mode == "eval" else x[:, :6])
    with gs.sampling(bnn, seed=1):
        bnn(x)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
def test_kl_is_the_sum_over_distinct_weights(case):
    """Against torch.distributions in float64, every distinct weight once."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(case.build().double(), 0.5, prior_std=0.3, posterior_std=(0.1, 0.05))
    total, seen = 0.0, set()
    for layer in sparse_layers(bnn).values():
        if id(layer.weight_mean) in seen:
            continue
        seen.add(id(layer.weight_mean))
        posterior = Normal(layer.weight_mean.detach(), layer.weight_std.detach())
        prior = Normal(*torch.tensor([0.0, 0.3], dtype=torch.float64))
        total += float(exact_kl(posterior, prior).sum())
    kl = gs.kl_divergence(bnn)
    assert kl.shape == ()
    assert float(kl.detach()) == pytest.approx(total, rel=1e-12)
    kl.backward()
    grads = [p.grad for n, p in bnn.named_parameters() if "weight_raw_std" in n]
    assert all(torch.isfinite(g).all() for g in grads)
    assert all((g != 0).any() for g in grads)


def test_kl_gradient_of_a_shared_weight_is_not_doubled():
    bnn, _ = make(OneParameter)
    gs.kl_divergence(bnn).backward()
    prior = bnn.first.prior.std
    expected = bnn.first.weight_mean.detach() / prior**2
    torch.testing.assert_close(bnn.first.weight_mean.grad, expected, rtol=1e-12, atol=0)


def test_a_model_without_bayesian_layers():
    assert float(gs.kl_divergence(nn.Linear(2, 2))) == 0.0
    assert float(gs.kl_divergence(gs.to_sparse(nn.Linear(2, 2)))) == 0.0
    with pytest.raises(InvalidValue, match="model = Linear: has no sparse layer; convert it first"):
        require_weights(nn.Linear(2, 2))
    assert require_weights(gs.to_sparse(mlp()))[0].name == "0"


def test_two_convolutions_of_one_weight_keep_their_own_geometry():
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine = nn.Conv1d(1, 2, 3, padding=1)
            self.coarse = nn.Conv1d(1, 2, 3, stride=2, dilation=2)
            self.coarse.weight = self.fine.weight

        def forward(self, x):
            return self.fine(x).mean(-1) + self.coarse(x).mean(-1)

    torch.manual_seed(0)
    net, x = Scales(), torch.randn(2, 1, 9)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-6, atol=1e-6)  # float32 rounding
    assert bnn.fine.weight_mean is bnn.coarse.weight_mean
    assert len(weights_of(bnn)) == 1


class Scale(gs.nn.StochasticModule):
    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.ones(3))

    def kl_divergence(self):
        return self.log_scale.square().sum()

    def forward(self, x):
        return x * self.log_scale.exp()


def test_a_kl_is_counted_once_or_refused():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), Scale())

        def kl_divergence(self):
            return self.inner[1].kl_divergence()

    with pytest.raises(InvalidValue, match=r"that of inner.1 is counted already; give the method"):
        gs.kl_divergence(Sum())

    class Own(Sum):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(2))

        def kl_divergence(self):
            return self.own.sum()

    assert gs.kl_divergence(Own()).item() == 2.0 + 3.0


def test_a_module_with_a_kl_alone_is_in_the_sampling_context():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(2))

        def kl_divergence(self):
            return self.own.sum()

    model = Bare()
    with gs.sampling(model, seed=1):
        assert model.sampling_state.noise == "weight"
    assert model.sampling_state is None


class Recurrent(nn.Module):
    """Calls one cell several times in a pass."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.cell(x))
        self.difference = self.cell(h) - self.cell(h)
        return self.head(self.cell(h))


@pytest.mark.parametrize("shared", [["cell"], "cell", "c*"])
@pytest.mark.parametrize("backend", ["native", "masked"])
def test_calls_of_a_named_module_see_one_draw_in_a_pass(shared, backend):
    """Unnamed, each call has local noise of its own, as the docs say."""
    torch.manual_seed(0)
    net, x = Recurrent(), torch.randn(5, 6)
    plain = gs.to_bayesian(net, 0.5, posterior_std=0.3, backend=backend).train()
    plain(x)
    assert plain.difference.abs().max() > 0.01
    bnn = gs.to_bayesian(net, 0.5, posterior_std=0.3, shared=shared, backend=backend).train()
    assert (bnn.cell.draws_weights, bnn.head.draws_weights) == (True, False)
    first, second = bnn(x), bnn(x)
    assert torch.equal(bnn.difference, torch.zeros(5, 6))
    assert not torch.equal(first, second), "another pass, another θ"
    assert "shared" in str(gs.summary(bnn))


def test_a_named_module_takes_part_in_the_first_swap():
    """Its gradients are summed from the start; others show themselves at a swap and sit it out."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(Recurrent(), 0.5, shared=["cell"]).train()
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    subspace = gs.Subspace(bnn, opt, total_steps=20, update_every=1, swap_fraction=0.5)
    bnn(torch.randn(8, 6)).square().mean().backward()
    opt.step()
    assert subspace.step().layers["cell"].added > 0


def test_a_shared_name_that_matches_nothing_is_an_error():
    with pytest.raises(InvalidValue, match="shared = 'sell': matches no module"):
        gs.to_bayesian(Recurrent(), shared=["sell"])
