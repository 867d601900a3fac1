"""Attention: the Jacobian where variances are small, draws where they are not, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.errors import InvalidValue
from gossamer.prediction.moments import Moments, rule_of
from gossamer.prediction.moments.attend import function_rule
from gossamer.prediction.moments.propagate import propagate, record

SHAPES = {"q": (2, 3, 4, 5), "k": (2, 3, 6, 5), "v": (2, 3, 6, 7)}  # [N, heads, length, head]
MASKS = {
    "none": {},
    "added": {"attn_mask": torch.randn(4, 6, dtype=torch.float64)},
    "taken out": {"attn_mask": torch.arange(6) < torch.tensor([[6], [1], [3], [5]])},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.9},
}


def some(part: str, scale: float) -> Moments:
    draw = torch.Generator().manual_seed(ord(part))
    mean = torch.randn(SHAPES[part], generator=draw, dtype=torch.float64)
    return Moments(mean, scale * torch.rand(mean.shape, generator=draw, dtype=torch.float64))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("fixed", ["", "q", "kv"])
def test_small_variances_go_by_the_jacobian(mask: str, fixed: str) -> None:
    parts = {name: some(name, 1e-9) for name in "qkv"}
    given = [x.mean if name in fixed else x for name, x in parts.items()]
    got = function_rule(*given, **MASKS[mask])

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **MASKS[mask])

    means = tuple(x.mean for x in parts.values())
    wanted = torch.zeros(got.mean.numel(), dtype=torch.float64)
    jacobians = torch.autograd.functional.jacobian(attention, means)
    for (name, x), jacobian in zip(parts.items(), jacobians, strict=True):
        if name not in fixed:
            wanted += jacobian.reshape(len(wanted), -1).square() @ x.variance.flatten()
    torch.testing.assert_close(got.mean, attention(*means), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.variance.flatten(), wanted, rtol=1e-6, atol=1e-20)


def test_draws_of_independent_elements() -> None:
    """Stds of 0.3 beside means of size 1: deviations off by less than 12 %, means by a third."""
    parts = [some(name, 0.18) for name in "qkv"]
    draw = torch.Generator().manual_seed(6)
    drawn = F.scaled_dot_product_attention(
        *(
            x.mean + x.variance.sqrt() * torch.randn(20_000, *x.mean.shape, generator=draw).double()
            for x in parts
        )
    )
    got = function_rule(*parts)
    bias = (got.mean - drawn.mean(0)).abs() / drawn.std(0)
    assert bias.max() < 0.33
    assert bias.mean() < 0.05
    assert (got.variance.sqrt() / drawn.std(0) - 1.0).abs().max() < 0.12


class Block(nn.Module):
    """A block of a vision transformer, with the attention of torch or one by hand."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)])
        self.attention = None if by_hand else nn.MultiheadAttention(32, 4, batch_first=True)
        self.qkv = nn.Linear(32, 96) if by_hand else None
        self.out = nn.Linear(32, 32) if by_hand else None
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def attend(self, x: Tensor) -> Tensor:
        if self.attention is not None:
            return self.attention(x, x, x)[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Vision(nn.Module):
    """Patches ``[B, 16, 12]`` to logits ``[B, 10]``, read off the first token."""

    def __init__(self, by_hand: bool = False, sharp: float = 1.0, pool: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.patches, self.places = nn.Linear(12, 32), nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.block, self.norm, self.head = Block(by_hand), nn.LayerNorm(32), nn.Linear(32, 10)
        attention = self.block.attention
        if attention is not None:
            with torch.no_grad():
                attention.in_proj_weight[:64] *= sharp

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.block(self.patches(x) + self.places))
        return self.head(x.mean(1) if self.pool else x[:, 0])


@pytest.mark.parametrize("kind", ["torch's", "torch's, sharp", "by hand"])
@pytest.mark.parametrize("noise", ["weight", "local"])
def test_a_vision_transformer_agrees_with_samples(kind: str, noise: str) -> None:
    torch.manual_seed(1)
    net = Vision(by_hand=kind == "by hand", sharp=2.0 if "sharp" in kind else 1.0)
    bnn = gs.to_bayesian(net, 0.5, posterior_std=0.05).eval()
    x = torch.randn(8, 16, 12)
    with torch.no_grad():
        got = propagate(record(bnn), x)
        drawn = torch.stack([_draw(bnn, x, seed, noise) for seed in range(800)])
    assert isinstance(got, Moments)
    # 800 draws know a mean to 3.5 % of its std and a std to 2.5 %; the largest of 80 to three
    # times that.
    spread = drawn.std(0)
    assert ((got.mean - drawn.mean(0)).abs() / spread).mean() < 0.08
    ratio = got.variance.sqrt() / spread
    assert (ratio - 1.0).abs().max() < 0.15
    assert (ratio.mean() - 1.0).abs() < 0.03


@pytest.mark.parametrize(("noise", "share"), [("weight", 0.80), ("local", 0.97)])
def test_tokens_that_are_averaged_share_their_weights(noise: str, share: float) -> None:
    """A known limit, as docs/prediction.md states it."""
    torch.manual_seed(1)
    bnn = gs.to_bayesian(Vision(pool=True), 0.5, posterior_std=0.05).eval()
    x = torch.randn(8, 16, 12)
    with torch.no_grad():
        got = propagate(record(bnn), x)
        drawn = torch.stack([_draw(bnn, x, seed, noise) for seed in range(800)])
    assert isinstance(got, Moments)
    ratio = (got.variance.sum() / drawn.var(0).sum()).sqrt()
    assert (ratio - share).abs() < 0.03, float(ratio)


def _draw(net: nn.Module, x: Tensor, seed: int, noise: str) -> Tensor:
    with gs.sampling(net, seed=seed, noise=noise):
        return net(x)


FORMS = {
    "batch first": ({"batch_first": True}, {}),
    "length first": ({}, {}),
    "padded": ({"batch_first": True}, {"key_padding_mask": torch.arange(6) > 3}),
    "masked": ({"batch_first": True}, {"attn_mask": torch.ones(5, 6).triu(1).bool()}),
    "other widths": ({"batch_first": True, "kdim": 4, "vdim": 3}, {}),
    "no bias": ({"batch_first": True, "bias": False}, {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_module_has_its_means(form: str) -> None:
    """Cross attention of two sources: means are the network's, variances those of the function."""
    options, call = FORMS[form]
    torch.manual_seed(0)
    net = gs.to_bayesian(nn.MultiheadAttention(8, 2, **options), 0.5, posterior_std=1e-5).eval()
    query, key = torch.randn(3, 5, 8), torch.randn(3, 6, options.get("kdim", 8))
    value = torch.randn(3, 6, options["vdim"]) if "vdim" in options else key
    if "key_padding_mask" in call:
        call = {"key_padding_mask": call["key_padding_mask"].expand(3, 6)}
    if not options.get("batch_first"):
        query, key = query.transpose(0, 1), key.transpose(0, 1)
        value = key
    rule = rule_of(net)
    assert rule is not None
    with torch.no_grad():
        got, _ = rule(net, query, key, value, **call)
        wanted = net(query, key, value, **call)[0]
        drawn = []
        for seed in range(400):
            with gs.sampling(net, seed=seed):
                drawn.append(net(query, key, value, **call)[0])
    torch.testing.assert_close(got.mean, wanted, rtol=1e-5, atol=1e-6)
    # At such a σ the network is linear in its noise; elements share weights, so the mean ratio.
    ratio = got.variance.sqrt() / torch.stack(drawn).double().std(0).to(got.variance)
    assert (ratio.median() - 1.0).abs() < 0.15


class Reads(nn.Module):
    def __init__(self, attention: nn.Module, use: str) -> None:
        super().__init__()
        self.first, self.attention, self.use = nn.Linear(8, 8), attention, use

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.use == "dropout":
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
        y, weights = self.attention(x, x, x)
        return y + weights.mean(-1, keepdim=True) if self.use == "weights" else y


@pytest.mark.parametrize(
    ("use", "options", "told"),
    [
        ("weights", {}, "attention weights: have no rule.*need_weights=False"),
        ("dropout", {}, "dropout_p of attention: has no rule"),
        ("", {"add_bias_kv": True}, "add_bias_kv or add_zero_attn of attention"),
    ],
)
def test_what_has_no_rule(use: str, options: dict[str, bool], told: str) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    bnn = gs.to_bayesian(Reads(attention, use), posterior_std=0.1)
    with pytest.raises(InvalidValue, match=told) as found:
        gs.predict_moments(bnn, torch.randn(3, 5, 8), class_dim=-1)
    assert "use predict" in str(found.value)


@pytest.mark.parametrize(
    "module",
    [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.GRU(8, 8, batch_first=True)],
)
def test_a_module_that_holds_random_layers_is_not_taken_for_fixed(module: nn.Module) -> None:
    """It comes first, so that its inputs are fixed: once it gave the means, and variance 0."""
    bnn = gs.to_bayesian(nn.Sequential(module), posterior_std=0.1)
    with pytest.raises(InvalidValue, match=r"module 0 = \w+: has no rule for moments"):
        gs.predict_moments(bnn, torch.randn(3, 5, 8), class_dim=-1)
