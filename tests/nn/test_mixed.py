"""A Bayesian head or last block beside a sparse deterministic body: one network, two calls."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.nn import BayesianLinear, SparseLinear, sparse_layers
from gossamer.nn.hooks import begin_shared_draws
from gossamer.prediction import load, posterior_of


class Network(nn.Module):
    """A body of two layers with normalisation, a block and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()
        )
        self.block = nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.block(self.body(x))))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def mixed(net: nn.Module) -> nn.Module:
    sparse = gs.to_sparse(net, 0.9, exclude=["block", "head"])
    return gs.to_bayesian(sparse, {"block": 0.8, "head": 0.0}, include=["block", "head"])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 12, generator=generator)
    return x, x[:, :3].argmax(1)


BODY = round(0.1 * (12 * 24 + 24 * 24))
BLOCK = round(0.2 * 24 * 24)


def test_each_part_has_its_kind_and_its_exact_budget(net):
    bnn = mixed(net)
    kinds = {name: type(layer) for name, layer in sparse_layers(bnn).items()}
    assert kinds == {
        "body.0": SparseLinear,
        "body.3": SparseLinear,
        "block": BayesianLinear,
        "head": BayesianLinear,
    }
    found = gs.summary(bnn)
    assert found.nnz == BODY + BLOCK + 72
    assert found.numel == 12 * 24 + 24 * 24 + 24 * 24 + 72
    assert not found.unconverted
    assert sum(row.nnz for row in found.rows if row.name.startswith("body")) == BODY
    products = {row.name: row.kind.startswith("Bayesian") for row in found.rows}
    assert products == {"body.0": False, "body.3": False, "block": True, "head": True}


def test_the_order_of_the_two_calls_does_not_matter(net):
    head_first = gs.to_bayesian(net, 0.0, include=["head"])
    both = gs.to_sparse(head_first, 0.9, include=["body.*"])
    kinds = {name: type(layer).__name__ for name, layer in sparse_layers(both).items()}
    assert kinds == {"body.0": "SparseLinear", "body.3": "SparseLinear", "head": "BayesianLinear"}
    assert isinstance(both.block, nn.Linear)
    assert isinstance(head_first.body[0], nn.Linear), "a conversion works on a copy"
    assert torch.equal(both.head.weight_mean, net.head.weight.flatten())


def test_the_kl_is_that_of_the_bayesian_part(net):
    bnn = mixed(net)
    wanted = bnn.block.kl_divergence() + bnn.head.kl_divergence()
    torch.testing.assert_close(gs.kl_divergence(bnn), wanted, rtol=1e-6, atol=0)
    x, y = batch()
    elbo = gs.ELBO(bnn, num_data=640)
    nll = F.cross_entropy(bnn(x), y)
    torch.testing.assert_close(elbo(nll), nll + wanted / 640, rtol=1e-6, atol=0)


def test_parameter_groups(net):
    groups = {g["name"]: g for g in gs.parameter_groups(mixed(net), lr=0.1, weight_decay=0.01)}
    sizes = {name: sum(p.numel() for p in g["params"]) for name, g in groups.items()}
    assert sizes["weights"] == BODY + BLOCK + 72
    assert sizes["std"] == BLOCK + 72
    assert groups["std"]["weight_decay"] == 0.0


def test_swaps_keep_every_budget_and_each_layer_has_its_own_criterion(net):
    bnn = mixed(net)
    optimizer = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    subspace = gs.Subspace(bnn, optimizer, total_steps=40, update_every=4, swap_fraction=0.3)
    elbo = gs.ELBO(bnn, num_data=64, kl_weight=0.01)
    x, y = batch()
    left: dict[str, int] = {}
    for _ in range(20):
        optimizer.zero_grad()
        elbo(F.cross_entropy(bnn(x), y)).backward()
        optimizer.step()
        before = {n: _values(layer) for n, layer in sparse_layers(bnn).items()}
        info = subspace.step()
        assert gs.summary(bnn).nnz == BODY + BLOCK + 72
        for name in () if info is None else info.layers:
            gone = _gone(before[name], bnn.get_submodule(name))
            left[name] = left.get(name, 0) + gone.numel()
            # |mean| alone, or |mean|/std: what left is no better than anything that stayed and
            # could have left, that is the lowest share of the criterion of that layer.
            score = _score(*before[name][1:])
            lowest = score.sort().values[int(0.3 * score.numel())]
            assert bool((score[gone] <= lowest).all()), name
    assert set(left) == {"body.0", "body.3", "block"}
    assert min(left.values()) > 0


def _values(layer) -> tuple:
    std = layer.weight_std
    positions = layer.support.positions().clone()
    return positions, layer.leading().detach().clone(), None if std is None else std.detach()


def _gone(before: tuple, layer) -> torch.Tensor:
    return (~torch.isin(before[0], layer.support.positions())).nonzero().flatten()


def _score(mean: torch.Tensor, std: torch.Tensor | None) -> torch.Tensor:
    if std is None:
        return mean.abs()
    return mean.abs() / std


def test_a_criterion_that_a_layer_cannot_have_is_refused(net):
    bnn = mixed(net)
    optimizer = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    with pytest.raises(InvalidValue, match=r"removal = snr_abs: needs .* layer body\.0 has not"):
        gs.Subspace(bnn, optimizer, total_steps=40, removal="snr_abs")
    assert gs.Subspace(bnn, optimizer, total_steps=40, removal="mean_abs").removal == "mean_abs"


def test_predictions_differ_by_the_head_alone(net):
    bnn = mixed(net).eval()
    x, _ = batch()
    found = gs.predict(bnn, x, num_samples=3, seed=5)
    assert found.samples.shape == (3, 64, 3)
    assert bool((found.samples.std(0) > 0).any())
    features = F.relu(bnn.body(x))
    for s in range(3):
        with gs.sampling(bnn, seed=7 + s):
            hidden = F.relu(F.linear(features, bnn.block.weight, bnn.block.bias))
            wanted = F.linear(hidden, bnn.head.weight, bnn.head.bias)
            assert torch.equal(bnn.body(x), features)
            torch.testing.assert_close(bnn(x), wanted, rtol=1e-5, atol=1e-5)


def test_the_way_back_and_the_state(net):
    bnn = mixed(net)
    x, _ = batch()
    other = mixed(copy.deepcopy(net))
    assert not torch.equal(other.block.indices, bnn.block.indices)
    other.load_state_dict(bnn.state_dict())
    assert torch.equal(bnn.eval()(x), other.eval()(x))
    dense = gs.to_deterministic(bnn)
    assert [type(m) for m in dense.modules()] == [type(m) for m in net.modules()]
    torch.testing.assert_close(dense(x), bnn(x), rtol=1e-5, atol=1e-5)


def test_a_file_holds_both_kinds(net, tmp_path):
    posterior = posterior_of(mixed(net), "categorical")
    posterior.save(tmp_path / "p.safetensors")
    again = load(tmp_path / "p.safetensors", network=Network())
    x, _ = batch()
    for noise in ("weight", "local"):
        one, two = (each.predict(x, 3, noise=noise, seed=2) for each in (posterior, again))
        assert torch.equal(one.samples, two.samples)


def test_what_is_asked_for_twice_is_refused(net):
    sparse = gs.to_sparse(net, 0.9, exclude=["head"])
    with pytest.raises(InvalidValue, match=r"model = body\.0: is sparse already; .*include="):
        gs.to_bayesian(sparse)
    with pytest.raises(InvalidValue, match=r"include = body\.0: is sparse already"):
        gs.to_bayesian(sparse, include=["*"])
    assert isinstance(gs.to_bayesian(sparse, include=["*"], exclude=["b*"]).head, BayesianLinear)
    assert isinstance(gs.to_bayesian(sparse, include=[nn.Linear]).head, BayesianLinear)
    with pytest.raises(InvalidValue, match="has no layer to convert"):
        gs.to_bayesian(sparse, include=["*"], exclude=["b*", "head"])


def test_shared_weights_of_both_calls_have_one_draw_per_pass():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4)
            self.again, self.last = self.first, self.head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.first(x) - self.again(x), self.head(x) - self.last(x)])

    torch.manual_seed(0)
    once = gs.to_bayesian(Twice(), 0.5, include=["first", "again"])
    both = gs.to_bayesian(once, 0.5, include=["head", "last"])
    assert list(both._forward_pre_hooks.values()).count(begin_shared_draws) == 1
    assert bool((both.train()(torch.randn(3, 4)) == 0).all())
