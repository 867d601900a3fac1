"""Subspace: what it refuses, what it postpones, what it leaves alone."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue, NonFinite, UnknownName
from gossamer.inference.subspace import MAX_POSTPONED
from gossamer.nn import sparse_layers


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def bayesian() -> nn.Module:
    return gs.to_bayesian(mlp(), 0.5).train()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def one_step(model, opt, subspace, *, scale: float = 1.0, closure_scale: float = 1.0):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    opt.zero_grad()
    (F.cross_entropy(model(x), y) * scale).backward()
    if math.isfinite(scale):
        opt.step()
    return subspace.step(lambda: F.cross_entropy(model(x), y) * closure_scale)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"removal": "magnitude"}, UnknownName, "removal = magnitude"),
        ({"addition": "gradient"}, UnknownName, "addition = gradient"),
        ({"sigma_init": "zero"}, UnknownName, "sigma_init = zero"),
        ({"num_draws": 0, "addition": "grad_multi"}, InvalidValue, "num_draws = 0"),
        ({"total_steps": 0}, InvalidValue, "total_steps = 0"),
        ({"swap_fraction": 1.5}, InvalidValue, "swap fraction = 1.5"),
        ({"end_fraction": -0.1}, InvalidValue, "swap end_fraction = -0.1"),
        ({"update_every": 0}, InvalidValue, "update_every = 0"),
    ],
)
def test_bad_settings(settings, error, match):
    model = bayesian()
    with pytest.raises(error, match=match):
        gs.Subspace(model, sgd(model), **{"total_steps": 10, **settings})


def test_a_plain_model_is_refused():
    net = mlp()
    with pytest.raises(InvalidValue, match=r"has no sparse layer.*to_bayesian"):
        gs.Subspace(net, sgd(net), total_steps=10)


def test_a_criterion_that_needs_std_on_a_deterministic_layer():
    model = gs.to_sparse(mlp(), 0.5)
    with pytest.raises(InvalidValue, match=r"removal = snr: .*layer 0.*mean_abs"):
        gs.Subspace(model, sgd(model), total_steps=10, removal="snr")
    assert gs.Subspace(model, sgd(model), total_steps=10).removal == "mean_abs"
    model = bayesian()
    assert gs.Subspace(model, sgd(model), total_steps=10).removal == "snr_abs"


@pytest.mark.parametrize("name", ["0.weight_mean", "2.weight_raw_std"])
def test_an_optimizer_that_lacks_a_parameter(name):
    model = bayesian()
    held = [p for n, p in model.named_parameters() if n != name]
    with pytest.raises(InvalidValue, match=f"optimizer = Adam: lacks the parameter {name}"):
        gs.Subspace(model, torch.optim.Adam(held), total_steps=10)


def test_an_optimizer_built_before_conversion():
    net = mlp()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(InvalidValue, match="lacks the parameter"):
        gs.Subspace(gs.to_bayesian(net, 0.5), opt, total_steps=10)


@pytest.mark.parametrize("addition", ["grad", "grad_multi"])
def test_nine_postponed_swaps_are_fine_ten_raise(addition):
    for bad in (MAX_POSTPONED - 1, MAX_POSTPONED):
        model = bayesian()
        opt = sgd(model)
        subspace = gs.Subspace(
            model, opt, total_steps=100, addition=addition, update_every=5, end_fraction=1.0
        )
        where = "scale" if addition == "grad" else "closure_scale"
        for _ in range(4):
            assert one_step(model, opt, subspace) is None
        before = {n: t.clone() for n, t in model.state_dict().items() if n.endswith("indices")}
        for _ in range(9):
            assert one_step(model, opt, subspace, **{where: math.inf}) is None
        for name, indices in before.items():
            assert torch.equal(model.state_dict()[name], indices), name
        if bad == MAX_POSTPONED:
            with pytest.raises(NonFinite, match=r"addition scores of layer 0.*10 swaps in a row"):
                one_step(model, opt, subspace, **{where: math.inf})
            continue
        info = one_step(model, opt, subspace)
        assert info is not None
        assert info.step == 14
        assert one_step(model, opt, subspace) is not None, "the schedule goes on: step 15"
        assert one_step(model, opt, subspace) is None


def test_the_count_of_postponed_swaps_starts_anew():
    model = bayesian()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=100, update_every=1, end_fraction=1.0)
    swaps = 0
    for step in range(30):
        swaps += one_step(model, opt, subspace, scale=math.nan if step % 10 else 1.0) is not None
    assert swaps == 3


def test_the_error_names_the_layer_that_is_not_finite():
    model = bayesian()
    model[0].requires_grad_(False)
    root = gs.to_bayesian(nn.Linear(6, 3), 0.5).train()
    for net, name in ((model, "2"), (root, "root")):
        opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)
        subspace = gs.Subspace(net, opt, total_steps=100, update_every=1, end_fraction=1.0)
        for _ in range(MAX_POSTPONED - 1):
            one_step(net, opt, subspace, scale=math.inf)
        with pytest.raises(NonFinite, match=f"addition scores of layer {name}:"):
            one_step(net, opt, subspace, scale=math.inf)


def test_a_postponed_swap_survives_saving():
    model = bayesian()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=100, update_every=3)
    for step in range(3):
        assert one_step(model, opt, subspace, scale=math.inf if step == 2 else 1.0) is None
    resumed = gs.Subspace(model, opt, total_steps=100, update_every=3)
    assert not resumed.is_due
    resumed.load_state_dict(subspace.state_dict())
    assert resumed.is_due
    info = one_step(model, opt, resumed)
    assert info is not None
    assert info.step == 4


def test_a_swap_postponed_beyond_the_end_is_dropped():
    model = bayesian()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=4, update_every=3, end_fraction=1.0)
    results = [one_step(model, opt, subspace, scale=math.inf if i >= 2 else 1.0) for i in range(3)]
    assert results == [None, None, None]
    assert subspace.is_due
    assert one_step(model, opt, subspace) is None
    assert not subspace.is_due


def test_non_finite_removal_scores_raise():
    model = bayesian()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=10, update_every=1)
    F.cross_entropy(model(torch.randn(4, 6)), torch.tensor([0, 1, 2, 0])).backward()
    with torch.no_grad():
        model[2].weight_mean[0] = math.nan
    with pytest.raises(NonFinite, match=r"removal scores of layer 2.*'snr_abs'"):
        subspace.step()


@pytest.mark.parametrize("addition", ["grad", "grad_mean", "grad_multi", "random"])
def test_nothing_to_swap(addition):
    """A dense model, or layers so small that int(r · nnz) is 0, run through untouched."""
    for sparsity in (0.0, 0.95):
        model = gs.to_bayesian(mlp(), sparsity).train()
        opt = sgd(model)
        subspace = gs.Subspace(model, opt, total_steps=8, addition=addition, update_every=2)
        supports = [layer.support.positions() for layer in sparse_layers(model).values()]
        for _ in range(6):
            info = one_step(model, opt, subspace)
            if info is not None:
                assert sum(layer.added for layer in info.layers.values()) == 0
        for layer, positions in zip(sparse_layers(model).values(), supports, strict=True):
            assert torch.equal(layer.support.positions(), positions)


@pytest.mark.parametrize("addition", ["grad", "grad_mean", "random"])
def test_layers_without_gradient_stay(addition):
    """A frozen layer is never swapped; it needs no place in the optimiser."""
    model = bayesian()
    model[0].requires_grad_(False)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    subspace = gs.Subspace(
        model, opt, total_steps=8, addition=addition, update_every=1, end_fraction=1.0
    )
    before = {n: t.clone() for n, t in model[0].state_dict().items()}
    added = 0
    for _ in range(4):
        info = one_step(model, opt, subspace)
        assert set(info.layers) == {"2"}
        added += info.layers["2"].added
    assert added > 0
    for name, value in model[0].state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_layer_that_no_backward_reaches_is_not_swapped():
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.used(x)

    model = gs.to_bayesian(TwoHeads(), 0.3).train()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=8, update_every=1, swap_fraction=0.5)
    before = model.unused.support.positions()
    info = one_step(model, opt, subspace)
    assert set(info.layers) == {"used"}
    assert info.layers["used"].added > 0
    assert torch.equal(model.unused.support.positions(), before)


def test_decayed_raw_std_warns_once_naming_the_group():
    model = bayesian()
    raw = [p for n, p in model.named_parameters() if n.endswith("raw_std")]
    rest = [p for n, p in model.named_parameters() if not n.endswith("raw_std")]
    groups = [{"params": rest}, {"params": raw, "name": "spread"}]
    opt = torch.optim.SGD(groups, lr=0.1, weight_decay=1e-4)
    with pytest.warns(UserWarning, match=r"group spread .*weight_decay = 0.0001") as caught:
        subspace = gs.Subspace(model, opt, total_steps=10)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one_step(model, opt, subspace)
        good = torch.optim.SGD(gs.parameter_groups(model, lr=0.1, weight_decay=1e-4))
        gs.Subspace(model, good, total_steps=10)


def test_layers_are_armed_only_before_a_swap():
    model = bayesian()
    opt = sgd(model)
    subspace = gs.Subspace(model, opt, total_steps=100, update_every=3)
    armed = []
    for _ in range(7):
        armed.append((subspace.is_due, model[0].growth is not None))
        one_step(model, opt, subspace)
    assert armed == [(i % 3 == 2, i % 3 == 2) for i in range(7)]
