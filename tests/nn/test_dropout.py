"""Dropout before layers: its law, masks as draws of θ, shared weights, what is left out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from cases.zoo import BACKENDS, LAYERS, MODEL, MODELS, OneParameter, TwoNames, convnet, ids, mlp
from gossamer.errors import InvalidValue, UnknownName
from gossamer.nn import UnitDropout, at_mean, drop_inputs, dropout_of, sparse_layers, with_spread
from gossamer.nn.skeleton import describe, skeleton

RATE = 0.4
ALONE = ("bare-linear", "bare-conv", "tied-head")
SEVERAL = [m for m in MODELS if m.name not in ALONE]


def dropped(build, engine: str = "masked", layers="hidden") -> nn.Module:
    torch.manual_seed(0)
    net = gs.to_sparse(build(), backend=engine).eval()
    drop_inputs(net, RATE, layers)
    return net


def test_the_law_of_a_unit():
    """Bernoulli(1 - rate) over 1 - rate, independent units: moments within 5 standard errors."""
    n, drop = 200_000, UnitDropout(0.3)
    y = drop(torch.ones(n // 100, 100))
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    kept = (y > 0).double()
    assert abs(float(kept.mean()) - 0.7) < 5 * (0.3 * 0.7 / n) ** 0.5
    between = torch.corrcoef(kept.T)[~torch.eye(100, dtype=torch.bool)]
    assert float(between.abs().max()) < 5 / (n / 100) ** 0.5
    drop.eval()
    assert torch.equal(drop(y), y), "the mean of the masks"
    drop.train()
    with at_mean(drop):
        assert torch.equal(drop(y), y)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("case", LAYERS, ids=ids(LAYERS))
def test_a_mask_is_a_draw_of_the_weight(case, engine):
    """A sample is torch's own layer with the columns of the dropped units zero, for all rows."""
    torch.manual_seed(0)
    plain = case.build().double()
    layer = gs.to_sparse(plain, backend=engine).eval()
    drop_inputs(layer, RATE, "all")
    x = torch.randn(case.shape, dtype=torch.float64)
    axis = dropout_of(layer).axis
    units = [1] * x.dim()
    units[axis] = x.shape[axis]
    with gs.sampling(layer, seed=5):
        got = layer(x, **case.call)
        factor = dropout_of(layer)(torch.ones(units, dtype=torch.float64)).flatten()
    groups = getattr(plain, "groups", 1)
    with torch.no_grad():
        if isinstance(plain, nn.modules.conv._ConvTransposeNd):
            columns = factor.view(-1, *[1] * (plain.weight.dim() - 1))
        else:  # input channel c belongs to group c // (inputs / groups), and so to its outputs
            of_group = factor.view(groups, -1)
            rows = of_group.repeat_interleave(plain.weight.shape[0] // groups, dim=0)
            columns = rows.view(*rows.shape, *[1] * (plain.weight.dim() - 2))
        plain.weight.mul_(columns)
        torch.testing.assert_close(got, plain(x, **case.call), rtol=1e-10, atol=1e-10)


def test_local_noise_has_a_mask_per_row_and_channel():
    """Pixels of a channel leave together: each row sees a θ of its own."""
    drop, x = UnitDropout(0.5, axis=-3).train(), torch.ones(16, 32, 3, 4)
    y = drop(x)
    assert bool((y == y[:, :, :1, :1]).all())
    assert len({tuple(row.tolist()) for row in y[:, :, 0, 0]}) == 16
    tokens = UnitDropout(0.5).train()(torch.ones(16, 5, 32))
    assert bool((tokens == tokens[:, :1]).all()), "one mask for all positions of a row"
    drop.eval()
    with gs.sampling(drop, seed=1, noise="local"):
        one, two = drop(x), drop(x)
    with gs.sampling(drop, seed=1, noise="local"):
        again = drop(x)
    assert torch.equal(one, again)
    assert not torch.equal(one, two), "calls differ: one mask per use"


@pytest.mark.parametrize("build", [TwoNames, OneParameter])
def test_layers_that_share_a_weight(build):
    """Per use in training; under weight noise all uses see one θ."""
    net = dropped(build, layers="all")
    found = [dropout_of(layer) for layer in sparse_layers(net).values()]
    assert len(found) - len(set(map(id, found))) == (1 if build is OneParameter else 0)
    seen: list[Tensor] = []
    shared = net.first.input_dropout
    shared.register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    x = torch.rand(5, 6) + 0.5
    with gs.sampling(net, seed=1):
        net(x)
    assert torch.equal(*seen)
    seen.clear()
    net.train()(x)
    assert not torch.equal(*seen)


@pytest.mark.parametrize("engine", BACKENDS)
@pytest.mark.parametrize("case", SEVERAL, ids=ids(SEVERAL))
def test_networks(case, engine):
    """Samples by seed, the means in eval(), the skeleton of a file, and back to torch."""
    net, x = dropped(case.build, engine), case.input()
    plain = case.build().eval()
    torch.manual_seed(0)
    twin = gs.to_sparse(case.build(), backend=engine).eval()
    means = net(x)
    assert torch.equal(means, twin(x)), "tensors, names and means are those without dropout"
    assert net.state_dict().keys() == twin.state_dict().keys()

    again = skeleton(plain, describe(net))
    assert describe(again) | {"layers": 0} == describe(net) | {"layers": 0}
    rates = [about["dropout"] for about in describe(again)["layers"]]
    assert rates == [about["dropout"] for about in describe(net)["layers"]]
    assert RATE in rates
    assert None in rates

    drawn = {}
    for noise in ("weight", "local"):
        for seed in (1, 2):
            with torch.no_grad(), gs.sampling(net, seed=seed, noise=noise):
                drawn[noise, seed] = net(x)
            with torch.no_grad(), gs.sampling(copy.deepcopy(net), seed=seed, noise=noise) as other:
                assert torch.equal(other(x), drawn[noise, seed])
        assert not torch.equal(drawn[noise, 1], drawn[noise, 2])
    assert torch.equal(net(x), means)

    torch_net = gs.to_deterministic(net)
    assert not any(isinstance(m, UnitDropout) for m in torch_net.modules())
    torch.testing.assert_close(torch_net(x), means, rtol=1e-5, atol=1e-6)
    assert not any(m._forward_pre_hooks for m in torch_net.modules())
    assert dropout_of(list(sparse_layers(net).values())[-1]) is not None, "net is left alone"


def test_layers_whose_weight_is_read_are_left_out():
    net = dropped(MODEL["encoder-layer"].build, layers="all")
    assert all(dropout_of(layer) is not None for layer in sparse_layers(net).values())
    with pytest.raises(InvalidValue, match="leaves no layer"):
        dropped(lambda: nn.LSTM(3, 4), layers="all")


def test_dropout_of_the_network_itself_is_left_as_it_is():
    net = dropped(lambda: nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3)))
    x, own = torch.rand(4, 6), []
    net[1].register_forward_hook(lambda module, inputs, output: own.append((inputs[0], output)))
    with gs.sampling(net, seed=1):
        net(x)
    assert torch.equal(*own[0]), "off in eval(), sampling or not"


def test_a_spread_around_the_weights_keeps_the_dropout():
    """Both draw: the variance of a linear output is that of a product of two independents."""
    net = gs.to_sparse(nn.Linear(3, 1, bias=False).double()).eval()
    drop_inputs(net, RATE, "all")
    bnn = with_spread(net, lambda values: torch.full_like(values, 0.3), prior_std=1.0)
    x, n = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), 20_000
    drawn = []
    with torch.no_grad():
        for seed in range(n):
            with gs.sampling(bnn, seed=seed):
                drawn.append(float(bnn(x)))
        w = net.weight.flatten()
        square = (w**2 + 0.3**2) / (1 - RATE)  # E of (w b/(1-p))²
        variance = float(((square - w**2) * x[0] ** 2).sum())
    assert torch.tensor(drawn).var() == pytest.approx(variance, rel=0.05)


def test_moments():
    """One layer: exact against the closed form; two: against sampling; channels are refused."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2).double()
    bare = gs.to_sparse(net).eval()
    drop_inputs(bare, RATE, "all")
    x = torch.randn(5, 4, dtype=torch.float64)
    found = gs.predict_moments(bare, x, likelihood=gs.Gaussian(1.0))
    spread = RATE / (1 - RATE) * (x**2) @ (net.weight.detach() ** 2).T
    torch.testing.assert_close(found.mean, net(x).detach())
    torch.testing.assert_close(found.epistemic, spread.sqrt(), rtol=1e-3, atol=1e-3)

    deep = dropped(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)))
    x = torch.randn(5, 6)
    moments = gs.predict_moments(deep, x, likelihood=gs.Gaussian(1.0))
    sampled = gs.predict(deep, x, 4000, likelihood=gs.Gaussian(1.0))
    torch.testing.assert_close(moments.epistemic, sampled.epistemic, rtol=0.06, atol=1e-3)
    with pytest.raises(InvalidValue, match="use predict"):
        gs.predict_moments(dropped(convnet), torch.randn(2, 1, 6, 6))


def test_samples_in_one_pass_are_samples_in_turn():
    """A single row, where Gaussian layers would share passes."""
    net, x = dropped(mlp), torch.randn(1, 6)
    found = gs.predict(net, x, 20).samples
    for s in range(20):
        with gs.sampling(net, seed=gs.ops.fold_seed(0, s)), torch.no_grad():
            torch.testing.assert_close(net(x).softmax(-1), found[s])


def test_refusals():
    with pytest.raises(InvalidValue, match=r"rate = 1.0.*between 0 and 1"):
        UnitDropout(1.0)
    with pytest.raises(InvalidValue, match="axis"):
        UnitDropout(0.1, axis=1)
    with pytest.raises(InvalidValue, match="layers=all"):
        dropped(lambda: nn.Linear(3, 2))
    with pytest.raises(UnknownName):
        dropped(mlp, layers="some")
    net = dropped(mlp)
    with pytest.raises(InvalidValue, match="already"):
        drop_inputs(net, 0.2)
    with pytest.raises(InvalidValue, match="convert it first"):
        drop_inputs(mlp(), 0.2)
