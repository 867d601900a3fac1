"""The pruner by itself: which groups it takes, what it counts, what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.inference.langevin import CVSGHMC
from gossamer.inference.pruning import Pruner, PruningRule
from gossamer.nn import sparse_layers

RULE = {
    "pruning": "dfp",
    "group": "auto",
    "prune_group": "auto",
    "statistic": "auto",
    "spike_decay": 0.5,
    "spike_threshold": 0.0,
    "prune_threshold": 0.0,
    "target_scope": "network",
}


def pruner(net: nn.Module, sparsity: float = 0.0, steps: int = 1, **rule) -> Pruner:
    model = gs.to_sparse(net, sparsity, backend="masked").double()
    optimizer = CVSGHMC(model.parameters(), lr=0.0, num_data=10, temperature=0.0, weight_decay=1e-3)
    held = [p.detach().clone() for p in model.parameters()]
    for _ in range(steps):  # fills the state
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for p, value in zip(model.parameters(), held, strict=True):
        p.data.copy_(value)  # the first velocity is random
    return Pruner(model, optimizer, PruningRule(**{**RULE, **rule}), backend="masked")


def with_weight(layer: nn.Module, weight) -> nn.Module:
    layer.weight.data = torch.tensor(weight).view(layer.weight.shape)
    return layer


def test_what_auto_means():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(4, 2))
    found = pruner(net)
    rule, layers = found.rule, list(sparse_layers(found.model).values())
    assert [rule.soft_group(layer) for layer in layers] == ["kernel", "kernel", "input"]
    assert [rule.hard_group(layer) for layer in layers] == ["input", "input", "input"]
    assert [rule.hard_statistic(layer) for layer in layers] == ["range", "range", "mean_square"]


def test_input_units_of_a_linear_layer_by_hand():
    weight = [[3.0, 0.1, -1.0, 0.0], [4.0, -0.1, 0.5, 0.0], [5.0, 0.1, 0.5, 0.2]]
    net = nn.Sequential(with_weight(nn.Linear(4, 3), weight))
    found = pruner(net, prune_threshold=0.02, spike_threshold=1.0)
    parameter = found.groups[0].first.leading()
    state = found.optimizer.state[parameter]
    for name in ("momentum_buffer", "rho", "noise"):
        state[name] = torch.arange(12.0).double()
    found.refresh()
    layer = found.groups[0].first
    assert layer.leading() is parameter
    # Mean squares 50/3, 0.01, 0.5, 0.04/3: the second and fourth column leave.
    assert layer.support.positions().tolist() == [0, 2, 4, 6, 8, 10]
    assert parameter.tolist() == [3.0, -1.0, 4.0, 0.5, 5.0, 0.5]
    for name in ("momentum_buffer", "rho", "noise"):
        assert state[name].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert state["decay"].tolist() == [1e-3, 0.5] * 3, "the third column gets the spike"
    assert (found.total, found.remaining) == (12, 6)
    assert found.hard_sparsity == 0.5
    assert found.soft_sparsity() == 0.75


def test_feedback_counts_and_comes_back():
    weight = [[3.0, 0.1, -1.0, 0.0], [4.0, -0.1, 0.5, 0.0], [5.0, 0.1, 0.5, 0.2]]
    net = nn.Sequential(with_weight(nn.Linear(4, 3), weight))
    found = pruner(net, pruning="dpf", prune_threshold=0.02, spike_threshold=1.0)
    found.refresh()
    layer = found.groups[0].first
    assert layer.nnz == layer.leading().numel() == 12
    assert (found.remaining, found.hard_sparsity, found.soft_sparsity()) == (6, 0.5, 0.75)
    x = torch.eye(4).double()
    with found.effective():
        inside = layer(x) - layer.bias
    assert inside.tolist() == [[3.0, 4.0, 5.0], [0.0] * 3, [-1.0, 0.5, 0.5], [0.0] * 3]
    assert (layer(x) - layer.bias)[1].tolist() == pytest.approx([0.1, -0.1, 0.1])
    with torch.no_grad():
        layer.leading()[1::4] = 2.0
    found.refresh()
    assert found.remaining == 9, "a weight that grew takes part again"


def test_what_feedback_masks_is_under_the_spike_whatever_its_size():
    weight = [[3.0, 0.1, -1.0, 0.0], [4.0, -0.1, 0.5, 0.0], [5.0, 0.1, 0.5, 0.2]]
    net = nn.Sequential(with_weight(nn.Linear(4, 3), weight))
    found = pruner(net, pruning="dpf", spike_threshold=1e-9)
    found.refresh(0.75)
    decay = found.optimizer.state[found.groups[0].first.leading()]["decay"]
    assert decay.tolist() == [1e-3, 0.5, 0.5, 0.5] * 3
    assert (found.hard_sparsity, found.soft_sparsity()) == (0.75, 0.75)


def test_the_effective_weights_go_away_after_an_exception():
    found = pruner(nn.Sequential(nn.Linear(6, 4)), pruning="dpf", prune_threshold=0.06)
    found.refresh()
    assert 0.0 < found.hard_sparsity < 1.0
    parameter = found.groups[0].first.leading()
    before = parameter.detach().clone()
    with found.effective():
        assert int((parameter == 0).sum()) == found.total - found.remaining
    with pytest.raises(KeyError), found.effective():
        raise KeyError
    assert torch.equal(parameter, before)


def test_a_gradient_at_the_masked_weights_reaches_the_masked_ones():
    """Eq. (8): the gradient at m⊙w, all of it, whichever weights are masked."""
    found = pruner(nn.Sequential(nn.Linear(6, 4)), pruning="dpf", prune_threshold=0.06)
    found.refresh()
    layer = found.groups[0].first
    x, y = torch.randn(9, 6).double(), torch.randn(9, 4).double()
    masked = (layer.leading().detach() * found.masks["0"]).view(4, 6).requires_grad_()
    (wanted,) = torch.autograd.grad(
        (nn.functional.linear(x, masked, layer.bias.detach()) - y).square().sum(), masked
    )
    with found.effective():
        found.model.zero_grad()
        (found.model(x) - y).square().sum().backward()
    torch.testing.assert_close(layer.leading().grad, wanted.flatten(), rtol=1e-12, atol=1e-12)
    assert bool((layer.leading().grad[~found.masks["0"]] != 0).all())


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_the_last_group_stays_even_where_gone_ones_tie_with_it(pruning):
    """All statistics 0: the group that stays must be one that still has weights."""
    net = nn.Sequential(nn.Linear(5, 2))
    found = pruner(net, prune_threshold=0.1, pruning=pruning)
    layer = found.groups[0].first
    with torch.no_grad():
        layer.leading().fill_(0.0)
        layer.leading()[3::5] = 9.0
    found.refresh()
    with torch.no_grad():
        layer.leading().zero_()
    found.refresh()
    assert found.remaining == 2
    if pruning == "dfp":
        assert layer.support.positions().tolist() == [3, 8]


def test_refused_under_compile_with_nothing_changed():
    found = pruner(nn.Sequential(nn.Linear(5, 4)), prune_threshold=0.05)
    parameter = found.groups[0].first.leading()
    keep = torch.arange(20) % 2 == 0
    shapes = {k: v.shape for k, v in found.optimizer.state[parameter].items()}

    def step() -> None:
        found._shrink(found.groups[0], keep)

    with pytest.raises(Exception, match="between steps"):
        torch.compile(step, backend="eager")()
    assert parameter.numel() == 20
    assert {k: v.shape for k, v in found.optimizer.state[parameter].items()} == shapes


@pytest.mark.parametrize("sparsity", [0.0, 0.6])
@pytest.mark.parametrize("target", [0.0, 0.3, 0.62, 0.99])
def test_a_target_of_every_layer_is_met_by_whole_groups(sparsity, target):
    net = nn.Sequential(nn.Linear(20, 7), nn.Linear(7, 5))
    found = pruner(net, sparsity, target_scope="layer")
    before = {n: layer.nnz for n, layer in sparse_layers(found.model).items()}
    columns = {}
    for name, layer in sparse_layers(found.model).items():
        dense = layer.weight.detach()
        kept = (dense != 0).sum(0).clamp(min=1)
        columns[name] = (dense.square().sum(0) / kept, (dense != 0).sum(0))
    found.refresh(target)
    for name, layer in sparse_layers(found.model).items():
        score, count = columns[name]
        wanted = before[name]
        order = [i for i in score.argsort().tolist() if count[i] > 0]
        for column in order[:-1]:
            if layer.layout.numel - wanted >= round(target * layer.layout.numel):
                break
            wanted -= int(count[column])
        assert layer.nnz == wanted
