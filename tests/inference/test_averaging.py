"""The mean of the weights over the end of a run, against means taken by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.inference.averaging import NORM_PASSES

STEPS = 24


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    middle: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.ReLU(), nn.Linear(16, 3))


def batches(count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(5)
    return [
        (torch.randn(32, 6, generator=source), torch.randint(3, (32,), generator=source))
        for _ in range(count)
    ]


def built(name: str, *, norm: bool = False, **settings):
    torch.manual_seed(0)
    settings = {"average": 0.25, "lr_floor": 0.5, **settings}
    return gs.build(name, network(norm), num_data=64, total_steps=STEPS, **settings)


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi", "sgd", "dense_vi"])
def test_the_mean_of_the_last_quarter_predicts(name):
    method = built(name)
    seen = []
    for number, batch in enumerate(batches(), start=1):
        method.step(batch)
        if number > 18:
            seen.append([p.detach().double().clone() for p in method.model.parameters()])
    means = [torch.stack(several).mean(0) for several in zip(*seen, strict=True)]
    held = list(method.predicting.parameters())
    assert len(seen) == method.average.count == 6
    for mean, found in zip(means, held, strict=True):
        torch.testing.assert_close(found.double(), mean, rtol=1e-5, atol=1e-6)
    last = [p.detach().double() for p in method.model.parameters()]
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(means, last, strict=True))
    # What predicts has these values: the posterior's network, whatever layers it is made of.
    weights = {tuple(w.shape): w for w in held}
    shown = {tuple(p.shape): p for p in method.posterior().draws.network.parameters()}
    for shape in weights.keys() & shown.keys():
        if name in ("rigl", "sgd"):
            assert torch.equal(shown[shape], weights[shape])


def test_ngvi_draws_around_the_mean_with_the_present_spread():
    method = built("ngvi")
    for batch in batches():
        method.step(batch)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    twin = built("ngvi")
    for batch in batches():
        twin.step(batch)
    with torch.no_grad():  # the same by hand: means into the network in training
        pairs = zip(twin.model.parameters(), method.average.network.parameters(), strict=True)
        for now, mean in pairs:
            now.copy_(mean)
    twin.average = None
    assert torch.equal(gs.predict(method, x, 7).samples, gs.predict(twin, x, 7).samples)


@pytest.mark.parametrize("name", ["rigl", "ngvi"])
def test_learnt_noise_is_averaged_with_the_weights(name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    settings = {"average": 0.25, "lr_floor": 0.5, "likelihood": "gaussian"}
    method = gs.build(name, net, num_data=64, total_steps=STEPS, **settings)
    seen = []
    for number, (x, y) in enumerate(batches(), start=1):
        method.step((x, y.float()))
        if number > 18:
            seen.append([p.detach().clone() for p in method.likelihood.parameters()])
    means = [torch.stack(several).mean(0) for several in zip(*seen, strict=True)]
    found = list(method.posterior().likelihood.parameters())
    assert means
    for mean, one, last in zip(means, found, seen[-1], strict=True):
        torch.testing.assert_close(one, mean)
        assert not torch.equal(one, last)


def test_before_the_average_the_network_in_training_predicts():
    method = built("rigl")
    for batch in batches(18):
        method.step(batch)
    assert method.predicting is method.model
    assert method.average.network is None


def test_normalisation_learns_at_the_mean_from_the_last_batches():
    """Statistics of every pass at the mean of its moment, averaged evenly, by a slow twin."""
    method = built("sgd", norm=True)
    passes = []
    for number, (x, y) in enumerate(batches(), start=1):
        method.step((x, y))
        if number > 18:
            first = method.average.network[0]
            z = (x @ first.weight.T + first.bias).double()
            passes.append((z.mean(0), z.var(0)))
    found = method.average.network[1]
    means, variances = (torch.stack(each).mean(0) for each in zip(*passes, strict=True))
    torch.testing.assert_close(found.running_mean.double(), means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.running_var.double(), variances, rtol=1e-4, atol=1e-5)
    assert method.average.norm_passes == 6 <= NORM_PASSES
    assert method.model[1].momentum == found.momentum == 0.1
    assert not torch.equal(method.model[1].running_mean, found.running_mean)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("ngvi", {"initial_curvature": 0.01}), ("ssvi", {"posterior_share": 1.0})],
)
def test_normalisation_learns_under_the_noise_that_predicts(name, settings):
    """A pass sees one draw around the mean; under those of the mean draws are too wide."""
    method = built(name, norm=True, **settings)
    passes, at_mean = [], []
    for number, (x, y) in enumerate(batches(), start=1):
        method.step((x, y))
        if number > 18:
            first = method.posterior().draws.network[0]
            at_mean.append((x @ first.weight.T + first.bias).var(0))
            with gs.sampling(first, seed=number - 18), torch.no_grad():
                passes.append((x @ first.weight.T + first.bias).double())
    found = method.average.network[1]
    means = torch.stack([z.mean(0) for z in passes]).mean(0)
    variances = torch.stack([z.var(0) for z in passes]).mean(0)
    torch.testing.assert_close(found.running_mean.double(), means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.running_var.double(), variances, rtol=1e-4, atol=1e-5)
    assert float(variances.mean()) > 1.2 * float(torch.stack(at_mean).mean())


def test_other_state_is_that_of_the_network_in_training():
    """Statistics of InstanceNorm, which nobody learns anew; BatchNorm's until its own passes."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Unflatten(1, (2, 3)),
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Flatten(),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    )
    steps = 200
    settings = {"average": 0.25, "lr_floor": 0.5, "sparsity": 0.0}
    method = gs.build("sgd", net, num_data=64, total_steps=steps, **settings)
    for number, batch in enumerate(batches(steps), start=1):
        method.step(batch)
        if number <= 150:
            continue
        mean = method.average.network
        assert torch.equal(mean[1].running_mean, method.model[1].running_mean)
        is_own = number > steps - NORM_PASSES
        assert torch.equal(mean[3].running_mean, method.model[3].running_mean) is not is_own


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi"])
@pytest.mark.parametrize("stop", [10, 21])
def test_a_resumed_average_goes_on_to_the_bit(name, stop):
    whole = built(name, norm=True)
    for batch in batches():
        whole.step(batch)
    first = built(name, norm=True)
    for batch in batches()[:stop]:
        first.step(batch)
    noise = torch.get_rng_state()
    second = built(name, norm=True)
    second.load_state_dict(first.state_dict())
    torch.set_rng_state(noise)
    for batch in batches()[stop:]:
        second.step(batch)
    ours, theirs = second.predicting.state_dict(), whole.predicting.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_states_with_and_without_an_average_are_not_exchanged():
    with_mean, without = built("rigl"), built("rigl", average=0.0, lr_floor=0.0)
    with pytest.raises(InvalidValue, match="was not saved by a rigl run"):
        with_mean.load_state_dict(without.state_dict())
    with pytest.raises(InvalidValue, match="was not saved by a rigl run"):
        without.load_state_dict(with_mean.state_dict())


def test_the_learning_rate_falls_to_its_floor_and_stays():
    method = built("rigl", lr=0.01, lr_floor=0.4)
    rates = [method.step(batch).lr for batch in batches()]
    assert rates[0] == pytest.approx(0.01)
    # Half a cosine over the first 18 steps: at its middle between lr and its floor.
    assert rates[9] == pytest.approx(0.01 * (0.4 + 0.6 * 0.5))
    assert rates[18:] == pytest.approx([0.004] * 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": 0.5}, "begins before the support rests, at 0.75 of the run"),
        ({"average": 1.0}, r"must lie in \[0, 1\), a share of the run"),
        ({"lr_floor": 0.0}, "of steps of length 0 is no average; set lr_floor"),
        ({"lr_floor": 1.5}, r"must lie in \[0, 1\], a share of lr"),
        ({"members": 2, "harvest": "cycles"}, "two ways to use the end of a run"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(InvalidValue, match=message):
        built("rigl", **settings)


def test_swag_averages_by_itself():
    for settings in ({"average": 0.25, "lr_floor": 0.5}, {"lr_floor": 0.5}):
        with pytest.raises(InvalidValue, match="swag averages by itself"):
            gs.build("swag", network(), num_data=64, total_steps=STEPS, **settings)
    with pytest.raises(InvalidValue, match="predict by themselves, which swag has not"):
        gs.build(
            "swag",
            network,
            num_data=64,
            total_steps=90,
            members=2,
            harvest="cycles",
        )


@pytest.mark.parametrize("average", [0.0, 0.25])
def test_ngvi_predicts_with_tied_weights(average):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.end = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.end(self.b(self.a(x).relu()).relu())

    torch.manual_seed(0)
    settings = {"average": average, "lr_floor": 2 * average, "sparsity": 0.5}
    method = gs.build("ngvi", Tied(), num_data=64, total_steps=STEPS, **settings)
    for batch in batches():
        method.step(batch)
    found = method.posterior().draws.network
    assert found.a.weight_mean is found.b.weight_mean
    assert found.a.weight_raw_std is found.b.weight_raw_std
    assert gs.predict(method, torch.randn(5, 6)).mutual_information.min() > 0


@pytest.mark.parametrize("name", ["rigl", "ngvi", "ssvi"])
@pytest.mark.parametrize("lr", [None, 0.01])
def test_the_learning_rate_has_a_factor(name, lr):
    settings = {"num_data": 100, "total_steps": 10, "sparsity": 0.5, "lr": lr}
    plain = gs.build(name, nn.Linear(8, 4), lr_factor=1.0, **settings)
    twice = gs.build(name, nn.Linear(8, 4), lr_factor=2.0, **settings)
    for group, other in zip(
        plain.optimizer.param_groups, twice.optimizer.param_groups, strict=True
    ):
        of_std = group.get("name") == "std"  # σ has a learning rate of its own
        assert other["lr"] == group["lr"] * (1.0 if of_std else 2.0)
    # Unset it is 2 where noise is in the way and nobody gave a learning rate.
    usual = gs.build(name, nn.Linear(8, 4), **settings)
    factor = usual.optimizer.param_groups[0]["lr"] / plain.optimizer.param_groups[0]["lr"]
    assert factor == (2.0 if name == "ssvi" and lr is None else 1.0)
    with pytest.raises(InvalidValue, match="lr_factor"):
        gs.build(name, nn.Linear(8, 4), lr_factor=-1.0, **settings)
