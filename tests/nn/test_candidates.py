"""What is left alone, and that the reason is reported."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import gossamer as gs
from cases.zoo import OneParameter, TiedHead, TwoNames, convnet, encoder_layer, mlp
from gossamer.errors import InvalidValue
from gossamer.nn import sparse_layers

pytestmark = pytest.mark.filterwarnings("ignore:only .* weights of linear maps:UserWarning")


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 3


class Standardised(nn.Conv1d):
    """Weight standardisation by the hook that torch's convolutions offer to subclasses."""

    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Renamed(nn.Linear):
    """A subclass that changes nothing."""


def reasons(model: nn.Module) -> dict[str, str]:
    return {row.name: row.reason for row in gs.summary(model).unconverted}


def test_a_head_tied_to_an_embedding_is_left_and_reported():
    torch.manual_seed(0)
    net = TiedHead()
    bnn = gs.to_bayesian(net, 0.3)
    assert set(sparse_layers(bnn)) == {"body"}
    assert bnn.head.weight is bnn.embedding.weight, "the tie stays"
    left = reasons(bnn)
    assert set(left) == {"embedding", "head"}
    rule = "rows are looked up: a table is converted only where include= names it"
    assert left["head"] == left["embedding"] == f"{rule}, and all of embedding, head"
    assert "left: head (Linear, 66 weights)" in str(gs.summary(bnn))


def test_a_weight_that_the_parent_also_holds_is_left():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.other = nn.Linear(3, 3)
            self.weight = self.layer.weight

        def forward(self, x):
            return self.layer(x) @ self.weight + self.other(x)

    bnn = gs.to_bayesian(Parent())
    assert set(sparse_layers(bnn)) == {"other"}
    assert "tied to a module of another kind" in reasons(bnn)["layer"]


@pytest.mark.parametrize("how", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrised_weight_is_left_and_reported(how):
    torch.manual_seed(0)
    net = nn.Sequential(how(nn.Linear(4, 3)), nn.Linear(3, 2)).eval()
    bnn = gs.to_bayesian(net).eval()
    assert set(sparse_layers(bnn)) == {"1"}
    x = torch.randn(2, 4)
    assert torch.equal(bnn(x), net(x))
    mine = {n: r for n, r in reasons(bnn).items() if n.split(".")[0] == "0"}
    assert any("parametrization" in reason for reason in mine.values()), mine


def test_a_parametrised_bias_is_not_lost():
    """Leaving the layer alone would do, or keeping the parametrisation; not dropping the bias."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    parametrize.register_parametrization(layer, "bias", Doubled())
    net = nn.Sequential(layer, nn.Linear(3, 2)).eval()
    x = torch.randn(2, 4)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-6, atol=1e-6)


def test_pruned_layers_are_left():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    prune.random_unstructured(net[0], "weight", 0.5)
    bnn = gs.to_bayesian(net, inplace=True)  # torch cannot copy a pruned module
    assert set(sparse_layers(bnn)) == {"1"}
    assert "computed from others" in reasons(bnn)["0"]


def test_lazy_modules_are_left_until_they_know_their_shape():
    net = nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2))
    bnn = gs.to_bayesian(net)
    assert set(sparse_layers(bnn)) == {"0"}
    assert "run one forward pass first" in reasons(bnn)["1"]
    assert bnn.eval()(torch.ones(2, 4)).shape == (2, 2), "and they still initialise themselves"
    net(torch.ones(2, 4))
    assert set(sparse_layers(gs.to_bayesian(net))) == {"0", "1"}


def test_subclasses():
    """With a forward of its own: left alone. With torch's: converted."""
    net = nn.Sequential(OwnForward(3, 3), Renamed(3, 3))
    bnn = gs.to_bayesian(net)
    assert set(sparse_layers(bnn)) == {"1"}
    assert "OwnForward computes in a way of its own" in reasons(bnn)["0"]


def test_a_subclass_that_changes_the_inner_step_is_left_alone():
    torch.manual_seed(0)
    net = nn.Sequential(Standardised(1, 2, 3), nn.Conv1d(2, 2, 1)).eval()
    bnn = gs.to_bayesian(net).eval()
    x = torch.randn(2, 1, 6)
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-6, atol=1e-6)


def test_a_forward_replaced_on_the_object_is_left_alone():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).eval()
    net[0].forward = types.MethodType(lambda self, x: nn.Linear.forward(self, x) * 3, net[0])
    bnn = gs.to_bayesian(net).eval()
    x = torch.randn(2, 3)
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-6, atol=1e-6)


def test_who_reads_weights_is_reported():
    bnn = gs.to_bayesian(encoder_layer())
    projections = {"self_attn.in_proj", "self_attn.out_proj"}
    assert set(sparse_layers(bnn)) == {*projections, "linear1", "linear2"}
    assert reasons(bnn) == {}
    for row in gs.summary(bnn).rows:
        assert "fast path in eval() reads its dense weight" in row.note
    left = gs.to_bayesian(encoder_layer(), exclude=["self_attn"])
    assert type(left.self_attn) is nn.MultiheadAttention
    assert reasons(left) == {"self_attn": "left out by include or exclude"}
    notes = {row.name: row.note for row in gs.summary(left).rows}
    assert "MultiheadAttention reads its dense weight" in notes["self_attn.out_proj"]
    extra = gs.to_bayesian(nn.MultiheadAttention(4, 2, add_zero_attn=True))
    assert all("reads its dense weight" in row.note for row in gs.summary(extra).rows)


def test_left_out_on_request_is_reported():
    bnn = gs.to_bayesian(mlp(), exclude=["4"])
    assert reasons(bnn) == {"4": "left out by include or exclude"}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, {"0", "3", "5"}),
        ({"include": ["0"]}, {"0"}),
        ({"include": [nn.Conv2d]}, {"0", "3"}),
        ({"include": ["[05]"]}, {"0", "5"}),
        ({"exclude": ["5"]}, {"0", "3"}),
        ({"exclude": [nn.Linear, "0"]}, {"3"}),
        ({"include": [nn.Conv2d], "exclude": ["3"]}, {"0"}),
    ],
)
def test_include_and_exclude(chosen, expected):
    bnn = gs.to_bayesian(convnet(), 0.3, **chosen)
    assert set(sparse_layers(bnn)) == expected
    sizes = [layer.layout.numel for layer in sparse_layers(bnn).values()]
    kept = sum(layer.nnz for layer in sparse_layers(bnn).values())
    assert kept == round((1 - 0.3) * sum(sizes)), "sparsity is of what is converted"


def test_patterns_match_dotted_names():
    net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "head": mlp()})
    bnn = gs.to_bayesian(net, include=["body.*"])
    assert set(sparse_layers(bnn)) == {"body.0", "body.1"}


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_a_single_name_is_a_pattern_or_an_error_not_letters(key):
    """A string is an iterable of its letters: ``exclude="head"`` must not be silently ignored."""
    net = nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 3)})
    try:
        bnn = gs.to_bayesian(net, **{key: "head"})
    except InvalidValue:
        return
    assert set(sparse_layers(bnn)) == ({"head"} if key == "include" else {"body"})


@pytest.mark.parametrize("model", [TwoNames, OneParameter])
def test_excluding_one_use_of_a_shared_weight_does_not_break_the_tie(model):
    """One θ cannot be Bayesian here and deterministic there: all uses are left, or converted."""
    torch.manual_seed(0)
    net = model()
    other = "again" if model is TwoNames else "second"
    bnn = gs.to_bayesian(net, exclude=[other])
    first, second = bnn.get_submodule("first"), bnn.get_submodule(other)
    if isinstance(first, nn.Linear):
        assert second.weight is first.weight
    else:
        assert second.leading() is first.leading()
        assert first.draws_weights, "all uses must see one θ"
        assert second.draws_weights


HOOKS = {
    "forward": lambda m, note: m.register_forward_hook(lambda m, i, o: note(m)),
    "forward_pre": lambda m, note: m.register_forward_pre_hook(lambda m, i: note(m)),
    "kwargs": lambda m, note: m.register_forward_hook(lambda m, i, k, o: note(m), with_kwargs=True),
    "backward": lambda m, note: m.register_full_backward_hook(lambda m, i, o: note(m)),
    "backward_pre": lambda m, note: m.register_full_backward_pre_hook(lambda m, o: note(m)),
}


@pytest.mark.parametrize("kind", sorted(HOOKS))
@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_hooks_are_kept(kind, convert):
    seen: list[nn.Module] = []
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    HOOKS[kind](net[0], seen.append)
    model = convert(net)
    model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert [type(m) for m in seen] == [type(model[0])]


@pytest.mark.parametrize("kind", sorted(HOOKS))
def test_the_way_back_keeps_hooks(kind):
    seen: list[nn.Module] = []
    bnn = gs.to_bayesian(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    HOOKS[kind](bnn[0], seen.append)
    back = gs.to_deterministic(bnn)
    back(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert [type(m) for m in seen] == [nn.Linear]


def test_a_hook_s_handle_still_removes_it_after_conversion_in_place():
    seen: list[nn.Module] = []
    net = nn.Sequential(nn.Linear(3, 3))
    handle = net[0].register_forward_hook(lambda m, i, o: seen.append(m))
    gs.to_bayesian(net, inplace=True)
    handle.remove()
    net(torch.ones(1, 3))
    assert not seen
