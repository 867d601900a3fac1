"""Moments after softmax attention: of independent Gaussians, to first order.

With scores s_ij = c q_i·k_j, weights a_i = softmax(s_i) and y_i = Σ_j a_ij v_j,

    ∂y_id/∂v_jd = a_ij
    ∂y_id/∂k_je = c a_ij (v_jd - y_id) q_ie
    ∂y_id/∂q_ie = c Σ_j a_ij (v_jd - y_id) k_je

Means are those of the network at the means. In the variance of a score the product of both
variances is counted too: keys meet q_ie² + var(q_ie).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InvalidValue
from gossamer.nn.attention import SplitAttention, merged
from gossamer.prediction.moments.form import Moments

Some = Moments | Tensor


class Unread(Moments):
    """What a rule does not compute; whoever reads it is told."""

    def __init__(self, name: str, hint: str) -> None:
        self._said = (name, hint)

    @property
    def _pair(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        name, hint = self._said
        raise InvalidValue(name, None, "have no rule for moments", f"{hint}, or use predict")


def attended(q: Some, k: Some, v: Some, mask: Tensor | None, scale: float) -> Moments:
    """Attention of queries ``[..., L, E]`` over keys ``[..., S, E]`` and values ``[..., S, D]``.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        mask: Added to the scores ``[..., L, S]``.
        scale: c, the factor of the scores.
    """
    q, k, v = (_moments(part) for part in (q, k, v))
    scores = (scale * q.mean) @ k.mean.transpose(-2, -1)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    y = weights @ v.mean
    squares = weights.square()
    variance = squares @ v.variance
    # Keys: Σ_j a_ij² (v_jd - y_id)² var(s_ij), multiplied out.
    size = scale**2 * (q.mean.square() + q.variance)
    by_key = squares * (size @ k.variance.transpose(-2, -1))
    variance = variance + by_key @ v.mean.square() - 2.0 * y * (by_key @ v.mean)
    variance = variance + y.square() * by_key.sum(-1, keepdim=True)
    # Queries: the covariance of values and keys under the weights, [..., L, D, E].
    joint = (v.mean.unsqueeze(-1) * k.mean.unsqueeze(-2)).flatten(-2)
    joint = (weights @ joint).view(*y.shape, k.mean.shape[-1])
    joint = joint - y.unsqueeze(-1) * (weights @ k.mean).unsqueeze(-2)
    by_query = joint.square() @ (scale**2 * q.variance).unsqueeze(-1)
    return Moments(y, (variance + by_query.squeeze(-1)).clamp(min=0.0))


def function_rule(
    query: Some,
    key: Some,
    value: Some,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Moments:
    """``F.scaled_dot_product_attention``."""
    _refuse("dropout_p", dropout_p, "evaluate without dropout")
    _refuse("enable_gqa", enable_gqa, "repeat the keys and values")
    _refuse("attn_mask", isinstance(attn_mask, Moments), "give a mask without noise")
    q, k = _moments(query), _moments(key)
    length, source = q.mean.shape[-2], k.mean.shape[-2]
    if is_causal:
        attn_mask = q.mean.new_ones((length, source), dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # here True takes part
        attn_mask = q.mean.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, -torch.inf)
    factor = 1.0 / sqrt(q.mean.shape[-1]) if scale is None else scale
    return attended(q, k, value, attn_mask, factor)


def module_rule(
    module: SplitAttention,
    through: Callable[[nn.Module, Some], Some],
    query: Some,
    key: Some,
    value: Some,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Moments, Unread | None]:
    """``nn.MultiheadAttention`` as it is converted; ``through`` is the rule of its layers."""
    _refuse("add_bias_kv or add_zero_attn", module.reads(""), "leave them out")
    _refuse("is_causal", is_causal and attn_mask is None, "give the mask as well")
    is_batched = len(_shape(query)) == 3
    q, k, v = (_moments(part) for part in _heads(module, through, query, key, value))
    mask = merged(attn_mask, key_padding_mask, q.mean, k.mean)
    y = attended(q, k, v, mask, 1.0 / sqrt(module.head_dim))
    y = _moments(through(module.out_proj, y.each(lambda p: p.transpose(1, 2).flatten(-2))))
    if not is_batched:
        y = y.each(lambda part: part.squeeze(0))
    elif not module.batch_first:
        y = y.each(lambda part: part.transpose(0, 1))
    hint = "call the module with need_weights=False"
    return y, Unread("attention weights", hint) if need_weights else None


def _heads(
    module: SplitAttention,
    through: Callable[[nn.Module, Some], Some],
    query: Some,
    key: Some,
    value: Some,
) -> list[Some]:
    """Queries, keys and values ``[N, heads, length, head]``."""
    known: dict[int, Some] = {}  # one source is projected once

    def projected(x: Some, part: int) -> Some:
        rows = _each(x, lambda p: p.unsqueeze(0) if p.dim() == 2 else p)
        if len(_shape(x)) == 3 and not module.batch_first:
            rows = _each(x, lambda p: p.transpose(0, 1))
        layers: dict[str, Any] = dict(module._modules)
        if "in_proj" in module.parts:
            if id(x) not in known:
                known[id(x)] = through(layers["in_proj"], rows)
            return _each(known[id(x)], lambda p: p.chunk(3, -1)[part])
        found = through(layers[("q_proj", "k_proj", "v_proj")[part]], rows)
        if module.in_proj_bias is None:
            return found
        bias = module.in_proj_bias.chunk(3)[part]
        return found + bias if isinstance(found, Tensor) else _shifted(found, bias)

    parts = (projected(x, part) for part, x in enumerate((query, key, value)))
    heads = module.num_heads
    return [_each(x, lambda p: p.unflatten(-1, (heads, -1)).transpose(1, 2)) for x in parts]


def _moments(x: Some) -> Moments:
    return x if isinstance(x, Moments) else Moments(x, torch.zeros_like(x))


def _shifted(x: Moments, by: Tensor) -> Moments:
    return Moments(x.mean + by, x.variance)


def _each(x: Some, function: Any) -> Some:
    found: Some = x.each(function) if isinstance(x, Moments) else function(x)
    return found


def _shape(x: Some) -> torch.Size:
    return x.mean.shape if isinstance(x, Moments) else x.shape


def _refuse(name: str, is_so: object, hint: str) -> None:
    if is_so:
        raise InvalidValue(
            f"{name} of attention", None, "has no rule for moments", f"{hint}, or use predict"
        )
