from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from gossamer.errors import InvalidValue
from gossamer.train.codec import decode, encode
from train.bits import same

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def through_bytes(state: object) -> Any:
    """The whole way: encode, write both files' contents, read them, decode."""
    tensors, tree = encode(state)
    return decode(load(save(tensors)), json.loads(json.dumps(tree, allow_nan=False)))


def random_tensor(shape: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (100 * torch.randn(shape, generator=generator)).to(dtype)


TENSORS = st.builds(
    random_tensor,
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["$tensor", "$tuple", "\ud800"])
    | TENSORS
)
KEYS = st.integers() | st.text(max_size=4) | st.sampled_from(["$tensor", "$dict", "1"])
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(STATES)
def test_any_state_comes_back_the_same(state: object) -> None:
    assert same(state, through_bytes(state))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint16, torch.uint32, torch.uint64])
def test_every_dtype_and_awkward_shape(dtype: torch.dtype) -> None:
    state = {
        "scalar": torch.tensor(1).to(dtype),
        "empty": [torch.zeros(0, 3).to(dtype), torch.zeros(0).to(dtype)],
        "strided": random_tensor([4, 6], torch.float32, 0).abs().to(dtype).t()[::2],
    }
    assert same(state, through_bytes(state))


def test_nan_payload_and_negative_zero_keep_their_bits() -> None:
    patterns = torch.tensor([0x7FC00001, -0x00400001, -0x80000000, 0x7F800000], dtype=torch.int32)
    state = [patterns.view(torch.float32), math.nan, -0.0, math.inf, -math.inf]
    assert same(state, through_bytes(state))


def test_one_object_is_stored_once_and_stays_one_object() -> None:
    shared = torch.arange(3)
    tensors, _ = encode({"a": shared, "b": [shared]})
    assert len(tensors) == 1
    back = through_bytes({"a": shared, "b": [shared]})
    assert back["a"] is back["b"][0]


def test_views_of_one_storage_are_stored_apart() -> None:
    base = torch.arange(6.0)
    back = through_bytes([base, base[2:4], base.view(2, 3), base.detach()])
    assert same(back, [base, base[2:4], base.view(2, 3), base])
    back[1][0] = -1.0
    assert back[0][2] == 2.0


def test_parameters_conjugates_and_subclasses_become_plain_values() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    imaginary = torch.tensor([1 + 2j])
    back = through_bytes([parameter, imaginary.conj(), np.float64(0.1), OrderedDict(a=1)])
    assert same(back, [torch.ones(2), torch.tensor([1 - 2j]), 0.1, {"a": 1}])
    assert not back[0].requires_grad


def test_the_decoded_tensors_own_their_memory() -> None:
    tensors, tree = encode([torch.zeros(3)])
    back = decode(tensors, tree)
    back[0].fill_(1.0)
    assert tensors["0"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, {2}]}, "state['a'][1]"),
        ({1: np.int64(1)}, "state[1]"),
        ((object(),), "state[0]"),
        ([namedtuple("P", "x")(1)], "state[0]"),
        ([b"x"], "state[0]"),
        ({True: 1}, "key of state"),
        ({1.5: 1}, "key of state"),
        ([torch.zeros(2, 2).to_sparse()], "state[0]"),
    ],
)
def test_what_json_and_safetensors_cannot_say_is_refused_by_place(state: Any, place: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        encode(state)
    assert caught.value.name == place
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tree",
    [{"$tensor": "9"}, {"$tensor": 0}, {"$float": "1.0"}, {"$pickle": "x"}, {"$tuple": 1}, {1}],
)
def test_a_tree_of_another_form_is_refused(tree: object) -> None:
    with pytest.raises(InvalidValue, match="state tree"):
        decode({"0": torch.zeros(1)}, tree)
