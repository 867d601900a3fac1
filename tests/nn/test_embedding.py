"""Sparse tables of rows: laws, gradients, padding, conversion. Networks: test_embedding_nets.

The truth is ``F.embedding`` of a dense table in float64, and autograd through it.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
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
from cases.zoo import BACKENDS
from gossamer.errors import InvalidValue
from gossamer.nn import (
    BayesianEmbedding,
    SparseEmbedding,
    drop_inputs,
    sparse_layers,
)
from gossamer.ops import draw_seed, fold_seed, normal_like
from gossamer.prediction.moments.propagate import propagate, record


def table(layer, values: Tensor, padding: int | None) -> Tensor:
    """The dense table, by hand: values at their positions, a zero row where the padding is."""
    rows = ROWS - (padding is not None)
    flat = torch.zeros(rows * COLUMNS, dtype=values.dtype)
    flat = flat.index_put((layer.support.positions(),), values).view(rows, COLUMNS)
    if padding is None:
        return flat
    return torch.cat([flat[:padding], flat.new_zeros(1, COLUMNS), flat[padding:]])


def check(layer, mine: Tensor, wanted: Tensor, stand_ins: list[Tensor]) -> None:
    """Outputs, and gradients to the layer's vectors, against those of what stood for them."""
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(mine.shape, generator=torch.Generator().manual_seed(3)).double()
    mine.backward(upstream)
    wanted.backward(upstream)
    for vector, truth in zip(layer.vectors, stand_ins, strict=True):
        expected = torch.zeros_like(truth) if truth.grad is None else truth.grad
        found = vector.parameter.grad
        found = torch.zeros_like(truth) if found is None else found
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def twins(layer: BayesianEmbedding) -> tuple[Tensor, Tensor]:
    mean = layer.weight_mean.detach().clone().requires_grad_()
    return mean, layer.weight_raw_std.detach().clone().requires_grad_()


class TestLaws:
    @every_engine
    @every_padding
    @pytest.mark.parametrize("sparsity", [0.0, 0.6])
    def test_local_noise_is_a_row_of_its_own_for_every_token(self, padding, engine, sparsity):
        layer, x = bayesian(padding, sparsity, backend=engine).train(), some(padding)
        torch.manual_seed(5)
        seed = draw_seed()
        torch.manual_seed(5)
        y = layer(x)
        mean, raw = twins(layer)
        std = F.embedding(x, table(layer, F.softplus(raw), padding))
        noise = normal_like(seed, y)
        check(layer, y, F.embedding(x, table(layer, mean, padding)) + std * noise, [mean, raw])

    @every_engine
    @every_padding
    def test_one_draw_serves_all_tokens(self, padding, engine):
        layer, x = bayesian(padding, backend=engine).eval(), some(padding)
        with gs.sampling(layer, seed=4):
            y = layer(x)
            assert torch.equal(layer.weight[x], y), "what a parent would read is the same draw"
        mean, raw = twins(layer)
        theta = mean + F.softplus(raw) * normal_like(torch.tensor(fold_seed(4, 0)), mean)
        check(layer, y, F.embedding(x, table(layer, theta, padding)), [mean, raw])

    @every_padding
    def test_the_means_in_evaluation(self, padding):
        layer, x = bayesian(padding).eval(), some(padding)
        mean, raw = twins(layer)
        check(layer, layer(x), F.embedding(x, table(layer, mean, padding)), [mean, raw])
        assert torch.equal(layer.weight, table(layer, layer.weight_mean, padding))

    def test_the_law_of_local_noise(self):
        """Moments of 40,000 tokens of one number: independent, of the mean and σ of its row."""
        layer = bayesian(PADDING).train()
        torch.manual_seed(8)
        x = torch.full((40_000,), 7)
        y = layer(x).detach()
        mean = table(layer, layer.weight_mean.detach(), PADDING)[7]
        std = table(layer, layer.weight_std.detach(), PADDING)[7]
        assert bool((std == 0).any())
        assert bool((std > 0).any())
        torch.testing.assert_close(y.mean(0), mean, rtol=0, atol=5 * float(std.max()) / 200)
        torch.testing.assert_close(y.std(0), std, rtol=0.02, atol=0)

    def test_the_kl_is_over_kept_weights(self):
        layer = bayesian(PADDING, prior_std=0.7)
        posterior = Normal(layer.weight_mean, layer.weight_std)
        wanted = kl_divergence(posterior, Normal(torch.zeros(()).double(), 0.7)).sum()
        torch.testing.assert_close(layer.kl_divergence(), wanted, rtol=1e-10, atol=0)
        assert layer.nnz == round(0.4 * (ROWS - 1) * COLUMNS)

    def test_an_output_is_a_weight_so_the_scaled_prior_is_standard(self):
        assert gs.to_bayesian(module(), 0.5, include=["*"]).prior_std == 1.0

    @every_padding
    def test_moments_are_those_of_the_row(self, padding):
        net = nn.Sequential(module(padding), nn.Flatten(), nn.Linear(4 * COLUMNS, 2).double())
        bnn = gs.to_bayesian(net, 0.5, include=["*"], posterior_std=0.3).eval()
        x = some(padding)
        with torch.no_grad():
            found = propagate(record(bnn), x)
        std, head = bnn[0].weight_std.detach(), bnn[2]
        spread = F.embedding(x, table(bnn[0], std.square(), padding)).flatten(1)
        square = head.weight.square()
        of_head = torch.zeros(head.layout.numel).double()
        of_head[head.support.positions()] = head.weight_std.detach().square()
        of_head = of_head.view(head.layout.shape)
        mean = bnn[0](x).flatten(1)
        wanted = spread @ square.T + (mean.square() + spread) @ of_head.T
        torch.testing.assert_close(found.mean, bnn(x).detach(), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.variance, wanted.detach(), rtol=1e-10, atol=1e-10)


class TestPadding:
    @pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
    def test_it_is_no_weight(self, convert):
        layer = convert(module(PADDING), 0.0, include=["*"])
        assert layer.nnz == (ROWS - 1) * COLUMNS
        assert layer.num_embeddings == ROWS
        assert layer.padding_idx == PADDING
        x = torch.full((2, 3), PADDING)
        y = layer.train()(x)
        assert bool((y == 0).all()), "no noise"
        y.sum().backward()
        for vector in layer.vectors:
            grad = vector.parameter.grad
            assert grad is None or bool((grad == 0).all())

    def test_a_row_that_is_not_zero_stays_as_it_is(self):
        plain = module(PADDING)
        with torch.no_grad():
            plain.weight[PADDING] = torch.arange(5.0).double()
        bnn = gs.to_bayesian(plain, 0.5, include=["*"])
        x = torch.tensor([PADDING, 0])
        assert torch.equal(bnn.train()(x)[0], torch.arange(5.0).double())
        with gs.sampling(bnn, seed=1):
            assert torch.equal(bnn(x)[0], torch.arange(5.0).double())
        assert torch.equal(bnn.weight[PADDING], torch.arange(5.0).double())
        back = gs.to_deterministic(bnn)
        assert torch.equal(back.weight[PADDING], torch.arange(5.0).double())
        assert back.padding_idx == PADDING
        other = gs.to_bayesian(module(PADDING), 0.5, include=["*"])
        other.load_state_dict(bnn.state_dict())
        assert torch.equal(other.eval()(x), bnn.eval()(x))

    @pytest.mark.parametrize("wrong", [-1, ROWS])
    @every_padding
    def test_a_number_without_a_row_raises(self, wrong, padding):
        with pytest.raises(IndexError, match="out of range"):
            bayesian(padding)(torch.tensor([[wrong]]))


class TestConversion:
    def words(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Embedding(50, 16, padding_idx=0), nn.Flatten(), nn.Linear(7 * 16, 3)
        )

    @pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
    def test_only_where_it_is_asked_for(self, convert):
        plain = convert(self.words(), 0.9)
        assert list(sparse_layers(plain)) == ["2"]
        (left,) = gs.summary(plain).unconverted
        assert left.reason == (
            "rows are looked up: a table is converted only where include= names it"
        )
        for include in (["*"], ["0", "2"], [nn.Embedding, nn.Linear]):
            both = convert(self.words(), 0.9, include=include)
            found = gs.summary(both)
            assert [row.name for row in found.rows] == ["0", "2"]
            assert found.nnz == round(0.1 * (49 * 16 + 7 * 16 * 3))
        assert list(sparse_layers(convert(self.words(), 0.9, include=["0"]))) == ["0"]
        excluded = convert(self.words(), include=["*"], exclude=[nn.Embedding])
        assert list(sparse_layers(excluded)) == ["2"]

    def test_shares_and_priors_by_name(self):
        bnn = gs.to_bayesian(
            self.words(),
            {"0": 0.95, "*": 0.5},
            include=["*"],
            prior_std={"0": 0.3, "*": "scaled"},
        )
        assert bnn[0].nnz == round(0.05 * 49 * 16)
        assert bnn[0].prior_std == 0.3

    def test_values_are_the_modules_own(self):
        plain = self.words()
        bnn = gs.to_bayesian(plain, 0.5, include=["0"], support="magnitude")
        mean = bnn[0].eval().weight
        size = plain[0].weight.detach()[1:].abs()
        threshold = size.flatten().sort(descending=True).values[bnn[0].nnz - 1]
        wanted = torch.where(plain[0].weight.abs() >= threshold, plain[0].weight, 0.0)
        assert torch.equal(mean, wanted)
        scaled = gs.to_bayesian(plain, 0.75, include=["0"])[0]
        at = scaled.support.positions()
        own = plain[0].weight.detach()[1:].flatten()[at]
        torch.testing.assert_close(scaled.weight_mean.detach(), own / 0.5)

    @pytest.mark.parametrize("engine", [*BACKENDS, "auto", "measure"])
    def test_the_backend_is_the_one_that_runs(self, engine):
        bnn = gs.to_bayesian(self.words(), 0.5, include=["*"], backend=engine)
        assert bnn[0].backend.name == "masked"
        x = torch.randint(50, (4, 7))
        bnn(x).sum().backward()
        bnn[0].use_backend("native")
        bnn.eval()
        assert torch.equal(bnn[0](x), bnn[0].weight[x])

    def test_the_way_back(self):
        plain = self.words()
        dense = gs.to_deterministic(gs.to_bayesian(plain, include=["*"]))
        assert [type(m) for m in dense.modules()] == [type(m) for m in plain.modules()]
        assert vars(dense[0]).keys() == vars(plain[0]).keys()
        assert list(dense[0]._parameters) == ["weight"]
        for name, value in plain.state_dict().items():
            assert torch.equal(dense.state_dict()[name], value)
        assert str(dense[0]) == str(plain[0])

    def test_a_subclass_comes_back_and_one_with_another_forward_stays(self):
        class Renamed(nn.Embedding):
            pass

        class Scaled(nn.Embedding):
            def forward(self, x):
                return 2 * super().forward(x)

        own = Renamed(6, 4)
        own.note = "kept"
        bnn = gs.to_bayesian(nn.Sequential(own, nn.Linear(4, 2)), include=["*"])
        assert isinstance(bnn[0], BayesianEmbedding)
        assert bnn[0].note == "kept"
        back = gs.to_deterministic(bnn)[0]
        assert type(back) is Renamed
        assert back.note == "kept"
        with pytest.raises(InvalidValue, match=r"layer 0 = Scaled: cannot be .* way of its own"):
            gs.to_bayesian(nn.Sequential(Scaled(6, 4), nn.Linear(4, 2)), include=["*"])

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"max_norm": 1.0}, "max_norm writes to the rows"),
            ({"scale_grad_by_freq": True}, "scale_grad_by_freq makes its gradient"),
            ({"sparse": True}, "with sparse=True its gradient holds no position"),
            ({"num_embeddings": 1, "padding_idx": 0}, "no row beside its padding row"),
        ],
    )
    def test_what_a_table_cannot_do_is_refused_by_name(self, options, reason):
        def net() -> nn.Module:
            given = {"num_embeddings": 6, "embedding_dim": 4, **options}
            return nn.Sequential(nn.Embedding(**given), nn.Linear(4, 2))

        with pytest.raises(InvalidValue, match=f"include: layer 0 = Embedding: .*{reason}.*; leav"):
            gs.to_bayesian(net(), include=["*"])
        left = gs.summary(gs.to_bayesian(net(), exclude=["0"])).unconverted
        assert reason in left[0].reason
        assert list(sparse_layers(gs.to_bayesian(net(), include=["*"], exclude=["0"]))) == ["1"]

    def test_variance_off_the_support(self):
        net = self.words()
        with pytest.raises(InvalidValue, match="absent_variance = all: has no form for the rows"):
            gs.to_bayesian(net, 0.5, include=["*"], absent_variance="all", inplace=True)
        assert not sparse_layers(net)
        bnn = gs.to_bayesian(net, {"0": 0.5, "2": 0.5}, include=["*"], absent_variance="linear")
        assert [bool(layer.factors) for layer in sparse_layers(bnn).values()] == [False, True]

    def test_costs(self):
        bnn = gs.to_bayesian(self.words(), 0.5, include=["*"])
        rows = gs.summary(bnn).rows
        assert rows[0].shape == (49, 16)
        # Means and raw std, four bytes each, an index of four, and the padding row.
        assert rows[0].bytes == bnn[0].nnz * 12 + 16 * 4
        only = gs.to_bayesian(nn.Embedding(9, 4), 0.5, include=["*"])
        assert gs.summary(only).flop_density is None

    def test_dropout_of_inputs_leaves_tables_out(self):
        net = gs.to_sparse(self.words(), include=["*"])
        assert drop_inputs(net, 0.1, "all") == ["2"]


def test_the_deterministic_twin():
    layer = gs.to_sparse(module(PADDING), 0.5, include=["*"])
    assert isinstance(layer, SparseEmbedding)
    x = some(PADDING)
    values = layer.weight_values.detach().clone().requires_grad_()
    wanted = F.embedding(x, table(layer, values, PADDING))
    check(layer, layer(x), wanted, [values])
