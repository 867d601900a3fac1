"""The ELBO against torch.distributions, its schedule, and what it watches over."""

from __future__ import annotations

import gc
import math
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite
from gossamer.inference.objective import require_finite
from gossamer.nn import BayesianLayer


def network() -> nn.Module:
    conv = nn.Conv1d(1, 3, 3)
    net = nn.Sequential(conv, nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    return gs.to_bayesian(net, 0.4, posterior_std=(0.1, 0.05))


def kl_by_hand(model: nn.Module) -> float:
    """Σ KL over the kept weights of all distinct layers, in float64."""
    total = 0.0
    for layer in {id(m): m for m in model.modules() if isinstance(m, BayesianLayer)}.values():
        q = Normal(layer.weight_mean.detach().double(), layer.weight_std.detach().double())
        p = Normal(torch.tensor(0.0).double(), torch.tensor(layer.prior.std).double())
        total += float(kl_divergence(q, p).sum())
    return total


def test_value_and_parts_against_torch_distributions():
    model = network().train()
    nll = torch.tensor([0.5, 1.5, 4.0])
    elbo = gs.ELBO(model, num_data=50, kl_weight=0.3, temperature=0.2)
    loss = elbo(nll)
    kl = kl_by_hand(model)
    # float32 sum of 42 terms: 1e-5 relative is a hundred roundings.
    assert loss.item() == pytest.approx(2.0 + 0.3 * 0.2 * kl / 50, rel=1e-5)
    parts = elbo.parts
    assert float(parts.nll) == pytest.approx(2.0, rel=1e-6)
    assert float(parts.kl) == pytest.approx(kl, rel=1e-5)
    assert parts.kl_weight == 0.3
    assert float(parts.scaled_kl) == pytest.approx(0.3 * 0.2 * kl / 50, rel=1e-5)
    assert torch.equal(parts.loss, loss.detach())
    assert not any(getattr(parts, n).requires_grad for n in ("nll", "kl", "scaled_kl", "loss"))
    assert gs.kl_divergence(model).item() == pytest.approx(kl, rel=1e-5)


def test_mean_and_per_example_are_the_same_loss():
    model = network().train()
    x, y = torch.randn(6, 1, 6), torch.randint(2, (6,))
    elbo = gs.ELBO(model, num_data=10)
    with gs.sampling(model, seed=0):
        each = elbo(F.cross_entropy(model(x), y, reduction="none"))
        mean = elbo(F.cross_entropy(model(x), y))
    assert each.shape == mean.shape == ()
    assert each.item() == pytest.approx(mean.item(), rel=1e-6)


def test_gradient_is_that_of_the_formula():
    """d loss / d mean of a kept weight: nll part + β T mean / (N prior²); float64 differences."""
    torch.manual_seed(0)
    model = gs.to_bayesian(nn.Linear(3, 1).double(), 0.3, prior_std=0.7, posterior_std=0.2)
    x, y = torch.randn(4, 3).double(), torch.randn(4, 1).double()
    elbo = gs.ELBO(model, num_data=7, kl_weight=0.5, temperature=0.4)

    def loss_at(mean: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
        new = {"weight_mean": mean, "weight_raw_std": raw}
        with gs.sampling(model, seed=3):
            output = torch.func.functional_call(model, new, (x,))
        std = F.softplus(raw)
        kl = kl_divergence(Normal(mean, std), Normal(0.0 * mean, 0.7 + 0.0 * mean)).sum()
        return (output - y).square().mean() + 0.5 * 0.4 * kl / 7

    mean, raw = model.weight_mean.detach().clone(), model.weight_raw_std.detach().clone()
    wanted = torch.func.grad(loss_at, (0, 1))(mean, raw)
    with gs.sampling(model, seed=3):
        elbo((model(x) - y).square().mean()).backward()
    # Both exact up to rounding of float64.
    torch.testing.assert_close(model.weight_mean.grad, wanted[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.weight_raw_std.grad, wanted[1], rtol=1e-10, atol=1e-12)


def test_the_schedule_advances_once_per_training_call():
    model = network().train()
    elbo = gs.ELBO(model, num_data=10, kl_weight=gs.linear_warmup(4))
    weights = []
    for _ in range(6):
        weights.append(elbo.kl_weight)
        elbo(torch.tensor(1.0))
        assert elbo.parts.kl_weight == weights[-1]
    assert weights == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


def test_the_schedule_stands_still_in_evaluation():
    model = network()
    elbo = gs.ELBO(model, num_data=10, kl_weight=gs.linear_warmup(4))
    model.train()
    elbo(torch.tensor(1.0))
    model.eval()
    for _ in range(3):
        elbo(torch.tensor(1.0))
        assert elbo.kl_weight == 0.25
    model.train()
    elbo(torch.tensor(1.0))
    assert elbo.kl_weight == 0.5


def test_accumulation_advances_once_per_step():
    elbo = gs.ELBO(network().train(), 10, gs.linear_warmup(3), accumulate=2)
    weights = []
    for _ in range(8):
        elbo(torch.tensor(1.0))
        weights.append(elbo.parts.kl_weight)
    assert weights == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1, 1], abs=1e-15)


def test_saved_and_loaded():
    elbo = gs.ELBO(network().train(), 10, gs.linear_warmup(8))
    for _ in range(3):
        elbo(torch.tensor(1.0))
    other = gs.ELBO(network().train(), 10, gs.linear_warmup(8))
    other.load_state_dict(elbo.state_dict())
    assert other.kl_weight == elbo.kl_weight == 3 / 8


def test_shared_layers_count_once():
    shared = nn.Linear(4, 4)
    one_parameter = nn.Linear(4, 4)
    one_parameter.weight = shared.weight
    model = gs.to_bayesian(nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), one_parameter), 0.5)
    alone = gs.to_bayesian(nn.Sequential(shared), 0.5)
    assert model[0].nnz == alone[0].nnz
    layer = model[0]
    q = Normal(layer.weight_mean.detach().double(), layer.weight_std.detach().double())
    wanted = float(kl_divergence(q, Normal(0.0, float(layer.prior.std))).sum())
    assert gs.ELBO(model, 1)(torch.tensor(0.0)).item() == pytest.approx(wanted, rel=1e-5)


def test_a_deterministic_model_has_no_kl():
    elbo = gs.ELBO(gs.to_sparse(nn.Linear(4, 4), 0.5), 10)
    assert float(elbo(torch.tensor(1.25))) == 1.25
    assert float(elbo.parts.kl) == 0.0


@pytest.mark.parametrize("num_data", [0, -5, math.nan])
def test_bad_num_data(num_data):
    with pytest.raises(InvalidValue, match="num_data"):
        gs.ELBO(network(), num_data)


def test_num_data_cannot_be_left_out():
    with pytest.raises(TypeError, match="num_data"):
        gs.ELBO(network())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"kl_weight": -0.5}, "kl_weight = -0.5"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(InvalidValue, match=match):
        gs.ELBO(network(), 10, **settings)


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (2, 1, 1)])
def test_a_matrix_of_losses_is_refused(shape):
    with pytest.raises(InvalidValue, match=r"nll shape = .*sum each example first"):
        gs.ELBO(network(), 10)(torch.ones(shape))


class TestDecayedStd:
    def step(self, model, opt) -> None:
        model(torch.randn(2, 1, 6)).sum().backward()
        opt.step()

    def test_warns_once_at_the_first_step(self):
        model = network().train()
        elbo = gs.ELBO(model, 10)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        with pytest.warns(UserWarning, match=r"group 0 .*weight_decay = 0.1.*parameter_groups"):
            self.step(model, opt)
        assert elbo.calls == 0

    def test_the_second_step_is_silent(self):
        model = network().train()
        elbo = gs.ELBO(model, 10)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        with pytest.warns(UserWarning, match="weight_raw_std") as caught:
            self.step(model, opt)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.step(model, opt)
        assert elbo.calls == 0

    def test_the_groups_of_the_library_do_not_warn(self):
        model = network().train()
        elbo = gs.ELBO(model, 10)
        opt = torch.optim.AdamW(gs.parameter_groups(model, lr=1e-3, weight_decay=0.1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.step(model, opt)
        assert elbo.calls == 0

    def test_another_models_optimizer_does_not_warn(self):
        model = network().train()
        elbo = gs.ELBO(model, 10)
        other = nn.Linear(3, 1)
        opt = torch.optim.SGD(other.parameters(), lr=0.1, weight_decay=0.1)
        other(torch.ones(1, 3)).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opt.step()
        assert elbo.calls == 0

    def test_a_dead_objective_does_not_watch(self):
        """A model that is gone is not kept alive, nor mistaken for a new one at its address."""
        for _ in range(20):
            model = network()
            gs.ELBO(model, 10)
        watched = weakref.ref(model[0])
        del model
        gc.collect()
        assert watched() is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plain = [nn.Parameter(torch.ones(3)) for _ in range(200)]
            opt = torch.optim.SGD(plain, lr=0.1, weight_decay=0.1)
            for p in plain:
                p.grad = torch.ones(3)
            opt.step()
        assert plain[0][0].item() < 1.0


class TestRequireFinite:
    def test_finite_passes(self):
        assert require_finite(torch.tensor(1.0), network()) is None

    def test_names_the_parameter(self):
        model = network()
        with torch.no_grad():
            model[2].weight_raw_std[0] = math.inf
        with pytest.raises(NonFinite, match=r"2\.weight_raw_std: became NaN or infinite"):
            require_finite(torch.tensor(math.nan), model)

    def test_blames_the_data_where_the_parameters_are_finite(self):
        with pytest.raises(NonFinite, match=r"loss = nan.*check inputs and targets"):
            require_finite(torch.tensor(math.nan), network())
