"""The training step that gradient methods share: rates, clipping, swaps, the learnt noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite, UnknownName
from gossamer.inference.gradient import GradientMethod, OptimizerConfig
from gossamer.nn import BayesianLayer, sparse_layers

SPARSITY = {"ssvi": {"sparsity": 0.3}}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 4), torch.randint(3, (8,))


def build(name: str = "ssvi", total: int = 20, **settings):
    return gs.build(name, network(), num_data=100, total_steps=total, **settings)


def copied(method) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in method.model.state_dict().items()}


def test_cosine_and_constant_learning_rates():
    rates = {}
    for schedule in ("cosine", "constant"):
        method = build(lr=0.1, std_lr=0.03, lr_schedule=schedule, sparsity=0.5)
        rates[schedule] = []
        for _ in range(20):
            info = method.step(batch())
            used = {g["name"]: g["lr"] for g in method.optimizer.param_groups}
            assert used["weights"] == used["biases"] == info.lr
            assert used["std"] == pytest.approx(0.3 * info.lr, rel=1e-12)
            rates[schedule].append(info.lr)
    assert rates["constant"] == [0.1] * 20
    wanted = [0.05 * (1 + math.cos(math.pi * t / 20)) for t in range(20)]
    assert rates["cosine"] == pytest.approx(wanted, rel=1e-12)


def test_the_first_step_by_hand():
    """SGD on the ELBO of known noise: one step equals - lr · gradient of the formula."""
    rates = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "std_lr": 0.2, "weight_decay": 0.0}
    method = build("dense_vi", **rates, kl_weight=0.5, kl_warmup=0.0)
    start = copied(method)
    x, y = batch()
    torch.manual_seed(4)
    info = method.step((x, y))
    ours = copied(method)
    other = build("dense_vi")
    other.model.load_state_dict(start)
    torch.manual_seed(4)
    nll = nn.functional.cross_entropy(other.model.train()(x), y)
    kl = gs.kl_divergence(other.model)
    (nll + 0.5 * kl / 100).backward()
    for name, p in other.model.named_parameters():
        lr = 0.2 if name.endswith("raw_std") else 0.1
        # One float32 multiply-add.
        torch.testing.assert_close(ours[name], start[name] - lr * p.grad, rtol=1e-5, atol=1e-7)
    assert info.nll == pytest.approx(nll.item(), rel=1e-6)
    assert info.kl == pytest.approx(kl.item(), rel=1e-6)
    assert info.loss == pytest.approx(nll.item() + 0.5 * kl.item() / 100, rel=1e-6)
    assert info.kl_weight == 0.5


def test_kl_warm_up():
    method = build("dense_vi", kl_weight=0.4, kl_warmup=0.5)
    weights = [method.step(batch()).kl_weight for _ in range(20)]
    assert weights == pytest.approx([0.4 * min(t / 10, 1.0) for t in range(20)], abs=1e-12)


@pytest.mark.parametrize("name", ["ssvi", "rigl"])
def test_clipping_limits_the_step(name):
    """Plain SGD moves by lr · clip_norm at most, and exactly that where it clips."""
    method = build(
        name,
        optimizer="sgd",
        momentum=0.0,
        lr=1.0,
        lr_schedule="constant",
        clip_norm=1e-3,
        sparsity=0.5,
        weight_decay=0.0,
        update_every=1000,
    )
    for _ in range(3):
        before = [p.detach().clone() for p in method.model.parameters()]
        method.step(batch())
        moved = [(p - q).flatten() for p, q in zip(method.model.parameters(), before, strict=True)]
        # The norm of float32 differences of numbers of size 1: 1e-7 each.
        assert torch.cat(moved).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_an_infinite_gradient_norm_is_an_error():
    method = build("sgd", clip_norm=1.0)
    method.model[2].leading().register_hook(lambda g: g * math.inf)
    with pytest.raises(NonFinite, match="gradient norm"):
        method.step(batch())


def test_weight_decay_spares_std_and_biases():
    method = build(
        "dense_vi", optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.5, kl_weight=0.0
    )
    decays = {g["name"]: g["weight_decay"] for g in method.optimizer.param_groups}
    assert decays == {"weights": 0.5, "std": 0.0, "biases": 0.0}


def test_the_learnt_noise_is_trained_and_saved():
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    method = gs.build("sgd", net, num_data=50, total_steps=400, likelihood="gaussian", lr=0.05)
    x = torch.randn(50, 2)
    y = x.sum(1) + 0.1 * torch.randn(50)
    for _ in range(400):
        method.step((x, y))
    residual = method.model(x).squeeze(1).detach() - y
    noise = nn.functional.softplus(method.likelihood.raw_noise_std).item()
    # The maximum-likelihood noise is the root mean square residual.
    assert noise == pytest.approx(residual.square().mean().sqrt().item(), rel=0.02)
    other = gs.build("sgd", net, num_data=50, total_steps=400, likelihood="gaussian")
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.likelihood.raw_noise_std, method.likelihood.raw_noise_std)
    groups = {g["name"]: g["weight_decay"] for g in method.optimizer.param_groups}
    assert groups["likelihood"] == 0.0


def test_two_methods_do_not_share_a_learnt_noise():
    """A likelihood handed to several builds, as in a loop over seeds, is copied like the model."""
    noise = gs.Gaussian("learn")
    before = noise.raw_noise_std.item()
    first, second = (
        gs.build("sgd", nn.Linear(2, 1), num_data=9, total_steps=9, likelihood=noise, lr=0.1)
        for _ in range(2)
    )
    first.step((torch.randn(9, 2), torch.randn(9)))
    assert first.likelihood.raw_noise_std.item() != before
    assert second.likelihood.raw_noise_std.item() == before


@pytest.mark.parametrize(("setting", "value"), [("optimizer", "lbfgs"), ("lr_schedule", "step")])
def test_a_config_made_by_hand_is_checked_too(setting, value):
    config = OptimizerConfig(**{setting: value})
    model = gs.to_sparse(network())
    with pytest.raises(UnknownName, match=f"{setting} = {value}"):
        GradientMethod("sgd", model, gs.Categorical(), gs.ELBO(model, 9), config, 9)


def test_a_state_with_other_settings_is_refused():
    ssvi, dense = build("ssvi", sparsity=0.5), build("dense_vi")
    with pytest.raises(InvalidValue, match="not saved by a dense_vi run"):
        dense.load_state_dict(ssvi.state_dict())


class TestPaperPreset:
    """The authors' settings, PAPERS.md section 1."""

    def method(self, total: int = 400, **settings):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 80), nn.Linear(80, 3))
        return gs.build(
            "ssvi", net, num_data=100, total_steps=total, preset="paper", sparsity=0.5, **settings
        )

    def test_initial_posterior_and_prior(self):
        method = self.method()
        layers = list(sparse_layers(method.model).values())
        assert layers[0].support.is_full, "the first layer is dense"
        assert all(isinstance(layer, BayesianLayer) for layer in layers)
        assert {layer.prior.std for layer in layers} == {0.005}
        mean = torch.cat([layer.weight_mean.detach() for layer in layers])
        std = torch.cat([layer.weight_std.detach() for layer in layers])
        assert sum(layer.nnz for layer in layers) == round(0.5 * (40 + 800 + 240))
        # 540 draws: the std of N(0, 0.01²) within five of its standard errors, 0.01/√1080.
        assert mean.std().item() == pytest.approx(0.01, abs=5 * 0.01 / 1080**0.5)
        normal = torch.distributions.Normal(0.0006, 0.0005)
        folded = normal.sample((100_000,)).abs()
        assert std.mean().item() == pytest.approx(folded.mean().item(), abs=5 * 0.00045 / 540**0.5)
        assert std.std().item() == pytest.approx(folded.std().item(), rel=0.2)

    def test_schedules_and_decay(self):
        method = self.method()
        group = {g["name"]: g for g in method.optimizer.param_groups}
        assert {n: g["weight_decay"] for n, g in group.items()} == {
            "weights": 5e-4,
            "std": 0.0,
            "biases": 5e-4,
        }
        assert {g["lr"] for g in group.values()} == {0.01}
        assert {g["momentum"] for g in group.values()} == {0.9}
        assert type(method.optimizer) is torch.optim.SGD
        weights, swaps = [], []
        for t in range(400):
            info = method.step(batch())
            weights.append(info.kl_weight)
            if info.swap is not None:
                swaps.append((t + 1, info.swap.fraction))
        assert weights == pytest.approx([0.01 * min(2 * t / 400, 1.0) for t in range(400)])
        assert [step for step, _ in swaps] == [100, 200]
        wanted = [0.15 * (1 + math.cos(math.pi * t / 300)) for t in (100, 200)]
        assert [fraction for _, fraction in swaps] == pytest.approx(wanted)

    @pytest.mark.parametrize("skip", [True, False])
    def test_no_optimizer_step_on_a_swap(self, skip):
        method = self.method(total=40, update_every=4, skip_step_on_swap=skip, end_fraction=1.0)
        assert self.method().skip_step_on_swap
        layer = method.model[2]
        for _ in range(12):
            old = layer.support.positions().tolist()
            before = copied(method)
            momentum = method.optimizer.state.get(layer.weight_mean, {}).get("momentum_buffer")
            momentum = None if momentum is None else momentum.clone()
            due = method.subspace.is_due
            info = method.step(batch())
            assert (info.swap is not None) == due
            after = method.model.state_dict()
            stood = torch.equal(after["0.bias"], before["0.bias"])
            assert stood == (due and skip)
            if due and skip:
                now = layer.support.positions().tolist()
                stay = [q for q in now if q in old]
                assert len(stay) < len(now)
                here = [now.index(q) for q in stay]
                there = [old.index(q) for q in stay]
                for key in ("2.weight_mean", "2.weight_raw_std"):
                    assert torch.equal(after[key][here], before[key][there])
                buffer = method.optimizer.state[layer.weight_mean]["momentum_buffer"]
                assert torch.equal(buffer[here], momentum[there])


@pytest.mark.parametrize("name", ["dense_vi", "ssvi"])
def test_redrawn_means_do_not_touch_the_users_network(name):
    net = network()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    settings = {"initial_mean_std": 0.5, **SPARSITY.get(name, {})}
    method = gs.build(name, net, num_data=10, total_steps=10, **settings)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert torch.equal(method.model[0].bias, net[0].bias)
    assert method.model[0].weight_mean.detach().std() > 0.3
