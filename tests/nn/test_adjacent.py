"""Linear chains: outputs lie by feature where another layer follows, and change nothing else."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.engines import ISAS, needs_native, using
from gossamer.nn.adjacent import ELEMENTWISE
from gossamer.nn.walk import sparse_layers

pytestmark = needs_native


def chain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(33, 40), *between, nn.Linear(40, 17), nn.Tanh(), nn.Linear(17, 5)
    )


def unlinked(model):
    """The same layers, each of which hands its output on example by example."""
    found = copy.deepcopy(model)
    for layer in sparse_layers(found).values():
        layer.layout = replace(layer.layout, by_feature=False)
    return found


def results(model, x):
    torch.manual_seed(3)
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, **found}


def check_equal(found, wanted):
    """All bits but those of the biases' gradients, which torch sums in the order of memory."""
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        if name.endswith("bias"):
            torch.testing.assert_close(tensor, wanted[name])
        else:
            assert torch.equal(tensor, wanted[name]), name


def by_feature(model):
    return [layer.layout.by_feature for layer in sparse_layers(model).values()]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 7, 8, 33, 128, 300])
@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_the_same_bits_as_without(convert, batch, isa):
    """Noise, outputs and gradients: the order in memory is no part of any sum."""
    torch.manual_seed(0)
    linked = convert(chain(nn.ReLU()), 0.7, backend="native").train()
    assert by_feature(linked) == [True, True, False]
    x = torch.randn(batch, 33)
    with using(isa):
        check_equal(results(linked, x), results(unlinked(linked), x))


def test_what_the_layers_see():
    """The order survives the element-wise modules, forward and back."""
    model = gs.to_bayesian(chain(nn.ReLU(), nn.Dropout(0.5)), 0.5, backend="native").train()
    seen = []
    for layer in (model[3], model[5]):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].stride()))
    model(torch.randn(8, 33)).sum().backward()
    assert seen == [(1, 8), (1, 8)]
    assert model(torch.randn(8, 33)).is_contiguous()


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_every_module_between_keeps_the_order(kind):
    x = torch.randn(6, 8).t().requires_grad_()
    y = kind()(x)
    assert y.stride() == x.stride()
    (gradient,) = torch.autograd.grad(y, x, torch.ones(6, 8).t())
    assert gradient.stride() == x.stride()


def test_rows_in_more_than_one_dimension():
    model = gs.to_bayesian(chain(), 0.5, backend="native").train()
    x = torch.randn(4, 3, 33)
    check_equal(results(model, x), results(unlinked(model), x))


def test_only_where_nobody_else_reads():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.second(self.first(x).view(-1, 6))

    class Watching(nn.Sequential):
        pass

    assert by_feature(gs.to_bayesian(Own(), 0.5, backend="native")) == [False, False]
    watched = Watching(nn.Linear(6, 6), nn.Linear(6, 6))
    assert by_feature(gs.to_bayesian(watched, 0.5, backend="native")) == [False, False]
    parted = chain(nn.BatchNorm1d(40))
    assert by_feature(gs.to_bayesian(parted, 0.5, backend="native")) == [False, True, False]
    masked = gs.to_bayesian(chain(), 0.5, backend="masked")
    assert masked[0](torch.ones(4, 33)).is_contiguous()


def test_a_linked_network_compiles():
    model = gs.to_bayesian(chain(nn.ReLU()), 0.5, backend="native").train()
    x = torch.randn(16, 33)
    wanted = results(model, x)
    found = results(torch.compile(model, fullgraph=True, backend="aot_eager"), x)
    for got, expected in zip(found.values(), wanted.values(), strict=True):
        torch.testing.assert_close(got, expected)
