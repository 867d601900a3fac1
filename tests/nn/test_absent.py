"""Variance of absent weights: against a dense Gaussian layer of the same means and variances."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gossamer as gs
from cases.zoo import BACKENDS, LAYERS, OneParameter, TwoNames, convnet, mlp
from gossamer.core.priors import EmpiricalGaussian, Gaussian
from gossamer.core.support import Support
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import at_mean, holding_draws, move, sampling_together, sparse_layers, weights_of
from gossamer.nn.skeleton import describe, skeleton

SPATIAL = [layer for layer in LAYERS if not layer.name.endswith("one-weight")]
zoo = pytest.mark.parametrize("case", SPATIAL, ids=lambda case: case.name)
FEW = {
    "linear",
    "linear-leading",
    "conv1d-unbatched",
    "conv2d-groups",
    "conv2d-reflect",
    "transposed2d-groups",
    "transposed2d-output-size",
}
few = pytest.mark.parametrize(
    "case", [layer for layer in LAYERS if layer.name in FEW], ids=lambda case: case.name
)


def converted(module: nn.Module, sparsity: float = 0.5, seed: int = 0, **options) -> nn.Module:
    """With factors that differ from each other, large enough to be seen."""
    torch.manual_seed(seed)
    options = {"absent_variance": "all", "posterior_std": 0.4, **options}
    bnn = gs.to_bayesian(module.double(), sparsity, **options)
    with torch.no_grad():
        for weight in weights_of(bnn):
            for factor in weight.layer.factors:
                factor.parameter.copy_(0.5 * torch.randn_like(factor.parameter) - 0.6)
    return bnn


def factors_by_loop(layer) -> Tensor:
    """a_i b_j at every position of the dense weight, one output and input after the other."""
    layout = layer.layout
    a, b = layer.absent_log_out.exp(), layer.absent_log_in.exp()
    rows = []
    for outer in range(layout.shape[0]):
        group = outer // (layout.shape[0] // layout.groups)
        row = []
        for inner in range(layout.shape[1]):
            other = group * layout.shape[1] + inner
            i, j = (other, outer) if layout.kind == "conv_transpose" else (outer, other)
            row.append((a[i] * b[j]).expand(layout.kernel))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def dense_posterior(layer) -> tuple[Tensor, Tensor, Tensor]:
    """Means, variances and which positions are kept, all in the shape of the dense weight."""
    where = layer.support.positions()
    mean = torch.zeros(layer.layout.numel).double().index_put((where,), layer.weight_mean)
    own = torch.zeros_like(mean).index_put((where,), layer.weight_std.square())
    kept = torch.zeros(mean.shape, dtype=torch.bool).index_fill(0, where, value=True)
    shape = layer.layout.shape
    return mean.view(shape), own.view(shape) + factors_by_loop(layer).square(), kept.view(shape)


def through(module: nn.Module, weight: Tensor, x: Tensor, call, bias: bool = True) -> Tensor:
    """The torch layer itself with another weight."""
    given = {"weight": weight}
    if module.bias is not None:
        given["bias"] = module.bias if bias else torch.zeros_like(module.bias)
    return torch.func.functional_call(module, given, (x,), call)


@zoo
def test_the_kl_is_that_of_a_dense_gaussian(case):
    """Value and gradients: torch.distributions on every position, absent ones under their prior."""
    layer = converted(case.build())
    own, off = layer.prior.std, layer.absent_prior_std
    if layer.layout.inputs_per_output > 2:
        assert own != off, "a test that could not tell the two priors apart"
    mean, variance, kept = dense_posterior(layer)
    prior = torch.full_like(mean, off).masked_fill(kept, own)
    posterior = torch.distributions.Normal(mean, variance.sqrt())
    wanted = torch.distributions.kl_divergence(
        posterior, torch.distributions.Normal(torch.zeros_like(mean), prior)
    ).sum()
    found = layer.kl_divergence()
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    parameters = [
        layer.weight_mean,
        layer.weight_raw_std,
        layer.absent_log_out,
        layer.absent_log_in,
    ]
    ours = torch.autograd.grad(found, parameters)
    theirs = torch.autograd.grad(wanted, parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
@pytest.mark.parametrize(
    "case", [case for case in SPATIAL if case.output_size is None], ids=lambda case: case.name
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_variance_of_the_outputs_is_that_of_a_dense_layer(case, backend):
    """``predict_moments`` has it in closed form: mean μx + b, variance V x², V of all positions."""
    module = case.build().double()
    layer = converted(module, backend=backend)
    x = torch.randn(case.shape, dtype=torch.float64)
    mean, variance, _ = dense_posterior(layer)
    own = layer.backend.moments(
        x, layer.weight_mean, layer.weight_variance, layer.pattern, layer.layout, layer.bias
    )
    found = own[1] + layer.absent_variance(x.square())
    wanted = through(module, variance, x.square(), case.call, bias=False)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    centre = through(module, mean, x, case.call)
    torch.testing.assert_close(own[0], centre, rtol=1e-10, atol=1e-10)


@few
def test_local_noise_has_this_variance_and_is_independent(case):
    """Standardised outputs of many passes: mean 0, variance 1, no correlation between elements."""
    layer = converted(case.build()).train()
    module = case.build().double()
    x = torch.randn(case.shape, dtype=torch.float64)
    mean, variance, _ = dense_posterior(layer)
    with torch.no_grad():
        centre = through(module, mean, x, case.call, bias=False)
        spread = through(module, variance, x.square(), case.call, bias=False)
        bias = 0.0
        if layer.bias is not None:
            bias = (
                layer.bias.view(-1, *(1,) * layer.layout.dims)
                if layer.layout.dims > 0
                else layer.bias
            )
        draws = torch.stack([layer(x, **case.call) - bias for _ in range(400)])
    alive = spread > 1e-12
    assert bool((draws - centre)[:, ~alive].abs().max() < 1e-9) if (~alive).any() else True
    scores = ((draws - centre) / spread.sqrt())[:, alive]
    # 4.5 standard errors over a few hundred elements
    assert float(scores.mean(0).abs().max()) < 4.5 / math.sqrt(400)
    assert float((scores.square().mean(0) - 1).abs().max()) < 4.5 * math.sqrt(2 / 400)
    count = scores.shape[1]
    if count > 1:
        correlation = scores.T @ scores / 400
        off = correlation - torch.diag(correlation.diagonal())
        assert float(off.square().sum()) / (count * (count - 1)) == pytest.approx(1 / 400, rel=0.5)


@pytest.mark.parametrize("build", [lambda: nn.Linear(5, 3), lambda: nn.Conv2d(2, 3, 2, groups=1)])
def test_a_draw_of_weights_is_shared_by_rows(build):
    """Cov(y_bi, y_ci) = Σ_j V_ij x_bj x_cj: one θ for all rows, over many seeds."""
    module, count = build(), 1500
    layer = converted(module, 0.6).eval()
    shape = (2, 5) if isinstance(module, nn.Linear) else (2, 2, 2, 2)
    x = torch.randn(shape, dtype=torch.float64)
    mean, variance, _ = dense_posterior(layer)
    flat_x = x.flatten(1)
    with torch.no_grad():
        centre = flat_x @ mean.flatten(1).T + layer.bias
        rows = x.repeat(count, *(1,) * (x.dim() - 1))
        with sampling_together(layer, seeds=range(count), rows=2 * count, noise="weight"):
            draws = layer(rows).flatten(1).view(count, 2, 3) - centre
        wanted = torch.einsum("bj,cj,ij->ibc", flat_x, flat_x, variance.flatten(1))
    found = torch.einsum("sbi,sci->ibc", draws, draws) / count
    size = torch.einsum("ibb->ib", wanted).sqrt()
    scale = size.unsqueeze(2) * size.unsqueeze(1)
    assert float(((found - wanted) / scale).abs().max()) < 4.5 * math.sqrt(2 / count)
    between = torch.einsum("si,sk->ik", draws[:, 0], draws[:, 0]) / count
    off = between / torch.outer(size[:, 0], size[:, 0]) - torch.eye(3)
    assert float((off - torch.diag(off.diagonal())).abs().max()) < 4.5 / math.sqrt(count)


@few
def test_gradients_of_noise(case):
    """Against differences, with the noise held fixed: local and one draw."""
    layer = converted(case.build())
    x = torch.randn(case.shape, dtype=torch.float64, requires_grad=True)
    names = ("absent_log_out", "absent_log_in", "weight_mean")

    def run(x, *values, noise):
        given = dict(zip(names, values, strict=True))
        with gs.sampling(layer, seed=3, noise=noise):
            return torch.func.functional_call(layer, given, (x,), case.call)

    values = [getattr(layer, name).detach().clone().requires_grad_() for name in names]
    for noise in ("local", "weight"):
        assert torch.autograd.gradcheck(
            lambda *all_, noise=noise: run(*all_, noise=noise), (x, *values), fast_mode=True
        )


def test_dead_inputs_have_no_noise_and_no_gradient():
    layer = converted(nn.Linear(4, 3)).train()
    x = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, layer.bias.expand(2, 3))
    y.sum().backward()
    for tensor in (x, layer.absent_log_out, layer.absent_log_in, layer.weight_raw_std):
        assert bool(torch.isfinite(tensor.grad).all())
    assert bool((layer.absent_log_in.grad == 0).all())


def test_samples_in_one_pass_are_those_in_turn():
    layer = converted(nn.Linear(6, 4)).eval()
    x, seeds = torch.randn(3, 6, dtype=torch.float64), [5, 8, 13]
    turns = []
    for seed in seeds:
        with gs.sampling(layer, seed=seed):
            turns.append(layer(x))
    with sampling_together(layer, seeds=seeds, rows=9, noise="weight"):
        together = layer(x.repeat(3, 1))
    torch.testing.assert_close(together, torch.cat(turns), rtol=1e-12, atol=1e-12)


def test_held_draws_and_the_dense_weight():
    """A context that holds draws, one that does not and ``layer.weight`` show one θ."""
    layer = converted(nn.Linear(6, 4)).eval()
    x = torch.randn(3, 6, dtype=torch.float64)
    with gs.sampling(layer, seed=5):
        plain, weight = layer(x), layer.weight
        with holding_draws(layer), torch.no_grad():
            held = [layer(x), layer(x)]
        assert layer.sampling_state.drawn_absent is None
    assert torch.equal(held[0], held[1])
    torch.testing.assert_close(held[0], plain, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(F.linear(x, weight, layer.bias), plain, rtol=1e-12, atol=1e-12)
    assert int((weight != 0).sum()) == 24, "a draw has a value at every position"
    assert int((layer.weight != 0).sum()) == layer.nnz, "the mean has not"


def test_the_means_know_nothing_of_it():
    layer, x = converted(nn.Linear(6, 4)), torch.randn(3, 6, dtype=torch.float64)
    before = torch.get_rng_state()
    with at_mean(layer.train()):
        found = layer(x)
    assert torch.equal(found, layer.eval()(x))
    assert torch.equal(torch.get_rng_state(), before)
    mean, _, _ = dense_posterior(layer)
    torch.testing.assert_close(found, F.linear(x, mean, layer.bias), rtol=1e-12, atol=1e-12)


def test_absent_noise_is_not_the_noise_of_the_kept():
    """Of one seed: correlated streams would give another variance than the sum."""
    layer = converted(nn.Linear(60, 60), 0.5).eval()
    with gs.sampling(layer, seed=1), torch.no_grad():
        both = layer.weight
    own = layer.absent_log_out
    layer.absent_log_out = None
    with gs.sampling(layer, seed=1), torch.no_grad():
        kept = layer.weight
    layer.absent_log_out = own
    where = layer.support.positions()
    one = ((kept.flatten()[where] - layer.weight_mean) / layer.weight_std).detach()
    rest = ((both - kept) / factors_by_loop(layer)).detach().flatten()
    for other in (rest[where], rest[: one.numel()]):
        assert abs(float((one * other).mean())) < 4.5 / math.sqrt(one.numel())
    assert float(rest.square().mean()) == pytest.approx(1, abs=4.5 * math.sqrt(2 / 3600))


def test_factors_stay_where_the_support_moves():
    layer = converted(nn.Linear(6, 4))
    (weight,) = weights_of(layer)
    before = [factor.parameter.detach().clone() for factor in layer.factors]
    kept = Support.from_positions(torch.tensor([1, 5, 7, 23]), (4, 6))
    move(weight, kept, torch.tensor([0, 1, -1, 2]))
    for factor, was in zip(layer.factors, before, strict=True):
        assert torch.equal(factor.parameter, was)
    mean, variance, is_kept = dense_posterior(layer)
    prior = torch.full_like(mean, layer.absent_prior_std).masked_fill(is_kept, layer.prior.std)
    t = variance / prior.square()
    wanted = 0.5 * (t - 1 - t.log() + (mean / prior).square()).sum()
    torch.testing.assert_close(layer.kl_divergence(), wanted, rtol=1e-12, atol=0)


def test_removal_sees_the_whole_uncertainty_of_a_kept_weight():
    layer = converted(nn.Linear(6, 4))
    _, variance, _ = dense_posterior(layer)
    wanted = variance.flatten()[layer.support.positions()].sqrt()
    torch.testing.assert_close(layer.marginal_std, wanted, rtol=1e-13, atol=0)
    plain = gs.to_bayesian(nn.Linear(3, 2))
    assert torch.equal(plain.marginal_std, plain.weight_std)


def test_with_an_empirical_prior():
    """The scale is that of the kept weights' whole variance; absent ones keep a fixed prior."""
    layer = converted(nn.Linear(12, 8), prior_std="empirical")
    assert isinstance(layer.prior, EmpiricalGaussian)
    assert layer.absent_prior_std == pytest.approx(1 / math.sqrt(12))
    mean, variance, kept = dense_posterior(layer)
    scale = (mean.square() + variance)[kept].mean().sqrt()
    assert layer.prior_std == pytest.approx(float(scale.detach()), rel=1e-12)
    t = variance[~kept] / layer.absent_prior_std**2
    wanted = 0.5 * (scale.square() / variance[kept]).log().sum() + 0.5 * (t - 1 - t.log()).sum()
    torch.testing.assert_close(layer.kl_divergence(), wanted, rtol=1e-12, atol=0)


def test_orthogonal_regression_reaches_the_exact_posterior():
    """XᵀX = nI: the posterior of every weight is known, and here of rank one off the support.

    An absent weight has the precision n/τ² + 1/p², a kept one n/τ² + 1/s².
    """
    layer = converted(nn.Linear(12, 8, bias=False), 0.7)
    n, tau, target = 9.0, 0.7, torch.randn(8, 12, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    where = layer.support.positions()

    def loss() -> Tensor:
        """The data's part by sums: Σ V over all positions is that of kept σ² and of (a_i b_j)²."""
        optimizer.zero_grad()
        miss = target.flatten().index_add(0, where, -layer.weight_mean)
        factors = (
            layer.absent_log_out.exp().square().sum(),
            layer.absent_log_in.exp().square().sum(),
        )
        spread = layer.weight_std.square().sum() + factors[0] * factors[1]
        total = 0.5 * n / tau**2 * (miss.square().sum() + spread) + layer.kl_divergence()
        total.backward()
        return total

    optimizer.step(loss)
    mean, variance, kept = (t.detach() for t in dense_posterior(layer))
    data = n / tau**2
    off, own = 1 / (data + layer.absent_prior_std**-2), 1 / (data + layer.prior.std**-2)
    assert own > off
    wanted = torch.full_like(variance, off).masked_fill(kept, own)
    torch.testing.assert_close(variance, wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean[kept], (own * data) * target[kept], rtol=1e-5, atol=1e-7)


def test_compiled_it_draws_the_same():
    torch.manual_seed(0)
    bnn = gs.to_bayesian(mlp(), 0.5, absent_variance="all").train()
    x, found = torch.randn(4, 6), []
    for run in (bnn, torch.compile(bnn, backend="aot_eager")):
        torch.manual_seed(3)
        y = run(x)
        (y.square().sum() + gs.kl_divergence(bnn)).backward()
        found.append((y.detach(), {n: p.grad.clone() for n, p in bnn.named_parameters()}))
        bnn.zero_grad()
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert any("absent" in name for name in found[0][1])


def test_which_layers_have_it():
    bnn = gs.to_bayesian(convnet(), 0.5, absent_variance="linear")
    found = {(layer.layout.kind, bool(layer.factors)) for layer in sparse_layers(bnn).values()}
    assert ("linear", True) in found
    assert ("conv", False) in found
    assert ("conv", True) not in found
    assert all(
        bool(layer.factors) == (layer.nnz < layer.layout.numel)
        for layer in sparse_layers(gs.to_bayesian(convnet(), 0.5, absent_variance="all")).values()
    )
    assert not any(layer.factors for layer in sparse_layers(gs.to_bayesian(mlp(), 0.5)).values())


def test_where_it_starts():
    """A share of the scaled prior of all inputs, which is narrower than that of the kept ones."""
    layer = gs.to_bayesian(nn.Linear(50, 20), 0.8, absent_variance="all", posterior_share=0.2)
    assert layer.absent_prior_std == pytest.approx(1 / math.sqrt(50))
    std = layer.absent().dense_std().detach()
    assert (std * math.sqrt(50) / 0.2 - 1).abs().max() < 1e-5
    assert std.shape == (20, 50)
    fixed = gs.to_bayesian(nn.Linear(50, 20), 0.8, absent_variance="all", prior_std=0.3)
    assert fixed.absent_prior_std == 0.3


def test_groups_of_the_optimiser():
    bnn = gs.to_bayesian(mlp(), 0.5, absent_variance="all")
    groups = {g["name"]: g for g in gs.parameter_groups(bnn, lr=1e-3, std_lr=0.1, weight_decay=1)}
    std = {id(p) for p in groups["std"]["params"]}
    factors = [f.parameter for layer in sparse_layers(bnn).values() for f in layer.factors]
    assert factors
    assert all(id(p) in std for p in factors)
    assert groups["std"]["weight_decay"] == 0.0


@pytest.mark.parametrize("build", [TwoNames, OneParameter])
def test_a_shared_weight_has_one_draw_in_a_pass(build):
    """All uses see one θ at all positions, in training and in sampling."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(build(), 0.5, absent_variance="all", posterior_std=0.3)
    (weight,) = (w for w in weights_of(bnn) if w.layer.draws_weights)
    assert weight.layer.factors
    assert len({id(layer.absent_log_in) for layer in weight.layers}) == 1
    seen = []
    for layer in set(weight.layers):
        layer.register_forward_hook(
            lambda module, inputs, output: seen.append((module, inputs, output))
        )
    bnn.train()(torch.randn(9, 6))
    assert len(seen) > 1
    found = []
    for layer, (x,), y in seen:
        bias = 0.0 if layer.bias is None else layer.bias.detach()
        found.append(torch.linalg.lstsq(x.detach(), y.detach() - bias).solution)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-2, atol=1e-3)
    assert int((found[0].abs() > 1e-6).sum()) > weight.layer.nnz


def test_copies_files_and_replicas():
    net = mlp()
    bnn = gs.to_bayesian(net, 0.5, absent_variance="all").eval()
    x = torch.randn(4, 6)
    again = copy.deepcopy(bnn)
    other = gs.to_bayesian(net, 0.5, absent_variance="all").eval()
    other.load_state_dict(bnn.state_dict())
    made = skeleton(net, describe(bnn))
    names = {name for name, _ in made.named_parameters()}
    assert names == {name for name, _ in bnn.named_parameters()}
    for ours, theirs in zip(*(sparse_layers(m).values() for m in (made, bnn)), strict=True):
        assert ours.absent_prior_std == theirs.absent_prior_std
    with gs.sampling(bnn, seed=2):
        wanted = bnn(x)
    for copied in (again, other):
        with gs.sampling(copied, seed=2):
            assert torch.equal(copied(x), wanted)
    plain = gs.to_bayesian(net, 0.5)
    with pytest.raises(RuntimeError, match="absent_log_out"):
        plain.load_state_dict(bnn.state_dict())


def test_half_precision_keeps_its_type():
    bnn = gs.to_bayesian(nn.Linear(8, 6).bfloat16(), 0.5, absent_variance="all").train()
    assert bnn(torch.randn(3, 8).bfloat16()).dtype == torch.bfloat16
    assert bnn.absent_log_out.dtype == torch.float32
    with gs.sampling(bnn.eval(), seed=0):
        assert bnn(torch.randn(3, 8).bfloat16()).dtype == torch.bfloat16
    plain = gs.to_bayesian(nn.Linear(8, 6), 0.5, absent_variance="all").train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bool(torch.isfinite(plain(torch.randn(3, 8))).all())


def test_summary_and_the_way_back():
    bnn = gs.to_bayesian(mlp(), 0.5, absent_variance="all")
    shown = gs.summary(bnn)
    plain = gs.summary(gs.to_bayesian(mlp(), 0.5))
    layer = next(iter(sparse_layers(bnn).values()))
    assert "a draw of θ is dense" in str(shown)
    factors = 4 * (layer.layout.fan_out + layer.layout.channels)
    assert shown.rows[0].bytes - plain.rows[0].bytes == factors
    assert not [name for name in gs.to_deterministic(bnn).state_dict() if "absent" in name]


def test_the_statistics_meet_enough_kinds():
    assert {layer.name for layer in LAYERS} >= FEW


def test_refusals():
    with pytest.raises(UnknownName, match="absent_variance = rank1"):
        gs.to_bayesian(mlp(), 0.5, absent_variance="rank1")
    with pytest.raises(InvalidValue, match="absent_variance = all: found no layer with absent"):
        gs.to_bayesian(mlp(), 0.0, absent_variance="all")
    layer = gs.to_bayesian(nn.Linear(3, 2), 0.5)
    with pytest.raises(InvalidValue, match=r"std of absent weights = 0.0: must be finite and > 0"):
        layer.spread_absent(0.0, 1.0)
    assert layer.prior == Gaussian(layer.prior.std)
