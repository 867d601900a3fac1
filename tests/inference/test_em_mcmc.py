"""EM-MCMC against the same algorithm on dense tensors, and what a run must keep to."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.em_mcmc import (
    ROWS,
    TOTAL,
    batch,
    build,
    data,
    dense,
    network,
    run,
    sizes,
)
from cases.engines import needs_native
from gossamer.errors import InvalidValue, NonFinite
from gossamer.nn import sparse_layers
from gossamer.ops.torch import reading
from reference.dense_em import DenseEM

CASES = {
    # group, prune_group, statistic, λ₁, λ₂
    "auto": ("auto", "auto", "auto", 0.06, 0.2),
    "input": ("input", "input", "mean_square", 0.02, 0.0085),
    "output": ("output", "output", "mean_square", 0.02, 0.0078),
    "output range": ("kernel", "output", "range", 0.02, 0.25),
    "printed range": ("kernel", "input", "abs_range", 0.02, 0.11),
    "kernel": ("kernel", "kernel", "mean_square", 0.02, 0.004),
    "weight": ("weight", "weight", "mean_square", 0.01, 0.001),
    "weight in kernels": ("kernel", "weight", "mean_square", 0.02, 0.001),
}
AUTO = {"soft": {4: "kernel", 2: "input"}, "kinds": {4: "range", 2: "mean_square"}}


@pytest.fixture(params=["dfp", "dpf", "dpf that skips"])
def way_of_pruning(request, monkeypatch):
    """The last one leaves masked inputs out, as DPF does in layers that are large enough."""
    if request.param == "dpf that skips":
        monkeypatch.setattr(reading, "FEWEST_SKIPPED", 1)
        monkeypatch.setattr(reading, "MOST_READ", 1.0)
    return request.param[:3]


@pytest.mark.parametrize(
    ("case", "temperature"), [("auto", 0.0), *((case, 0.05) for case in CASES)]
)
def test_every_step_equals_the_dense_algorithm(case, way_of_pruning, temperature):
    pruning = way_of_pruning
    group, prune_group, statistic, soft_threshold, hard_threshold = CASES[case]
    net = network().double()
    if case == "auto":
        with torch.no_grad():
            net[5].weight.mul_(5.0)  # one λ₂ for ranges and for mean squares
    method = build(
        net=net,
        pruning=pruning,
        group=group,
        prune_group=prune_group,
        statistic=statistic,
        spike_threshold=soft_threshold,
        prune_threshold=hard_threshold,
        temperature=temperature,
    )
    truth = DenseEM(
        net,
        num_data=ROWS,
        lr=0.02,
        betas=(0.5, 1.0),
        tau_lr=0.5,
        temperature=temperature,
        slab=1e-3,
        spike=4.0,
        soft_threshold=soft_threshold,
        hard_threshold=hard_threshold,
        soft=AUTO["soft"] if group == "auto" else {4: group, 2: group},
        hard="input" if prune_group == "auto" else prune_group,
        kinds=AUTO["kinds"] if statistic == "auto" else {4: statistic, 2: statistic},
        feedback=pruning == "dpf",
    )
    layers = sparse_layers(method.model)
    names = {
        id(p): n.replace("weight_values", "weight") for n, p in method.model.named_parameters()
    }
    drawn: dict[str, torch.Tensor] = {}

    def shaped(name: str, vector: torch.Tensor) -> torch.Tensor:
        layer = layers[name.rpartition(".")[0]]
        return dense(layer, vector) if name.endswith("weight") else vector.clone()

    def catch(optimizer, *_):
        for p, state in optimizer.state.items():
            drawn[names[id(p)]] = shaped(names[id(p)], state["noise"])

    # The start of v is random: both begin with the same one, and with unequal τ.
    generator = torch.Generator().manual_seed(1)
    for p in method.model.parameters():
        name, state = names[id(p)], method.optimizer.state[p]
        for key, scale in (("momentum_buffer", 0.001), ("rho", 1.0), ("noise", 0.0)):
            state[key] = scale * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        truth.v[name] = shaped(name, state["momentum_buffer"])
        truth.rho[name] = shaped(name, state["rho"])
    method.optimizer.register_step_post_hook(catch)
    rows, counts, refreshed = 0, [], []
    for step in range(TOTAL):
        x, y = batch(step)
        method.step((x, y))
        factor = 0.5 * (1 + math.cos(math.pi * (step % 24) / 24))
        truth.step(x, y, drawn, factor)
        rows += len(x)
        if rows >= ROWS and step + 1 >= 0.2 * TOTAL:
            truth.refresh()
            rows, refreshed = 0, [*refreshed, step + 1]
        counts.append(sum(int(m.sum()) for m in truth.mask.values()))
        assert method.pruner.remaining == counts[-1], f"step {step}"
        for p in method.model.parameters():
            name, state = names[id(p)], method.optimizer.state[p]
            kept = truth.mask.get(name, torch.ones_like(truth.w[name], dtype=torch.bool))
            if pruning == "dpf":
                kept = torch.ones_like(kept)
            for mine, theirs in (
                (p.detach(), truth.w),
                (state["momentum_buffer"], truth.v),
                (state["rho"], truth.rho),
                (state["noise"], truth.eps),
                *([(state["decay"], truth.decay)] if "decay" in state else []),
            ):
                wanted = torch.where(kept, theirs[name], 0.0)
                gap = float((shaped(name, mine) - wanted).abs().max())
                assert gap < 1e-11, (step, name, gap)
            if pruning == "dfp" and name in truth.mask:
                assert {t.numel() for t in state.values()} == {p.numel()} == {int(kept.sum())}
            elif name in truth.mask:
                assert p.numel() == truth.w[name].numel(), "DPF stays dense"
                if refreshed:
                    found = method.pruner.masks[name.rpartition(".")[0]]
                    assert torch.equal(found.view(kept.shape), truth.mask[name])
    assert refreshed == list(range(10, TOTAL + 1, 3)), "once per epoch, after the warm-up"
    assert counts[8] == sum(m.numel() for m in truth.mask.values()), "nothing during the warm-up"
    assert len(set(counts)) >= 3, f"the case must prune several times: {counts}"
    if pruning == "dfp":
        assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("backend", ["masked", "auto", pytest.param("native", marks=needs_native)])
def test_weights_really_leave(backend):
    """Fewer bytes in parameters, state and indices; the network computes what it did."""
    method = build(dtype=torch.float32, target_sparsity=0.6, backend=backend)
    run(method, 9, dtype=torch.float32)
    full = sizes(method)
    assert sum(full.values()) == method.pruner.total
    run(method, TOTAL - 9, 9, dtype=torch.float32)
    assert all(n < full[name] for name, n in sizes(method).items())
    for layer in sparse_layers(method.model).values():
        state = method.optimizer.state[layer.leading()]
        assert sorted(state) == ["decay", "momentum_buffer", "noise", "rho"]
        for tensor in (layer.leading(), layer.indices, *state.values()):
            assert tensor.numel() == layer.nnz
            assert tensor.untyped_storage().nbytes() == 4 * layer.nnz, "the old memory is free"
    x, _ = data(torch.float32)
    plain = network()
    for name, layer in sparse_layers(method.model).items():
        plain.get_submodule(name).weight.data = dense(layer, layer.leading().detach())
        plain.get_submodule(name).bias.data = layer.bias.data
    torch.testing.assert_close(method.model(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
@pytest.mark.parametrize("stop", [0, 11, 30])
@pytest.mark.parametrize("target", [None, 0.7])
def test_resuming_in_the_middle_is_bit_equal(pruning, stop, target):
    settings = {
        "pruning": pruning,
        "spike_threshold": 0.05,
        "prune_threshold": 0.01,
        "target_sparsity": target,
        "dtype": torch.float32,
    }
    straight = build(**settings)
    run(straight, stop, dtype=torch.float32)
    state, noise = copy.deepcopy(straight.state_dict()), torch.get_rng_state()
    run(straight, TOTAL - stop, stop, dtype=torch.float32)
    resumed = build(seed=9, **settings)
    run(resumed, 30, dtype=torch.float32)  # its own pruning is forgotten
    resumed.load_state_dict(state)
    torch.set_rng_state(noise)
    run(resumed, TOTAL - stop, stop, dtype=torch.float32)
    assert straight.pruner.hard_sparsity == resumed.pruner.hard_sparsity > 0.0
    one, two = straight.state_dict(), resumed.state_dict()
    for key, value in one["model"].items():
        assert torch.equal(value, two["model"][key]), key
    for mine, theirs in zip(
        one["optimizer"]["state"].values(), two["optimizer"]["state"].values(), strict=True
    ):
        assert all(torch.equal(mine[k], theirs[k]) for k in mine.keys() | theirs.keys())
    x, _ = data(torch.float32)
    assert torch.equal(gs.predict(straight, x, 4).samples, gs.predict(resumed, x, 4).samples)


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_samples_from_before_and_after_shrinking_all_predict(pruning):
    method = build(pruning=pruning, spike_threshold=0.05, prune_threshold=0.01)
    x, _ = data()
    wanted, nnz = [], []
    for step in range(TOTAL):
        method.step(batch(step))
        if step + 1 in method.sample_steps:
            with torch.no_grad(), method.pruner.effective():
                wanted.append(method.model(x).softmax(-1))
            nnz.append(method.pruner.remaining)
    assert len(set(nnz)) >= 3, "samples of several sizes"
    weights = [
        sum(t.numel() for n, t in sample.items() if n.endswith("weight_values"))
        for sample in method.samples
    ]
    assert weights == nnz, "a sample holds no weight that is masked"
    before = copy.deepcopy(method.model.state_dict())
    found = gs.predict(method, x, 4)
    torch.testing.assert_close(
        found.samples.double(), torch.stack(wanted[::-1]), rtol=1e-9, atol=1e-11
    )
    for key, value in method.model.state_dict().items():
        assert torch.equal(value, before[key]), "the present support is back"
    with pytest.raises(KeyError), method.posterior().draws.sample(3, seed=0, noise="weight"):
        raise KeyError
    assert method.model.state_dict().keys() == before.keys()
    for key, value in method.model.state_dict().items():
        assert torch.equal(value, before[key]), key
    for p, state in method.optimizer.state.items():
        assert all(t.shape == p.shape for t in state.values())
    with pytest.warns(UserWarning, match="total_steps"):
        run(method, 1)


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_no_layer_is_ever_empty(pruning):
    method = build(pruning=pruning, prune_threshold=1e9, spike_threshold=0.0)
    run(method, 10)
    best = {}
    for name, layer in sparse_layers(method.model).items():
        weight = dense(layer, layer.leading().detach())
        if pruning == "dpf":
            weight = weight * method.pruner.masks[name].view(weight.shape)
        columns = weight.transpose(0, 1).flatten(1)
        assert int((columns != 0).any(1).sum()) == 1, "one input unit is left"
        best[name] = int((columns != 0).any(1).nonzero())
    run(method, 20, 10)
    assert math.isfinite(method.step(batch(0)).loss)
    assert all(n > 0 for n in sizes(method).values())
    assert method.pruner.remaining == 6 * 9 + 4 * 4 + 3


def test_a_batch_with_nan_changes_nothing_under_feedback():
    method = build(pruning="dpf", spike_threshold=0.05, prune_threshold=0.01)
    run(method, 20)
    assert method.pruner.hard_sparsity > 0.0
    before = copy.deepcopy(method.state_dict())
    x, y = batch(0)
    with pytest.raises(NonFinite):
        method.step((x * math.nan, y))
    with pytest.raises(RuntimeError):
        method.step((x[:, :1], y))  # wrong channels: fails in the forward pass
    after = method.state_dict()
    for key, value in before["model"].items():
        assert torch.equal(value, after["model"][key]), key
    assert before["rows"] == after["rows"]
    assert before["steps"] == after["steps"]


class Tied(nn.Module):
    """A layer under two names, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.other = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.middle.weight
        self.again, self.last = self.middle, nn.Linear(8, 3)

    def forward(self, x):
        for layer in (self.first, self.middle, self.other, self.again):
            x = torch.tanh(layer(x))
        return self.last(x)


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_shared_weights(pruning):
    method = build(net=Tied(), pruning=pruning, target_sparsity=0.5)
    x = torch.randn(ROWS, 5, dtype=torch.float64)
    y = torch.arange(ROWS) % 3
    kept = []
    for step in range(TOTAL):
        method.step((x, y))
        if step + 1 in method.sample_steps:
            with torch.no_grad(), method.pruner.effective():
                kept.append(method.model(x).softmax(-1))
    found = gs.predict(method, x, 9).samples.double()
    torch.testing.assert_close(found, torch.stack(kept[::-1]), rtol=1e-9, atol=1e-11)
    assert method.model.middle.leading() is method.model.other.leading()
    assert method.pruner.total == 5 * 8 + 8 * 8 + 8 * 3


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_frozen_layers_stay_as_they_are(pruning):
    net = network()
    net[0].weight.requires_grad_(False)
    held = net[0].weight.detach().clone().double()
    method = build(net=net, pruning=pruning, target_sparsity=0.8)
    run(method, TOTAL)
    first = sparse_layers(method.model)["0"]
    assert torch.equal(first.weight.detach(), held)
    free = method.pruner.total - first.nnz
    assert method.pruner.hard_sparsity == pytest.approx(0.8 * free / method.pruner.total, abs=0.06)
    x, _ = data()
    assert gs.predict(method, x, 4).samples.shape[0] == 4


def test_groups_of_one_weight_have_no_range():
    net = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Flatten(), nn.Linear(6 * 36, 3))
    with pytest.raises(InvalidValue, match=r"statistic.*range.*layer 0.*kernel.*mean_square"):
        build(net=copy.deepcopy(net), prune_group="kernel", statistic="range")
    method = build(net=net, prune_group="kernel", prune_threshold=0.01, spike_threshold=0.0, lr=0.0)
    weight = method.model[0].weight.detach().flatten()
    run(method, 10)
    assert sparse_layers(method.model)["0"].nnz == int((weight.square() >= 0.01).sum()) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pruning": "other"}, "pruning.*dfp"),
        ({"group": "channel"}, "group"),
        ({"prune_group": "channel"}, "prune_group"),
        ({"statistic": "median"}, "statistic"),
        ({"spike_decay": 1e-4}, "spike_decay.*weight_decay = 0.001"),
        ({"spike_decay": math.nan}, "spike_decay"),
        ({"spike_threshold": -1.0}, "spike_threshold"),
        ({"prune_threshold": -1.0}, "prune_threshold"),
        ({"warmup": 1.5}, "warmup"),
        ({"target_sparsity": 1.0}, "target_sparsity"),
        ({"target_sparsity": -0.1}, "target_sparsity"),
        ({"target_sparsity": 0.5, "prune_end": 0.1}, "prune_end.*warmup = 0.2"),
        ({"target_sparsity": 0.5, "prune_end": 1.1}, "prune_end"),
        ({"target_sparsity": 0.5, "target_scope": "block"}, "target_scope.*network"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(InvalidValue, match=message):
        build(**settings)


def test_a_late_warmup_needs_no_end():
    """``prune_end`` is for targets; without one it does not matter."""
    method = build(warmup=0.9, prune_threshold=1e9)
    run(method, 43)
    assert method.pruner.hard_sparsity == 0.0
    run(method, 5, 43)
    assert method.pruner.hard_sparsity > 0.0


def test_the_authors_preset_runs():
    torch.manual_seed(0)
    method = gs.build("em_mcmc", network(), num_data=ROWS, total_steps=6, preset="paper")
    run(method, 6, dtype=torch.float32)
    group = method.optimizer.param_groups[0]
    assert group["noise_scale"] == pytest.approx(ROWS**-0.5)
    assert group["betas"] == (0.1, 1.0)
    assert not group["exact_noise"]


def test_a_state_of_the_other_pruning_is_refused():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    one, two = (
        gs.build("em_mcmc", net, num_data=60, total_steps=10, pruning=pruning)
        for pruning in ("dfp", "dpf")
    )
    with pytest.raises(InvalidValue, match="must be 'dfp', as in the saved run"):
        two.load_state_dict(one.state_dict())
