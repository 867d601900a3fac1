"""Modules with several matrices: attention, recurrent networks, Bilinear, from end to end."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.nn import SparseLayer, replica, skeleton, sparse_layers
from gossamer.nn.candidates import convertible_weights
from gossamer.nn.split import Split


class Sequence(nn.Module):
    """A recurrent network with a head, from [N, T, 4] to three classes."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0].mean(1))


class Attends(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **options)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(4, 4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.pair(x[:, 0], x[:, 1])))


class Subclass(nn.LSTM):
    """Keeps the forward."""

    def greeting(self) -> str:
        return f"{self.hidden_size} units"


class OwnForward(nn.GRU):
    def forward(self, x, hx=None):
        return super().forward(2 * x, hx)


NETS = {
    "lstm": lambda: Sequence(nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), 12),
    "lstm-projected": lambda: Sequence(nn.LSTM(4, 6, proj_size=5, batch_first=True), 5),
    "gru": lambda: Sequence(nn.GRU(4, 6, batch_first=True, bias=False), 6),
    "rnn": lambda: Sequence(nn.RNN(4, 6, 2, nonlinearity="relu", batch_first=True), 6),
    "subclass": lambda: Sequence(Subclass(4, 6, batch_first=True), 6),
    "attention": Attends,
    "attention-separate": lambda: Attends(kdim=4, vdim=4),
    "attention-extra": lambda: Attends(add_bias_kv=True, add_zero_attn=True),
    "bilinear": Pairs,
}
PARTS = {
    "lstm": [f"body.{m}_l{n}{d}" for n in (0, 1) for d in ("", "_reverse") for m in ("ih", "hh")],
    "lstm-projected": ["body.ih_l0", "body.hh_l0", "body.hr_l0"],
    "attention": ["attention.in_proj", "attention.out_proj"],
    "bilinear": ["pair.product"],
}

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 5, 4)


def make(name: str, convert=gs.to_bayesian, sparsity: float = 0.5, **options) -> nn.Module:
    torch.manual_seed(1)
    return convert(NETS[name](), sparsity, **options)


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
@pytest.mark.parametrize("name", NETS)
def test_with_all_weights_outputs_are_torch_s(name, convert, x):
    torch.manual_seed(1)
    net = NETS[name]()
    made = convert(net).eval()
    torch.testing.assert_close(made(x), net.eval()(x), rtol=1e-6, atol=1e-6)
    matrices = [p for p in net.parameters() if p.dim() > 1 and p.shape[0] > 1]
    assert gs.summary(made).numel == sum(p.numel() for p in matrices), "every matrix"
    assert list(sparse_layers(made))[:-1] == PARTS.get(name, list(sparse_layers(made))[:-1])


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
@pytest.mark.parametrize("name", NETS)
def test_the_way_back(name, convert, x):
    net = NETS[name]()
    made = make(name, convert).eval()
    back = gs.to_deterministic(made)
    assert not any(isinstance(m, SparseLayer | Split) for m in back.modules())
    assert [type(m) for m in back.modules()] == [type(m) for m in net.modules()]
    assert [(n, p.shape) for n, p in back.named_parameters()] == [
        (n, p.shape) for n, p in net.named_parameters()
    ]
    torch.testing.assert_close(back(x), made(x), rtol=1e-6, atol=1e-6)
    for module, old in zip(back.modules(), net.modules(), strict=True):
        assert set(vars(module)) == set(vars(old))
    doubled = {n: 2 * p.detach() for n, p in back.named_parameters()}
    there = torch.func.functional_call(back, doubled, x)
    back.load_state_dict(doubled)
    torch.testing.assert_close(there, back(x))
    gs.to_bayesian(back, 0.5)


@pytest.mark.parametrize("backend", ["auto", "masked"])
@pytest.mark.parametrize("name", NETS)
def test_trains_through_swaps(name, backend, x):
    bnn = make(name, backend=backend)
    y = torch.arange(8) % 3
    opt = torch.optim.Adam(gs.parameter_groups(bnn, lr=1e-2))
    elbo = gs.ELBO(bnn, num_data=8)
    subspace = gs.Subspace(bnn, opt, total_steps=12, update_every=2)
    before = {n: (m.nnz, m.support.positions().clone()) for n, m in sparse_layers(bnn).items()}
    swaps = 0
    for _ in range(8):
        loss = elbo(F.cross_entropy(bnn(x), y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        swaps += subspace.step() is not None
    assert swaps >= 2
    moved = 0
    for n, layer in sparse_layers(bnn).items():
        assert layer.nnz == before[n][0]
        assert (layer.leading().grad != 0).any(), n
        moved += not torch.equal(layer.support.positions(), before[n][1])
    assert moved >= len(before) - 1


@pytest.mark.parametrize("name", NETS)
def test_addition_scores_are_the_dense_gradient(name, x):
    """Of a full network, the gradient to every weight is that of torch's own module."""
    torch.manual_seed(1)
    net = NETS[name]().double()
    made = gs.to_sparse(net)
    made(x.double()).square().sum().backward()
    net(x.double()).square().sum().backward()
    found = {id(p): p.grad for p in made.parameters()}
    wanted = gs.to_deterministic(made)
    for (n, p), (_, q) in zip(net.named_parameters(), wanted.named_parameters(), strict=True):
        assert torch.equal(p, q), n
    theirs = sorted(float(p.grad.abs().sum()) for p in net.parameters())
    ours = sorted(float(grad.abs().sum()) for grad in found.values())
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_state_copies_pickles_and_replicas_are_bit_equal(name, x):
    bnn, other = make(name).eval(), gs.to_bayesian(NETS[name](), 0.5).eval()
    bnn.requires_grad_(False), other.requires_grad_(False)  # torch attends otherwise with them
    other.load_state_dict(bnn.state_dict())
    y = bnn(x)
    assert torch.equal(other(x), y)
    assert torch.equal(copy.deepcopy(bnn)(x), y)
    assert torch.equal(pickle.loads(pickle.dumps(bnn))(x), y)
    assert torch.equal(replica.replicate(bnn).eval()(x), y)
    made = skeleton.skeleton(NETS[name](), skeleton.describe(bnn))
    assert torch.equal(replica.replicate(made, bnn.state_dict()).eval()(x), y)
    held = {id(t) for m in bnn.modules() for v in vars(m).values() if type(v) is list for t in v}
    assert not any(isinstance(t, Tensor) for t in held), "no dense weight is kept"


@pytest.mark.parametrize("name", NETS)
def test_sampling_is_seeded(name, x):
    bnn = make(name, posterior_std=0.3).eval()
    mean = bnn(x)
    with gs.sampling(bnn, seed=3):
        one, two = bnn(x), bnn(x)
    with gs.sampling(bnn, seed=4):
        three = bnn(x)
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert not torch.equal(one, mean)
    first, second = (gs.predict(bnn, x, num_samples=3, seed=5).probs for _ in range(2))
    assert torch.equal(first, second)
    assert torch.isfinite(gs.kl_divergence(bnn))


def test_one_draw_serves_all_time_steps(monkeypatch):
    """Against torch's LSTM with that θ, in training."""
    torch.manual_seed(0)
    bnn = gs.to_bayesian(nn.LSTM(3, 4), 0.4, posterior_std=0.3).double().train()
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    shown = []
    real = SparseLayer.computed_weight
    monkeypatch.setattr(
        gs.nn.BayesianLayer,
        "computed_weight",
        lambda self: shown.append(real(self)) or shown[-1],
    )
    y, _ = bnn(x)
    assert len(shown) == 2, "one draw of each matrix per pass"
    plain = gs.to_deterministic(bnn)
    plain.weight_ih_l0.data, plain.weight_hh_l0.data = shown[0].detach(), shown[1].detach()
    torch.testing.assert_close(y, plain(x)[0], rtol=1e-12, atol=1e-12)
    assert not torch.equal(y, bnn(x)[0]), "another pass, another draw"
    y.sum().backward()
    assert (bnn.hh_l0.weight_raw_std.grad != 0).any()


OPTIONS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    (nn.LSTM, {"num_layers": 2, "bias": False, "batch_first": True}),
    (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    (nn.RNN, {"batch_first": True}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_inputs_of_recurrent_networks(kind, options):
    """Packed, unbatched, with a state: all outputs are torch's."""
    torch.manual_seed(0)
    net = kind(3, 4, **options)
    made = gs.to_bayesian(net).eval()
    x = torch.randn(5, 5, 3)
    packed = pack_padded_sequence(x, [2, 5, 1, 4, 5], net.batch_first, enforce_sorted=False)
    ours, theirs = made(packed), net(packed)
    for one, two in zip(pad_packed_sequence(ours[0]), pad_packed_sequence(theirs[0]), strict=True):
        torch.testing.assert_close(one, two)
    for given in ((x,), (x[0],), (x, theirs[1])):
        ours, theirs = made(*given), net(*given)
        torch.testing.assert_close(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1])
    with pytest.raises((RuntimeError, ValueError)):
        made(torch.randn(2, 2, 2, 3))
    made.flatten_parameters()
    assert torch.equal(made.double()(x.double())[0], made(x.double())[0])


def test_dropout_between_layers_is_torch_s():
    net = nn.GRU(3, 4, 3, dropout=0.5)
    made = gs.to_sparse(net).train()
    x = torch.randn(5, 2, 3)
    outputs = []
    for module in (net, made):
        torch.manual_seed(3)
        outputs.append(module(x)[0])
    torch.testing.assert_close(*outputs)


def test_bilinear_takes_leading_axes():
    net, (a, b) = nn.Bilinear(3, 4, 5, bias=False), (torch.randn(2, 6, 3), torch.randn(2, 6, 4))
    torch.testing.assert_close(gs.to_sparse(net)(a, b), net(a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"body.ih_l0", "body.hh_l0", "head"}),
        ({"exclude": ["body"]}, {"head"}),
        ({"exclude": [nn.LSTM]}, {"head"}),
        ({"exclude": [Subclass]}, {"head"}),
        ({"exclude": ["body.hh_*"]}, {"body.ih_l0", "head"}),
        ({"include": ["body"]}, {"body.ih_l0", "body.hh_l0"}),
        ({"include": [Subclass]}, {"body.ih_l0", "body.hh_l0"}),
        ({"include": ["body.hh_l0"]}, {"body.hh_l0"}),
    ],
)
def test_include_and_exclude(options, expected, x):
    net = NETS["subclass"]()
    bnn = gs.to_bayesian(net, **options).eval()
    assert set(sparse_layers(bnn)) == expected
    torch.testing.assert_close(bnn(x), net(x))
    back = gs.to_deterministic(bnn)
    assert back.body.greeting() == "6 units"
    if "body.ih_l0" not in expected and "body.hh_l0" not in expected:
        assert type(bnn.body) is Subclass
        left = {row.name: row.reason for row in gs.summary(bnn).unconverted}
        assert left == {"body": "left out by include or exclude"}


def test_what_is_left_in_place_is_the_very_module():
    net = NETS["lstm"]()
    body = net.body
    bnn = gs.to_bayesian(net, exclude=["body"], inplace=True)
    assert bnn is net
    assert bnn.body is body
    with pytest.raises(InvalidValue, match="matches no module"):
        gs.to_bayesian(NETS["gru"](), include=["body.ih_l7"])
    bare = nn.LSTM(2, 2)
    with pytest.raises(InvalidValue, match="matches no module"):
        gs.to_bayesian(nn.Sequential(bare), exclude=["nothing"], inplace=True)
    assert type(bare) is nn.LSTM


def test_modules_that_compute_otherwise_are_left():
    net = nn.Sequential(OwnForward(3, 3), nn.Linear(3, 3), nn.Embedding(3, 4))
    net.append(parametrizations.weight_norm(nn.GRU(3, 3), "weight_hh_l0"))
    with pytest.warns(UserWarning, match="only 9 of"):
        bnn = gs.to_bayesian(net)
    assert set(sparse_layers(bnn)) == {"1"}
    left = {row.name: row.reason for row in gs.summary(bnn).unconverted}
    assert "computes in a way of its own" in left["0"]
    assert "rows are looked up" in left["2"]
    assert "parametrization" in left["3"]


def test_tied_and_shared_modules_stay_so(x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.GRU(4, 4, batch_first=True)
            self.again = self.first
            self.other = nn.GRU(4, 4, batch_first=True)
            self.other.weight_hh_l0 = self.first.weight_hh_l0
            self.pair, self.same = nn.Bilinear(4, 4, 2), nn.Bilinear(4, 4, 2)
            self.same.weight = self.pair.weight

        def forward(self, x):
            return self.other(self.again(self.first(x)[0])[0])[0]

    torch.manual_seed(0)
    net = Twice()
    bnn = gs.to_bayesian(net, 0.3, posterior_std=0.2)
    assert bnn.first is bnn.again
    assert bnn.first.hh_l0.leading() is bnn.other.hh_l0.leading()
    assert all(m.draws_weights for m in (bnn.first.ih_l0, bnn.first.hh_l0, bnn.other.hh_l0))
    assert not bnn.other.ih_l0.draws_weights
    assert type(bnn.pair) is nn.Bilinear, "another shape would end the sharing"
    back = gs.to_deterministic(bnn.eval())
    assert back.first is back.again
    assert back.first.weight_hh_l0 is back.other.weight_hh_l0
    torch.testing.assert_close(back(x), bnn(x))


def test_a_network_named_shared_has_one_draw_in_a_pass():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNN(3, 3, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0] - self.cell(x)[0]

    torch.manual_seed(0)
    x = torch.randn(2, 4, 3)
    assert (gs.to_bayesian(Loop(), posterior_std=0.3).train()(x) != 0).any()
    assert (gs.to_bayesian(Loop(), posterior_std=0.3, shared=["cell"]).train()(x) == 0).all()


def test_hooks_go_along_and_come_back(x):
    net, seen = NETS["lstm"](), []
    handle = net.body.register_forward_hook(lambda m, i, o: seen.append(type(m).__name__))
    bnn = gs.to_bayesian(net, inplace=True).eval()
    bnn(x)
    gs.to_deterministic(bnn, inplace=True)(x)
    assert seen == ["SplitLSTM", "LSTM"]
    handle.remove()
    net(x)
    assert len(seen) == 2


def test_frozen_matrices_stay_frozen():
    net = NETS["lstm"]()
    net.body.requires_grad_(False)
    bnn = gs.to_bayesian(net, 0.5)
    assert not any(p.requires_grad for p in bnn.body.parameters())
    assert not any(p.requires_grad for p in gs.to_deterministic(bnn).body.parameters())


def test_weights_are_counted_and_drawn_without_a_conversion():
    for make_net in NETS.values():
        net = make_net()
        weights = convertible_weights(net)
        assert sum(map(Tensor.numel, weights)) == gs.summary(gs.to_sparse(net)).numel
        with torch.no_grad():
            for weight in weights:
                weight.fill_(7.0)
        assert all((p == 7.0).all() for p in net.parameters() if p.dim() > 1 and p.shape[0] > 1)
        assert not any(isinstance(m, Split) for m in net.modules())


def test_methods_take_them(x):
    for name in ("lstm", "attention", "bilinear"):
        method = gs.build(
            "ssvi", NETS[name](), num_data=8, total_steps=4, sparsity=0.5, update_every=2
        )
        for _ in range(4):
            method.step((x, torch.arange(8) % 3))
        assert torch.isfinite(gs.predict(method, x, num_samples=2).probs).all()


def test_a_posterior_file_holds_them(tmp_path, x):
    for name in ("lstm", "attention", "bilinear"):
        method = gs.build("ssvi", NETS[name](), num_data=8, total_steps=2, sparsity=0.5)
        method.step((x, torch.arange(8) % 3))
        posterior = method.posterior()
        posterior.save(tmp_path / name)
        loaded = gs.load(tmp_path / name, network=NETS[name]())
        one, two = (gs.predict(p, x, num_samples=3, seed=1).probs for p in (posterior, loaded))
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["lstm", "attention", "bilinear"])
def test_compiled_they_give_the_same(name, x):
    """Recurrent networks stay out of the graph, as torch's own do."""
    bnn = make(name).eval().requires_grad_(False)
    compiled = torch.compile(bnn, backend="eager")
    torch.testing.assert_close(compiled(x), bnn(x))
    torch._dynamo.reset()
