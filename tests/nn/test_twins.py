"""Classes of other packages: registered, or known by their name."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import gossamer as gs
from cases.zoo import BACKENDS
from gossamer.errors import GossamerError, InvalidData, InvalidValue
from gossamer.nn import register_layer, skeleton, sparse_layers, twins


class Flipped(nn.Module):
    """x W + b with W [in, out], as Hugging Face's Conv1D."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.nx, self.nf = inputs, outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.register_parameter("bias", nn.Parameter(torch.randn(outputs)) if bias else None)

    def forward(self, x):
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Straight(nn.Module):
    """x Wᵀ with W [out, in], no attribute ``bias`` at all."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_channels = inputs
        self.weight = nn.Parameter(torch.randn(outputs, inputs))

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Sub(Flipped):
    """Keeps the forward."""


class OwnForward(Flipped):
    def forward(self, x):
        return 2 * super().forward(x)


class Crooked(nn.Linear):
    """A subclass of torch's with a forward of its own, but the same map."""

    def forward(self, x):
        return x @ self.weight.T + self.bias


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(twins, "_REGISTERED", {})
    torch.manual_seed(0)


def flipped() -> nn.Module:
    return nn.Sequential(Flipped(6, 8), nn.ReLU(), Sub(8, 8, bias=False), nn.ReLU(), Flipped(8, 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_a_transposed_class_there_and_back(convert, backend):
    register_layer(Flipped, transposed=True)
    net, x = flipped(), torch.randn(5, 2, 6)
    full = convert(net, backend=backend).eval()
    torch.testing.assert_close(full(x), net(x), rtol=1e-5, atol=1e-5)
    half = convert(net, 0.5, backend=backend).eval()
    assert [layer.layout.shape for layer in sparse_layers(half).values()] == [
        (8, 6),
        (8, 8),
        (3, 8),
    ]
    back = gs.to_deterministic(half)
    assert [type(m) for m in back[::2]] == [Flipped, Sub, Flipped]
    assert [tuple(m.weight.shape) for m in back[::2]] == [(6, 8), (8, 8), (8, 3)]
    assert (back[0].nx, back[0].nf, back[2].bias) == (6, 8, None)
    torch.testing.assert_close(back(x), half(x), rtol=1e-5, atol=1e-5)
    assert (back[2].weight == 0).any()
    again = convert(back, 0.5)
    assert set(sparse_layers(again)) == {"0", "2", "4"}


def test_the_kept_weights_are_those_of_the_module():
    """By magnitude nothing is rescaled: what stays is equal, place by place."""
    register_layer(Flipped, transposed=True)
    net = Flipped(5, 4)
    back = gs.to_deterministic(gs.to_sparse(net, 0.5, support="magnitude"))
    kept = back.weight != 0
    assert int(kept.sum()) == 10
    assert torch.equal(back.weight[kept], net.weight[kept])
    assert net.weight[~kept].abs().max() <= net.weight[kept].abs().min()


def test_a_class_without_a_bias():
    register_layer(Straight)
    net, x = nn.Sequential(Straight(4, 6), Straight(6, 2)), torch.randn(3, 4)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-5, atol=1e-5)
    back = gs.to_deterministic(bnn)
    assert type(back[0]) is Straight
    assert back.state_dict().keys() == net.state_dict().keys()
    torch.testing.assert_close(back(x), net(x), rtol=1e-5, atol=1e-5)


def test_without_a_registration_nothing_changes():
    with pytest.raises(InvalidValue, match="Flipped has no sparse layer"):
        gs.to_bayesian(Flipped(3, 3))
    bnn = gs.to_bayesian(nn.Sequential(Crooked(3, 3), nn.Linear(3, 3)))
    assert set(sparse_layers(bnn)) == {"1"}


def test_a_subclass_of_torch_s_may_be_registered():
    register_layer(Crooked)
    net, x = nn.Sequential(Crooked(3, 4), nn.Linear(4, 3)), torch.randn(2, 3)
    bnn = gs.to_bayesian(net).eval()
    assert set(sparse_layers(bnn)) == {"0", "1"}
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-6, atol=1e-6)
    assert type(gs.to_deterministic(bnn)[0]) is Crooked


def test_a_subclass_with_a_forward_of_its_own_is_left():
    register_layer(Flipped, transposed=True)
    bnn = gs.to_bayesian(nn.Sequential(OwnForward(3, 3), Flipped(3, 3)))
    assert set(sparse_layers(bnn)) == {"1"}
    assert "computes in a way of its own" in gs.summary(bnn).unconverted[0].reason


@pytest.mark.parametrize("weight", [torch.zeros(3, 3), torch.eye(3), torch.randn(3, 3)])
def test_a_wrong_orientation_is_refused_even_if_the_weight_hides_it(weight):
    register_layer(Flipped)  # it is transposed
    net = nn.Sequential(nn.Linear(3, 3), Flipped(3, 3))
    net[1].weight = nn.Parameter(weight)
    before = torch.get_rng_state()
    with pytest.raises(InvalidValue, match=r"layer 1 .*\[out, in\].*gives other outputs"):
        gs.to_bayesian(net, inplace=True)
    assert torch.equal(before, torch.get_rng_state())
    assert type(net[0]) is nn.Linear, "nothing was changed"
    assert set(sparse_layers(gs.to_bayesian(net, exclude=["1"]))) == {"0"}


def test_maps_that_are_none_are_refused():
    class Rectified(Straight):
        def forward(self, x):
            return super().forward(x).relu()

    class Noisy(Straight):
        """Other outputs in training only."""

        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    class TwoInputs(Straight):
        def forward(self, x, y):
            return super().forward(x) + y

    class Mixing(Straight):
        """Linear in rows, but not along the last axis alone."""

        def forward(self, x):
            return super().forward(x) if x.dim() == 2 else super().forward(x.flip(1))

    for cls, words in (
        (Rectified, "gives other outputs"),
        (Noisy, "gives other outputs"),
        (TwoInputs, "raises TypeError"),
        (Mixing, "three axes"),
    ):
        register_layer(cls)
        with pytest.raises(InvalidValue, match=words):
            gs.to_bayesian(cls(4, 4).eval())


def test_a_class_for_rows_alone_is_accepted():
    class Rows(Straight):
        def forward(self, x):
            return torch.mm(x, self.weight.t())

    register_layer(Rows)
    net, x = Rows(4, 3), torch.randn(2, 4)
    torch.testing.assert_close(gs.to_bayesian(net).eval()(x), net(x))


@pytest.mark.parametrize("cls", [int, "Linear", nn.Module, nn.Linear, gs.nn.SparseLinear])
def test_what_cannot_be_registered(cls):
    with pytest.raises(InvalidValue, match=r"subclass of nn\.Module"):
        register_layer(cls)


def test_an_unknown_kind_is_named():
    with pytest.raises(GossamerError, match="linear"):
        register_layer(Flipped, kind="conv")


def test_code_that_reads_attributes_and_the_weight_sees_the_class_s_own():
    register_layer(Flipped, transposed=True)
    net = Flipped(4, 3)
    bnn = gs.to_bayesian(net)
    assert (bnn.nf, bnn.nx, bnn.in_features, bnn.out_features) == (3, 4, 4, 3)
    assert torch.equal(bnn.eval().weight, net.weight)
    half = gs.to_sparse(net, 0.5)
    half.weight.detach().zero_()
    with pytest.raises(InvalidValue, match="was written to"):
        half(torch.ones(1, 4))


def test_hooks_copies_and_shared_weights():
    register_layer(Flipped, transposed=True)
    net = nn.Sequential(Flipped(4, 4), Flipped(4, 4))
    net[1].weight = net[0].weight
    seen = []
    net[1].register_forward_hook(lambda *args: seen.append(1))
    bnn = gs.to_bayesian(net, 0.5).eval()
    assert bnn[0].leading() is bnn[1].leading()
    assert bnn[0].draws_weights
    x = torch.randn(2, 4)
    for other in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(gs.to_bayesian(flipped(), 0.5)))):
        assert isinstance(next(iter(sparse_layers(other).values())).origin.kind, type)
    y = bnn(x)
    assert seen == [1]
    back = gs.to_deterministic(bnn)
    assert back[0].weight is back[1].weight
    torch.testing.assert_close(back(x), y)


def test_frozen_layers_stay_frozen_and_others_do_not():
    register_layer(Flipped, transposed=True)
    net = nn.Sequential(Flipped(3, 3), Flipped(3, 3))
    net[0].requires_grad_(False)
    with torch.no_grad():
        bnn = gs.to_bayesian(net)
    assert [layer.weight_mean.requires_grad for layer in bnn] == [False, True]


def test_a_stored_structure_is_built_again():
    register_layer(Flipped, transposed=True)
    net, x = flipped(), torch.randn(3, 6)
    bnn = gs.to_bayesian(net, 0.5).eval()
    made = skeleton.skeleton(net, skeleton.describe(bnn))
    state = bnn.state_dict()
    whole = gs.nn.replica.replicate(made, state).eval()
    assert torch.equal(whole(x), bnn(x))
    assert [type(m) for m in gs.to_deterministic(whole)[::2]] == [Flipped, Sub, Flipped]
    twins._REGISTERED.clear()
    with pytest.raises(InvalidData, match="register_layer"):
        skeleton.skeleton(net, skeleton.describe(bnn))


def _shaped_like(qualified: str) -> type[nn.Module]:
    module, _, name = qualified.rpartition(".")
    base = Flipped if "transformers" in module else Straight
    return type(
        name, (base,), {"__module__": module, "__qualname__": name, "forward": base.forward}
    )


@pytest.mark.parametrize(
    "qualified", ["transformers.pytorch_utils.Conv1D", "torch_geometric.nn.dense.linear.Linear"]
)
def test_classes_known_by_name(qualified):
    cls = _shaped_like(qualified)
    net, x = nn.Sequential(cls(4, 6), cls(6, 6)), torch.randn(3, 4)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-5, atol=1e-5)
    assert type(gs.to_deterministic(bnn)[1]) is cls


def test_conv1d_of_transformers():
    utils = pytest.importorskip("transformers.pytorch_utils")
    net, x = nn.Sequential(utils.Conv1D(6, 4), utils.Conv1D(6, 6)), torch.randn(2, 3, 4)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-5, atol=1e-5)
    back = gs.to_deterministic(bnn)
    assert type(back[0]) is utils.Conv1D
    assert repr(back[0]) == repr(net[0])


def test_linear_of_torch_geometric():
    dense = pytest.importorskip("torch_geometric.nn.dense.linear")
    net, x = nn.Sequential(dense.Linear(4, 6), dense.Linear(6, 6, bias=False)), torch.randn(3, 4)
    bnn = gs.to_bayesian(net).eval()
    torch.testing.assert_close(bnn(x), net(x), rtol=1e-5, atol=1e-5)
    back = gs.to_deterministic(bnn)
    assert type(back[0]) is dense.Linear
    assert repr(back[1]) == repr(net[1])
    lazy = nn.Sequential(dense.Linear(-1, 6), nn.Linear(6, 6))
    assert set(sparse_layers(gs.to_bayesian(lazy))) == {"1"}
    lazy(x)
    assert set(sparse_layers(gs.to_bayesian(lazy))) == {"0", "1"}
