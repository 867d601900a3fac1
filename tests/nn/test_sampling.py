"""Sampling contexts: exception-safe, nested, fixed by their seed; and eval() is the mean."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS, MODEL, MODELS, convnet, ids, mlp
from gossamer.errors import UnknownName
from gossamer.nn import BayesianLayer, base, sparse_layers
from gossamer.nn.seeding import at_mean, holding_draws

every_model = pytest.mark.parametrize("case", MODELS, ids=ids(MODELS))
every_noise = pytest.mark.parametrize("noise", ["weight", "local"])


def states(model: nn.Module) -> list:
    return [layer.sampling_state for layer in sparse_layers(model).values()]


@every_model
@every_noise
@pytest.mark.parametrize("engine", BACKENDS)
def test_reproducible_by_seed(case, noise, engine):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(case.build(), 0.3, posterior_std=0.3, backend=engine).eval()
    x = case.input()
    outputs = []
    for seed in (1, 1, 2):
        torch.randn(3)  # what else is drawn does not matter
        with gs.sampling(bnn, seed=seed, noise=noise) as inside:
            assert inside is bnn
            outputs.append(inside(x).detach())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(bnn(x), bnn(x)), "outside, the means"
    assert not torch.equal(bnn(x), outputs[0])


@every_model
def test_eval_is_the_mean(case):
    torch.manual_seed(0)
    bnn = gs.to_bayesian(case.build(), 0.3, posterior_std=0.3).eval()
    plain = gs.to_deterministic(bnn).eval()
    # Same products; a fused attention kernel may round differently.
    torch.testing.assert_close(bnn(case.input()), plain(case.input()), rtol=1e-5, atol=1e-6)


def test_weight_noise_is_one_theta_for_all_calls_and_rows():
    bnn = gs.to_bayesian(mlp(), posterior_std=0.3).eval()
    x = torch.randn(1, 6).expand(5, 6)
    with gs.sampling(bnn, seed=3):
        one, two = bnn(x), bnn(x)
        weight = bnn[0].weight
        assert torch.equal(weight, bnn[0].weight)
    assert torch.equal(one, two)
    assert torch.equal(one, one[:1].expand_as(one)), "equal rows give equal outputs"


def test_draws_are_held_where_asked_and_nowhere_else(monkeypatch):
    bnn = gs.to_bayesian(nn.Linear(3, 2), posterior_std=0.3).eval()
    x, draws = torch.randn(4, 3), []
    original = base.draw
    monkeypatch.setattr(base, "draw", lambda *args: draws.append(1) or original(*args))
    with torch.no_grad(), gs.sampling(bnn, seed=1):
        fresh = bnn(x), bnn(x)
        assert len(draws) == 2
        with holding_draws(bnn):
            held = bnn(x), bnn(x)
            assert len(draws) == 3
            bnn.computed_weight().zero_()  # a reader of the weight has one of its own
            assert torch.equal(bnn(x), fresh[0])
        with pytest.raises(KeyError), holding_draws(bnn):
            raise KeyError
        assert (bnn.sampling_state.holds, bnn.sampling_state.drawn) == (False, None)
        bnn.weight_mean.add_(1.0)
        moved = bnn(x)
    assert all(torch.equal(y, fresh[0]) for y in (*fresh, *held))
    torch.testing.assert_close(moved - fresh[0], x.sum(1, keepdim=True).expand(4, 2))


def test_local_noise_is_fresh_per_call_and_row():
    bnn = gs.to_bayesian(mlp(), posterior_std=0.3).eval()
    x = torch.randn(1, 6).expand(5, 6)
    with gs.sampling(bnn, seed=3, noise="local"):
        one, two = bnn(x), bnn(x)
    assert not torch.equal(one, two)
    assert len({tuple(row.tolist()) for row in one}) == 5
    with gs.sampling(bnn, seed=3, noise="local"):
        assert torch.equal(one, bnn(x)), "the sequence of calls is reproducible"
        assert torch.equal(two, bnn(x))


def test_layers_draw_independently():
    """Two layers of one shape: their normals must differ, also across seeds."""
    bnn = gs.to_bayesian(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))).eval()
    seen = []
    for seed in (0, 1):
        with gs.sampling(bnn, seed=seed):
            seen += [(m.weight.flatten() - m.weight_mean) / m.weight_std for m in bnn]
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(seen) for b in seen[:i]), (
        "no two of the six draws coincide"
    )


def test_exceptions_restore_the_state():
    bnn = gs.to_bayesian(mlp()).eval()
    x = torch.randn(2, 6)
    mean = bnn(x)
    seen = []

    def fail() -> None:
        with gs.sampling(bnn, seed=1):
            seen.append(bnn(x))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not torch.equal(seen[0], mean)
    assert states(bnn) == [None] * 3
    assert torch.equal(bnn(x), mean)


@every_noise
def test_nesting(noise):
    bnn = gs.to_bayesian(mlp(), posterior_std=0.3).eval()
    x = torch.randn(2, 6)
    with gs.sampling(bnn, seed=1, noise=noise):
        alone = [bnn(x), bnn(x)]
    with gs.sampling(bnn, seed=2):
        other = bnn(x)
    with gs.sampling(bnn, seed=1, noise=noise):
        first = bnn(x)
        with gs.sampling(bnn, seed=2):
            assert torch.equal(bnn(x), other)
        second = bnn(x)
        with at_mean(bnn):
            mean = bnn(x)
    assert torch.equal(first, alone[0])
    assert torch.equal(second, alone[1]), "the inner context leaves no trace"
    assert torch.equal(mean, bnn(x))


def test_without_a_seed_torch_s_generator_decides():
    bnn, x = gs.to_bayesian(mlp(), posterior_std=0.3).eval(), torch.randn(2, 6)
    outputs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        with gs.sampling(bnn):
            outputs.append(bnn(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_mode_wins_over_nothing_but_the_context_wins_over_the_mode():
    bnn = gs.to_bayesian(convnet(), posterior_std=0.3)
    x = MODEL["convnet"].input()
    bnn.train()
    with gs.sampling(bnn, seed=1):
        assert bnn.training, "the context changes no mode"
        train = [bnn[0](x), bnn[0](x)]
    bnn.eval()
    with gs.sampling(bnn, seed=1):
        assert torch.equal(train[0], bnn[0](x))
        assert torch.equal(train[0], train[1])
    bnn.train()
    with at_mean(bnn):
        assert torch.equal(bnn[0](x), bnn[0](x))
    assert not torch.equal(bnn[0](x), bnn[0](x)), "training mode draws"


def test_batchnorm_is_untouched():
    bnn = gs.to_bayesian(convnet()).eval()
    before = {k: v.clone() for k, v in bnn[1].state_dict().items()}
    with gs.sampling(bnn, seed=1):
        bnn(MODEL["convnet"].input())
    assert all(torch.equal(before[k], v) for k, v in bnn[1].state_dict().items())


@pytest.mark.parametrize("noise", ["weights", "", None])
def test_unknown_noise(noise):
    bnn = gs.to_bayesian(mlp())
    with pytest.raises(UnknownName, match=r"noise = .*choose one of: local, weight"):
        gs.sampling(bnn, seed=0, noise=noise).__enter__()


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**70])
def test_any_integer_is_a_seed(seed):
    bnn = gs.to_bayesian(mlp()).eval()
    with gs.sampling(bnn, seed=seed):
        assert torch.isfinite(bnn(torch.ones(1, 6))).all()


def test_a_copy_made_inside_the_context_does_not_go_on_sampling():
    """Best-so-far copies are often made in an evaluation loop."""
    bnn = gs.to_bayesian(mlp()).eval()
    x = torch.ones(1, 6)
    with gs.sampling(bnn, seed=0):
        inside = copy.deepcopy(bnn)
    assert torch.equal(inside(x), bnn(x))


def test_a_deterministic_model_passes_through():
    net = gs.to_sparse(mlp(), 0.5).eval()
    x = torch.ones(1, 6)
    with gs.sampling(net, seed=0):
        assert torch.equal(net(x), net(x))
    assert not any(isinstance(m, BayesianLayer) for m in net.modules())
