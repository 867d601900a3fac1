"""The pruner by itself: which groups it takes, what it counts, what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cases.pruning import pruner
from gossamer.nn import sparse_layers
from gossamer.ops import ReadingBackend


def with_weight(layer: nn.Module, weight) -> nn.Module:
    layer.weight.data = torch.tensor(weight).view(layer.weight.shape)
    return layer


def read_inputs(layer: nn.Module) -> list[int] | None:
    """What a product of the layer would read now; ``None`` for all inputs."""
    backend = layer.stand_in
    if backend is None or layer.indices is not None or not backend.holds_for(layer.pass_values()):
        return None
    return backend.inputs.tolist()


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
    parameter = found.weights[0].values
    state = found.optimizer.state[parameter]
    for name in ("momentum_buffer", "rho", "noise"):
        state[name] = torch.arange(12.0).double()
    found.refresh()
    layer = found.weights[0].layer
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
    layer = found.weights[0].layer
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
    decay = found.optimizer.state[found.weights[0].values]["decay"]
    assert decay.tolist() == [1e-3, 0.5, 0.5, 0.5] * 3
    assert (found.hard_sparsity, found.soft_sparsity()) == (0.75, 0.75)


def test_the_effective_weights_go_away_after_an_exception():
    found = pruner(nn.Sequential(nn.Linear(6, 4)), pruning="dpf", prune_threshold=0.06)
    found.refresh()
    assert 0.0 < found.hard_sparsity < 1.0
    parameter = found.weights[0].values
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
    layer = found.weights[0].layer
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


def test_masked_inputs_are_named_while_they_are_masked():
    """What the engine leaves out is what the mask leaves out, and only inside."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(12, 4))
    found = pruner(net, pruning="dpf", prune_threshold=0.03)
    found.refresh()
    conv, linear = (group.layer for group in found.weights)
    columns = found.masks["2"].view(4, 12).any(0)
    assert 0 < int(columns.sum()) < 12
    with found.effective():
        assert read_inputs(linear) == columns.nonzero().flatten().tolist()
        assert read_inputs(conv) is None
        assert bool((linear.weight[:, ~columns] == 0).all())
    assert read_inputs(linear) is None
    with pytest.raises(KeyError), found.effective():
        raise KeyError
    assert read_inputs(linear) is None


def test_masks_that_change_name_others():
    found = pruner(nn.Sequential(nn.Linear(12, 4)), pruning="dpf", prune_threshold=0.03)
    seen = []
    for mask in (torch.arange(48) % 12 == 3, torch.arange(48) == 5):
        found.masks = {"0": mask}
        for _ in range(2):
            with found.effective():
                seen.append(read_inputs(found.weights[0].layer))
    assert seen == [[3], [3], [5], [5]]


def test_every_name_of_a_shared_weight_reads_the_same():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    found = pruner(nn.Sequential(first, second), pruning="dpf", prune_threshold=0.06)
    found.refresh()
    (group,) = found.weights
    assert len(group.layers) == 2
    with found.effective():
        names = [read_inputs(layer) for layer in group.layers]
    assert names[0] == names[1] is not None


def test_a_layer_that_is_sparse_already_names_none():
    found = pruner(nn.Sequential(nn.Linear(12, 4)), 0.5, pruning="dpf", prune_threshold=0.03)
    found.refresh()
    with found.effective():
        assert read_inputs(found.weights[0].layer) is None


def test_nor_does_one_that_has_lost_weights_since():
    found = pruner(nn.Sequential(nn.Linear(12, 4)))
    layer = found.weights[0].layer
    layer.stand_in = ReadingBackend(layer.backend, torch.tensor([1]), layer.leading())
    assert read_inputs(layer) == [1]
    found._shrink(found.weights[0], torch.arange(48) % 2 == 0)
    assert read_inputs(layer) is None


def test_other_weights_in_a_masked_network_are_read_whole():
    """Copies, other weights in their place, and weights that were loaded are of no mask."""
    found = pruner(nn.Sequential(nn.Linear(12, 4)), pruning="dpf", prune_threshold=0.03)
    dense = {name: value.clone() for name, value in found.model.state_dict().items()}
    found.refresh()
    assert found.hard_sparsity > 0.0
    with found.effective():
        layer = found.weights[0].layer
        assert read_inputs(copy.deepcopy(layer)) is None
        with torch.nn.utils.stateless._reparametrize_module(found.model, dense):
            assert read_inputs(layer) is None
        assert read_inputs(layer) is not None
        found.model.load_state_dict(dense)
        assert read_inputs(layer) is None


@pytest.mark.parametrize("pruning", ["dfp", "dpf"])
def test_the_last_group_stays_even_where_gone_ones_tie_with_it(pruning):
    """All statistics 0: the group that stays must be one that still has weights."""
    net = nn.Sequential(nn.Linear(5, 2))
    found = pruner(net, prune_threshold=0.1, pruning=pruning)
    layer = found.weights[0].layer
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
    parameter = found.weights[0].values
    keep = torch.arange(20) % 2 == 0
    shapes = {k: v.shape for k, v in found.optimizer.state[parameter].items()}

    def step() -> None:
        found._shrink(found.weights[0], keep)

    with pytest.raises(Exception, match="between steps"):
        torch.compile(step, backend="eager")()
    assert parameter.numel() == 20
    assert {k: v.shape for k, v in found.optimizer.state[parameter].items()} == shapes
