"""Networks with sparse tables: swaps, all that a layer must keep, tables tied to heads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gossamer as gs
from cases.lookup import (
    COLUMNS,
    PADDING,
    ROWS,
    bayesian,
    every_engine,
    every_padding,
    module,
    some,
)
from cases.zoo import TiedHead
from gossamer.errors import InvalidValue
from gossamer.nn import (
    BayesianEmbedding,
    at_mean,
    sparse_layers,
    weights_of,
    with_spread,
)
from gossamer.ops import Growth
from gossamer.prediction import load, posterior_of


class Words(nn.Module):
    """Words with padding, their mean, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8, padding_idx=0)
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(self.embed(x).mean(1))))


def converted(seed: int = 0, convert=gs.to_bayesian, **options) -> nn.Module:
    torch.manual_seed(seed)
    return convert(Words(), 0.7, include=["*"], **options)


def sentences() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(40, (48, 6), generator=generator)
    return x, (x[:, 0] > 20).long() + (x[:, 1] > 20).long()


class TestTraining:
    @pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
    def test_swaps_keep_the_number_and_move_the_support(self, convert):
        net = converted(convert=convert).train()
        total = gs.summary(net).nnz
        optimizer = torch.optim.Adam(gs.parameter_groups(net, lr=1e-2))
        subspace = gs.Subspace(net, optimizer, total_steps=40, update_every=5)
        elbo = gs.ELBO(net, num_data=48, kl_weight=0.01)
        x, y = sentences()
        before, losses = net.embed.support.positions().clone(), []
        for _ in range(30):
            optimizer.zero_grad()
            loss = elbo(F.cross_entropy(net(x), y))
            loss.backward()
            optimizer.step()
            subspace.step()
            losses.append(float(loss.detach()))
            assert gs.summary(net).nnz == total
        assert not torch.equal(net.embed.support.positions(), before)
        assert bool((net.embed(torch.zeros(2, dtype=torch.int64)) == 0).all())
        assert sum(losses[-5:]) < sum(losses[:5])

    @every_padding
    def test_scores_are_those_of_the_dense_gradient(self, padding):
        layer, x = bayesian(padding).train(), some(padding)
        growth = Growth.empty(layer.support, 4, torch.device("cpu"), keep_dense=False)
        layer.growth = growth
        y = layer(x)
        upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).double()
        y.backward(upstream)
        dense = torch.zeros(ROWS, COLUMNS).double().requires_grad_()
        F.embedding(x, dense, padding_idx=padding).backward(upstream)
        size = dense.grad.abs()
        if padding is not None:
            size = torch.cat([size[:padding], size[padding + 1 :]])
        size, kept = size.flatten().float(), layer.support.positions()
        off = size.clone()
        off[kept] = -1.0
        torch.testing.assert_close(growth.scores, off.sort(descending=True).values[:4])
        torch.testing.assert_close(off[growth.positions], growth.scores)
        torch.testing.assert_close(growth.own, size[kept])

    def test_compiled_steps_are_the_same(self):
        layer = bayesian(PADDING).train()
        compiled = torch.compile(copy.deepcopy(layer), backend="eager", fullgraph=True)
        x = some(PADDING)
        torch.manual_seed(3)
        y = layer(x)
        torch.manual_seed(3)
        assert torch.equal(compiled(x), y)

    def test_half_precision_has_noise_in_float32(self):
        layer = gs.to_bayesian(nn.Embedding(9, 4), 0.5, include=["*"]).to(torch.bfloat16).train()
        y = layer(torch.arange(9))
        assert y.dtype == torch.bfloat16
        assert bool(torch.isfinite(y.float()).all())


class TestKeeping:
    def test_state_loads_bit_for_bit_into_another_support(self):
        one, two = converted(0), converted(7)
        assert not torch.equal(one.embed.indices, two.embed.indices)
        two.load_state_dict(one.state_dict())
        x, _ = sentences()
        assert torch.equal(one.eval()(x), two.eval()(x))
        for net in (one, two):
            net.train()
        torch.manual_seed(1)
        mine = one(x)
        torch.manual_seed(1)
        assert torch.equal(mine, two(x))

    def test_copies_and_dtypes(self):
        net = converted().eval()
        x, _ = sentences()
        assert torch.equal(copy.deepcopy(net)(x), net(x))
        torch.testing.assert_close(copy.deepcopy(net).double()(x).float(), net(x))

    @pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
    def test_a_file_keeps_it(self, convert, tmp_path):
        net = converted(convert=convert)
        with torch.no_grad():
            net.embed.padding_row.fill_(0.5)
        posterior = posterior_of(net, "categorical")
        posterior.save(tmp_path / "p.safetensors")
        again = load(tmp_path / "p.safetensors", network=Words())
        x, _ = sentences()
        for noise in ("weight", "local"):
            one, two = (each.predict(x, 3, noise=noise, seed=2) for each in (posterior, again))
            assert torch.equal(one.samples, two.samples)

    def test_predictions_follow_the_seed_and_one_table_per_sample(self):
        net = converted().eval()
        x, _ = sentences()
        found = gs.predict(net, x, num_samples=4, seed=3)
        assert torch.equal(found.samples, gs.predict(net, x, num_samples=4, seed=3).samples)
        assert not torch.equal(found.samples, gs.predict(net, x, num_samples=4, seed=4).samples)
        # One number per row: samples may share a pass, which must not change a bit of them.
        table = nn.Sequential(nn.Embedding(40, 3))
        torch.manual_seed(0)
        bnn = gs.to_bayesian(table, 0.5, include=["*"], posterior_std=0.5).eval()
        few, many = torch.arange(4), torch.arange(40)
        small = gs.predict(bnn, few, num_samples=16, seed=1).samples
        large = gs.predict(bnn, many, num_samples=16, seed=1).samples
        torch.testing.assert_close(small, large[:, :4])

    def test_a_posterior_in_an_optimiser(self):
        plain = gs.to_sparse(module(PADDING), 0.5, include=["*"])
        plain.padding_row.fill_(2.0)
        bnn = with_spread(plain, lambda values: torch.full_like(values, 0.1), 1.0)
        assert isinstance(bnn, BayesianEmbedding)
        x = some(PADDING)
        with at_mean(bnn):
            assert torch.equal(bnn(x), plain(x))


class TestTies:
    def tied(self, padding: int | None = None) -> nn.Module:
        torch.manual_seed(0)
        net = TiedHead().double()
        if padding is not None:
            net.embedding.padding_idx = padding
        return net

    def test_head_and_table_are_one_weight(self):
        bnn = gs.to_bayesian(self.tied(), 0.5, include=["*"])
        assert isinstance(bnn.embedding, BayesianEmbedding)
        assert bnn.embedding.weight_mean is bnn.head.weight_mean
        assert bnn.embedding.weight_raw_std is bnn.head.weight_raw_std
        (tied, body) = weights_of(bnn)
        assert len(tied.layers) == 2
        assert bnn.embedding.nnz + bnn.body.nnz == round(0.5 * (66 + 36))
        assert bnn.embedding.prior == bnn.head.prior
        assert bnn.head.prior_std == pytest.approx((6 * bnn.head.density) ** -0.5)
        wanted = bnn.head.kl_divergence() + body.layer.kl_divergence()
        torch.testing.assert_close(gs.kl_divergence(bnn), wanted)
        back = gs.to_deterministic(bnn)
        assert back.head.weight is back.embedding.weight

    @every_engine
    def test_one_pass_sees_one_theta(self, engine):
        bnn = gs.to_bayesian(self.tied(), 0.5, include=["*"], backend=engine).train()
        x = torch.arange(10).reshape(2, 5)
        seen = {}

        def note(name):
            return lambda layer, inputs, output: seen.update({name: (inputs[0], output)})

        bnn.embedding.register_forward_hook(note("table"))
        bnn.head.register_forward_hook(note("head"))
        bnn(x)
        # One θ explains both: h θᵀ with the θ that was looked up, for the words that were.
        rows = seen["table"][1].reshape(10, 6)
        hidden, logits = (each.reshape(10, -1) for each in seen["head"])
        torch.testing.assert_close(logits[:, :10], hidden @ rows.T, rtol=1e-9, atol=1e-9)

    @every_engine
    def test_scores_sum_both_uses(self, engine):
        bnn = gs.to_bayesian(self.tied(), 0.5, include=["*"], backend=engine).eval()
        growth = Growth.empty(bnn.head.support, 5, torch.device("cpu"), keep_dense=True)
        bnn.head.growth = bnn.embedding.growth = growth
        x = torch.arange(10).reshape(2, 5)
        bnn(x).square().sum().backward()
        plain = gs.to_deterministic(bnn)
        plain(x).square().sum().backward()
        size = plain.head.weight.grad.abs().flatten().float()
        kept = bnn.head.support.positions()
        torch.testing.assert_close(growth.own, size[kept], rtol=1e-5, atol=1e-6)
        off = size.clone()
        off[kept] = -1.0
        best = off.sort(descending=True).values[:5]
        torch.testing.assert_close(growth.scores, best, rtol=1e-5, atol=1e-6)

    def test_swaps_move_both(self):
        bnn = gs.to_bayesian(self.tied(), 0.5, include=["*"]).train()
        optimizer = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
        subspace = gs.Subspace(bnn, optimizer, total_steps=20, update_every=2)
        x, before = torch.arange(10).reshape(2, 5), bnn.head.support.positions().clone()
        for _ in range(6):
            optimizer.zero_grad()
            bnn(x).square().mean().backward()
            optimizer.step()
            subspace.step()
            assert torch.equal(bnn.head.indices, bnn.embedding.indices)
            bnn.eval()
            torch.testing.assert_close(bnn.embedding.weight, bnn.head.weight)
            bnn.train()
        assert not torch.equal(bnn.head.support.positions(), before)

    def test_all_or_none(self):
        for include in (["embedding", "body"], ["head", "body"]):
            bnn = gs.to_bayesian(self.tied(), 0.5, include=include)
            assert list(sparse_layers(bnn)) == ["body"]
            assert bnn.head.weight is bnn.embedding.weight

    def test_a_padding_row_that_the_head_uses_is_refused(self):
        with pytest.raises(InvalidValue, match=r"padding row has fewer weights .*; leave it out"):
            gs.to_bayesian(self.tied(2), 0.5, include=["*"])
        bnn = gs.to_bayesian(self.tied(2), 0.5)
        assert list(sparse_layers(bnn)) == ["body"]
        assert bnn.head.weight is bnn.embedding.weight

    def test_what_is_tied_to_a_table_that_stays_stays_too(self):
        net = self.tied()
        net.embedding.max_norm = 1.0
        bnn = gs.to_bayesian(net, 0.5, include=["body", "head"])
        assert list(sparse_layers(bnn)) == ["body"]

    def test_two_tables_of_one_parameter(self):
        class Two(nn.Module):
            def __init__(self, second: int | None) -> None:
                super().__init__()
                self.one = nn.Embedding(7, 3, padding_idx=1)
                self.two = nn.Embedding(7, 3, padding_idx=second)
                self.two.weight, self.head = self.one.weight, nn.Linear(3, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.one(x) - self.two(x)

        bnn = gs.to_bayesian(Two(1), 0.5, include=["one", "two"]).train()
        assert isinstance(bnn.two, BayesianEmbedding)
        assert bool((bnn(torch.arange(7)) == 0).all())
        with pytest.raises(InvalidValue, match="its weight is tied to a module of another kind"):
            gs.to_bayesian(Two(2), 0.5, include=["one", "two"])
