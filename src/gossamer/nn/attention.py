"""``nn.MultiheadAttention`` whose in-projection is a layer."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.errors import InvalidValue
from gossamer.nn.split import Split, linear_of, weights_and_biases

_SEPARATE = ("q_proj", "k_proj", "v_proj")


class SplitAttention(Split, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` with ``in_proj``, or ``q_proj``, ``k_proj`` and ``v_proj``.

    Attention over one input projects it once. Where queries and keys come from two, the layer is
    called for each, and the outputs that are not wanted are dropped. With ``add_bias_kv`` or
    ``add_zero_attn``, and for nested tensors, torch's forward reads the dense weights instead.
    """

    torch_class = nn.MultiheadAttention
    in_proj: nn.Linear

    @classmethod
    def taken(cls, module: nn.Module) -> set[str]:
        """The matrices; a bias that three layers share stays with the module."""
        if _is_packed(module):
            has_bias = module._parameters.get("in_proj_bias") is not None
            return {"in_proj_weight", "in_proj_bias"} if has_bias else {"in_proj_weight"}
        return {f"{name}_weight" for name in _SEPARATE}

    @classmethod
    def layers_of(cls, module: nn.Module) -> dict[str, nn.Linear]:
        """One layer of all three matrices, or three."""
        names = ("in_proj",) if _is_packed(module) else _SEPARATE
        weights = {name: module._parameters[f"{name}_weight"] for name in names}
        biases = {"in_proj": module._parameters.get("in_proj_bias")}
        return {n: linear_of(w, biases.get(n)) for n, w in weights.items() if w is not None}

    @classmethod
    def of(cls, module: nn.Module) -> Split:
        """As everywhere; torch's names for the matrices are properties here."""
        split = super().of(module)
        for name in ("in_proj", *_SEPARATE):
            split._parameters.pop(f"{name}_weight", None)
        return split

    def whole(self) -> nn.Module:
        """As everywhere; parameters stand in torch's order, ``None`` for those there are not."""
        module = super().whole()
        own = module._parameters
        names = (*(f"{n}_weight" for n in (*_SEPARATE, "in_proj")), "in_proj_bias")
        module.__dict__["_parameters"] = {**{n: own.get(n) for n in names}, **own}
        return module

    def parameters_from(self, layers: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """The matrices by torch's names."""
        own = weights_and_biases(layers)
        found = {f"{name}_weight": weight for name, (weight, _) in own.items()}
        bias = own["in_proj"][1] if "in_proj" in own else None
        return found if bias is None else {**found, "in_proj_bias": bias}

    def reads(self, part: str) -> bool:
        """Where torch's forward computes."""
        return self.bias_k is not None or self.add_zero_attn

    @property
    def in_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        """The dense matrix of all three projections; ``None`` if they are three."""
        return self._weight_of("in_proj")

    @property
    def q_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        """The dense matrix of queries, if it stands alone."""
        return self._weight_of("q_proj")

    @property
    def k_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        """The dense matrix of keys, if it stands alone."""
        return self._weight_of("k_proj")

    @property
    def v_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        """The dense matrix of values, if it stands alone."""
        return self._weight_of("v_proj")

    @property
    def in_proj_bias(self) -> Tensor | None:  # type: ignore[override]
        """The bias of all three projections."""
        own: Any = self._modules["in_proj"] if "in_proj" in self.parts else None
        found = self._parameters.get("in_proj_bias") if own is None else own.bias
        assert found is None or isinstance(found, Tensor)
        return found

    def _weight_of(self, part: str) -> Tensor | None:
        layer: Any = self._modules[part] if part in self.parts else None
        return None if layer is None else layer.weight

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``."""
        if self.reads("") or query.is_nested or key.is_nested or value.is_nested:
            return super().forward(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                average_attn_weights=average_attn_weights,
                is_causal=is_causal,
            )
        is_batched = query.dim() == 3
        if is_causal and attn_mask is None:
            raise InvalidValue(
                "is_causal", is_causal, "is a hint about attn_mask, which is missing", "give both"
            )
        q, k, v = self._heads(query, key, value)
        # As torch does it: alone the hint is enough, with other wishes the mask itself is taken.
        is_hint_enough = is_causal and key_padding_mask is None and not need_weights
        mask = None if is_hint_enough else merged(attn_mask, key_padding_mask, q, k)
        rate = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * sqrt(1.0 / self.head_dim)) @ k.transpose(-2, -1)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), rate)
            y = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, rate, is_hint_enough)
        y = self.out_proj(y.transpose(1, 2).flatten(-2))
        if not is_batched:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), weights

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``[N, heads, length, head]``."""
        one_source, two_sources = query is key and key is value, key is value
        query, key, value = (self._rows(x) for x in (query, key, value))
        if "in_proj" not in self.parts:
            q, k, v = self._separate(query, key, value)
        elif one_source:
            q, k, v = self.in_proj(query).chunk(3, -1)
        else:
            first, second = self.embed_dim, 2 * self.embed_dim
            q, of_keys = self.in_proj(query)[..., :first], self.in_proj(key)
            of_values = of_keys if two_sources else self.in_proj(value)
            k, v = of_keys[..., first:second], of_values[..., second:]
        q, k, v = (x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _separate(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        inputs = zip(_SEPARATE, (query, key, value), biases, strict=True)
        layers: dict[str, Any] = dict(self._modules)
        outputs = ((layers[name](x), own) for name, x, own in inputs)
        return tuple(y if own is None else y + own for y, own in outputs)

    def _rows(self, x: Tensor) -> Tensor:
        """``[N, length, features]``."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)


def _is_packed(module: nn.Module) -> bool:
    return module._parameters.get("in_proj_weight") is not None


def merged(mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Both masks as one to be added to the scores ``[N, heads, L, S]``."""
    rows, heads, length, source = *q.shape[:3], k.shape[2]
    found = None
    if mask is not None:
        shapes = ((length, source), (rows * heads, length, source))
        found = _additive("attn_mask", mask, shapes, q.dtype)
        found = found if found.dim() == 2 else found.view(rows, heads, length, source)
    if padding is not None:
        padding = padding.unsqueeze(0) if padding.dim() == 1 and rows == 1 else padding
        added = _additive("key_padding_mask", padding, ((rows, source),), q.dtype)
        added = added.view(rows, 1, 1, source)
        found = added if found is None else found + added
    return found


def _additive(
    name: str, mask: Tensor, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> Tensor:
    if tuple(mask.shape) not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise InvalidValue(f"shape of {name}", tuple(mask.shape), f"must be {allowed}")
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -inf)
    if not mask.is_floating_point():
        raise InvalidValue(f"dtype of {name}", mask.dtype, "must be bool or floating-point")
    return mask
