"""Writes to ``layer.weight``, which is computed: noticed at the layer's next use."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue

WRITES = {
    "init": lambda layer: nn.init.ones_(layer.weight),
    "xavier": lambda layer: nn.init.xavier_uniform_(layer.weight),
    "in place": lambda layer: layer.weight.zero_(),
    "copy": lambda layer: layer.weight.copy_(torch.ones(layer.layout.shape)),
    "a part": lambda layer: layer.weight[0].fill_(2.0),
    "detached": lambda layer: layer.weight.detach().mul_(2.0),
    "data": lambda layer: layer.weight.data.mul_(2.0),
    "a part of data": lambda layer: layer.weight.data[0].normal_(0.0, 0.02),
}
USES = {
    "forward": lambda layer: layer(torch.ones(1, *layer.layout.shape[1:])),
    "weight": lambda layer: layer.weight,
    "saving": lambda layer: layer.state_dict(),
}


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        gs.to_bayesian(nn.Linear(6, 4), 0.5),
        gs.to_sparse(nn.Linear(6, 4), 0.5),
        gs.to_bayesian(nn.ConvTranspose2d(6, 6, 3), 0.5),
    ]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("training", [True, False])
def test_a_write_is_noticed(write, training):
    for layer in layers():
        layer.train(training)
        with torch.no_grad():
            WRITES[write](layer)
        with pytest.raises(InvalidValue, match=r"was written to, which changes nothing.*weight_"):
            USES["forward"](layer)
        assert USES["forward"](layer).isfinite().all(), "said once"


@pytest.mark.parametrize("use", USES)
def test_whatever_the_next_use_is(use):
    layer = layers()[0]
    with torch.no_grad():
        layer.weight.zero_()
    with pytest.raises(InvalidValue, match="was written to"):
        USES[use](layer)


def test_a_write_that_autograd_records_is_noticed_too():
    layer = layers()[0]
    layer.weight.mul_(2.0)
    with pytest.raises(InvalidValue, match="was written to"):
        layer(torch.ones(1, 6))


def test_reading_changes_nothing():
    """Gradients, clones and a reader that keeps the tensor are as they were."""
    layer = layers()[0].eval()
    weight = layer.weight
    weight.clone().zero_()
    x = torch.randn(3, 6)
    (F.linear(x, weight).sum() + layer(x).sum()).backward()
    wanted = 2 * x.sum(0).expand(4, 6).flatten()[layer.support.positions()]
    assert torch.allclose(layer.weight_mean.grad, wanted)
    assert torch.equal(weight, layer.weight)


def test_other_data_are_refused_at_once():
    layer = layers()[0]
    with pytest.raises(InvalidValue, match=r"computed weight = \(4, 6\): changes nothing"):
        layer.weight.data = torch.ones(4, 6)


def test_to_others_it_is_a_plain_tensor():
    layer, x = layers()[0].eval(), torch.randn(3, 6)
    weight = layer.weight
    assert type(weight * 2) is type(weight.data) is type(F.linear(x, weight)) is torch.Tensor
    assert not torch.overrides.has_torch_function((weight,)), "torch's fast paths stay open"
    assert repr(weight).startswith("tensor(")
    with torch.no_grad():
        shown = layer.weight
        file = io.BytesIO()
        torch.save({"copied": copy.deepcopy(shown), "saved": shown}, file)
    file.seek(0)
    for each in torch.load(file, weights_only=True).values():
        assert type(each) is torch.Tensor
        assert torch.equal(each, weight)
    gradient = torch.autograd.grad(layer.weight.square().sum(), layer.weight_mean)[0]
    assert torch.equal(gradient, 2 * layer.weight_mean)
    assert layer(x).isfinite().all(), "none of this is a write"


def test_a_full_support_shows_the_parameter_itself():
    """It is a view: what is written there is kept, and steps of an optimiser are no writes."""
    layer = gs.to_bayesian(nn.Linear(3, 2)).eval()
    with torch.no_grad():
        nn.init.ones_(layer.weight)
    assert layer.weight_mean.tolist() == [1.0] * 6
    weight = layer.weight
    with torch.no_grad():
        layer.weight_mean.add_(1.0)
    assert weight.flatten().tolist() == [2.0] * 6
    assert layer(torch.ones(1, 3)).isfinite().all()


def test_a_dense_weight_is_not_kept_alive():
    layer = layers()[0]
    weight = layer.weight
    storage = weight.untyped_storage()._weak_ref()
    del weight
    gc.collect()
    assert torch.UntypedStorage._expired(storage)
    torch.UntypedStorage._free_weak_ref(storage)


def test_copies_compiled_graphs_and_exports_are_not_disturbed():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x):
            return F.linear(x, self.inner.weight)

    model, x = gs.to_bayesian(Reads(), 0.5, backend="masked").eval(), torch.randn(3, 6)
    wanted = model(x)
    assert torch.equal(copy.deepcopy(model)(x), wanted)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), wanted)
    exported = torch.export.export(model, (x,))
    assert torch.allclose(exported.module()(x), wanted)
    assert torch.allclose(torch.func.vmap(model)(x), wanted)
    with torch.inference_mode():
        assert torch.allclose(model(x), wanted)
    assert torch.allclose(model(x), wanted)
