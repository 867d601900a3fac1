"""What a conversion leaves, and says of it; what converted layers show of the originals."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

import gossamer as gs
from gossamer.errors import InvalidValue


class Recurrent(nn.Module):
    """Most of its weights are those of a cell, which has no twin."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTMCell(8, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x)[0])


class Transposed(nn.Module):
    """A linear map that is no ``nn.Linear``, as GPT-2 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        return x @ self.weight


class Named(nn.Linear):
    """A subclass that keeps torch's forward."""

    def __init__(self, *args, label="", **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.label = label

    def greeting(self) -> str:
        return f"I am {self.label}"


def blocks() -> nn.Module:
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    return nn.ModuleDict({"body": body, "head": nn.Linear(4, 2), "act": nn.ReLU()})


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
@pytest.mark.parametrize("key", ["include", "exclude"])
@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("hed", "such as 'head'"),
        ("body.3", "such as 'body.*'"),
        ("body", r"write 'body\.\*'"),
        ("act", r"write 'act\.\*'"),
    ],
)
def test_a_name_that_matches_nothing_is_an_error(convert, key, pattern, hint):
    with pytest.raises(InvalidValue, match=f"{key} = '{pattern}': matches no module.*{hint}"):
        convert(blocks(), **{key: ["head", pattern]})


def test_names_of_what_cannot_convert_and_classes_may_be_listed():
    net = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4))
    assert gs.summary(gs.to_bayesian(net, exclude=["0", nn.Conv2d])).numel == 16
    with pytest.raises(InvalidValue, match=r"exclude = '7'"):
        gs.to_bayesian(net, exclude=iter(["7"]))


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_a_network_that_hardly_converts_is_warned_of(convert):
    rest = 4 * 32 * (8 + 32)
    with pytest.warns(
        UserWarning,
        match=rf"only 128 of {128 + rest} weights .*\(2\.4%\) of Recurrent.*left: LSTMCell "
        rf"\({rest} weights, body: LSTMCell has no sparse layer",
    ) as caught:
        convert(Recurrent(), 0.5)
    assert [w.filename for w in caught] == [__file__]


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (Recurrent(), {"exclude": ["body"]}),
        (Recurrent(), {"exclude": [nn.LSTMCell]}),
        (nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8)), {}),
        (nn.Sequential(nn.LayerNorm((8, 8)), nn.Flatten(), nn.Linear(64, 1)), {}),
        (blocks(), {"include": ["head"]}),
        (nn.Sequential(Transposed(), nn.Linear(16, 16)), {}),
    ],
)
def test_what_is_wanted_or_no_linear_map_is_not(net, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gs.to_bayesian(net, 0.5, **options)


def test_a_tied_head_belongs_to_its_embedding():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body = nn.Embedding(50, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.table.weight

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gs.summary(gs.to_bayesian(Tied())).numel == 64


def test_a_network_without_a_convertible_layer_says_what_it_has():
    net = nn.Sequential(Transposed(), Transposed(), nn.LSTMCell(2, 2))
    with pytest.raises(
        InvalidValue,
        match=r"has no layer to convert; found Transposed \(512 weights, 0: Transposed has no "
        r"sparse layer; it stays deterministic\), LSTMCell \(",
    ):
        gs.to_bayesian(net)
    with pytest.raises(InvalidValue, match=r"found Linear \(.*left out by include or exclude"):
        gs.to_bayesian(nn.Linear(3, 3), exclude=[nn.Linear])
    with pytest.raises(InvalidValue, match=r"has no layer to convert; it needs a linear"):
        gs.to_bayesian(nn.ReLU())


@pytest.mark.filterwarnings("ignore:only .* weights of linear maps:UserWarning")
def test_the_summary_counts_the_whole_network():
    net = Recurrent()
    costs = gs.summary(gs.to_bayesian(net, 0.5, absent_variance="linear"))
    total = sum(p.numel() for p in net.parameters())
    assert (costs.numel, costs.parameters) == (128, total)
    assert costs.converted == 128 / total
    assert f"network: 128 of {total} parameters ({128 / total:.1%}) are weights of" in str(costs)
    assert costs.to_json()["parameters"] == total
    assert gs.summary(nn.ReLU()).converted == 0.0


CONVS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=1),
    nn.Conv2d(4, 6, (3, 2), dilation=(2, 1), groups=2, padding_mode="circular", padding=(1, 2)),
    nn.Conv3d(2, 4, 3),
    nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
]
CONV_NAMES = "in_channels out_channels kernel_size stride padding dilation groups padding_mode"


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_converted_layers_have_the_attributes_of_the_originals(convert):
    linear = convert(nn.Linear(5, 3), 0.5)
    assert (linear.in_features, linear.out_features) == (5, 3)
    for module in CONVS:
        layer = convert(module, 0.5)
        for name in [*CONV_NAMES.split(), "output_padding", "transposed"]:
            assert getattr(layer, name) == getattr(module, name), name
        with pytest.raises(AttributeError):
            layer.stride = (1,)
    uneven = convert(nn.Conv1d(2, 2, 4, padding="same"), 0.5)
    assert uneven.padding == "same"


def test_a_parent_may_read_the_geometry():
    class Strided(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 4, 3, stride=2)

        def forward(self, x):
            return self.conv(x[..., :: self.conv.stride[0]])

    assert gs.to_bayesian(Strided(), 0.5)(torch.ones(1, 2, 16)).shape == (1, 4, 3)


@pytest.mark.parametrize("convert", [gs.to_bayesian, gs.to_sparse])
def test_the_way_back_gives_the_old_class_and_attributes(convert):
    net = nn.Sequential(Named(4, 4, label="first"), nn.Linear(4, 4), Named(4, 2, bias=False))
    net[1].is_plain = True
    middle = pickle.loads(pickle.dumps(copy.deepcopy(convert(net))))
    back = gs.to_deterministic(middle)
    assert [type(m) for m in back] == [Named, nn.Linear, Named]
    assert back[0].greeting() == "I am first"
    assert back[1].is_plain
    assert back[2].bias is None
    x = torch.randn(3, 4)
    assert torch.allclose(back(x), net(x), atol=1e-6)
    assert isinstance(gs.to_bayesian(back)[0].origin.kind, type)
    assert convert(nn.Linear(2, 2)).origin is None


@pytest.mark.filterwarnings("ignore:only .* weights of linear maps:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_attention_may_be_quantised_after_the_way_back():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    back = gs.to_deterministic(gs.to_bayesian(Attends(), 0.5)).eval()
    assert type(back.attention.out_proj) is NonDynamicallyQuantizableLinear
    assert quantize_dynamic(back, {nn.Linear})(torch.randn(2, 3, 8)).shape == (2, 3, 8)
