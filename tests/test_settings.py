"""The one checker: what a type hint admits, what a text stands for, what an error says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import METHODS
from gossamer.models import MODELS
from gossamer.settings import Within, check, checked, describe, hints_of, in_words, parse
from gossamer.train import RunConfig

Positive = Annotated[float, Within(0.0)]
Count = Annotated[int, Within(1, 9)]


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("0.5", float, 0.5),
        ("3", float, 3),
        ("3", int, 3),
        ("true", bool, True),
        ("3", str, "3"),
        ("true", str, "true"),
        ("none", float | None, None),
        ("0.5", float | None, 0.5),
        ("sgd", Literal["adam", "sgd"], "sgd"),
        ("scaled", float | Literal["scaled"], "scaled"),
        ("0.1", float | Literal["scaled"], 0.1),
        (".5", float, 0.5),
        ("1", Positive, 1.0),
        ("none", str | None, None),
        ("none", Literal["none"] | None, "none"),
        ("a, b", tuple[str, ...], ["a", "b"]),
        ("", tuple[str, ...], []),
        ('["a,b"]', tuple[str, ...], ["a,b"]),
        ("[64, 8]", Sequence[int], [64, 8]),
        ('{"a": [1]}', dict[str, Any], {"a": [1]}),
        ("[0.1, 2]", float | tuple[float, float] | Literal["scaled"], [0.1, 2]),
    ],
)
def test_a_text_becomes_the_value_of_its_type(text: str, hint: object, value: object) -> None:
    found = parse("name", text, hint)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("abc", float),
        ("true", float),
        ("NaN", float),
        ("Infinity", float),
        ("0", Positive),
        ("10", Count),
        ("", str),
        ("64", Sequence[int]),
        ("3", dict[str, Any]),
        ("1.5", int),
        ("none", int),
        ("1", bool),
        ("lbfgs", Literal["adam", "sgd"]),
        ("[1]", tuple[float, float]),
        ('[1, "a"]', tuple[float, float]),
    ],
)
def test_a_text_of_another_type_is_refused(text: str, hint: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse("name", text, hint, "see there")
    rule = "finite" if text in ("NaN", "Infinity") else in_words(hint)
    assert str(caught.value) == f"name = {text}: must be {rule}; see there"


def test_types_in_words() -> None:
    hint = float | tuple[float, int] | Literal["scaled"] | None
    assert describe(hint) == "number or [number, whole number] or scaled or none"


@pytest.mark.parametrize(
    ("hint", "table", "sentence"),
    [
        (Positive | None, "number or none", "a number > 0 or none"),
        (Count, "whole number", "a whole number ≥ 1 and ≤ 9"),
        (Annotated[float, Within(0.0, 1.0)], "number", "a number > 0 and < 1"),
        (str, "text", "a text that is not empty"),
        (Literal["adam", "sgd"], "adam or sgd", "'adam' or 'sgd'"),
        (tuple[float, float], "[number, number]", "two numbers"),
        (tuple[str, ...], "list of texts", "a list of texts"),
        (Sequence[int], "list of whole numbers", "a list of whole numbers"),
        (bool, "true or false", "true or false"),
    ],
)
def test_one_hint_in_a_table_and_in_a_sentence(hint: Any, table: str, sentence: str) -> None:
    assert (describe(hint), in_words(hint)) == (table, sentence)


@pytest.mark.parametrize(
    ("value", "hint", "kept"),
    [
        ([0.1, 2], tuple[float, float], (0.1, 2)),
        ((1, 2), Sequence[int], (1, 2)),
        (3, float, 3),
        (3, Positive, 3.0),
        (9, Count, 9),
        (None, Count | None, None),
        ([], tuple[str, ...], ()),
    ],
)
def test_a_value_is_kept_in_one_form(value: Any, hint: Any, kept: Any) -> None:
    found = check("name", value, hint)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        (True, float),
        (1, bool),
        ("1", float),
        (0.0, Positive),
        (0, Count),
        (10, Count),
        (1.0, int),
        ("", str),
        (None, str),
        ("a", tuple[str, ...]),
        ([""], tuple[str, ...]),
        ([1, True], Sequence[int]),
        ([1.0], tuple[float, float]),
        (3, Literal["3"]),
    ],
)
def test_a_value_of_another_type_is_refused(value: Any, hint: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        check("name", value, hint)
    assert caught.value.rule == f"must be {in_words(hint)}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(InvalidValue, match=f"name = {value}: must be finite"):
        check("name", value, float | None)


@dataclass
class Own:
    rate: Positive = 0.5
    words: tuple[str, ...] = ()


def test_values_are_checked_by_name() -> None:
    assert checked(Own, {"rate": 1, "words": ["a"]}) == {"rate": 1.0, "words": ("a",)}
    with pytest.raises(
        UnknownName, match="setting of own = rat: is not known; choose one of: rate"
    ):
        checked(Own, {"rat": 1}, of="own")
    with pytest.raises(InvalidValue, match="rate of own = -1: must be a number > 0"):
        checked(Own, {"rate": -1}, of="own")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_a_table_is_a_copy(value: Any) -> None:
    table = {"a": value}
    found = check("name", table, dict[str, Any])
    assert found == table
    assert found is not table


@pytest.mark.parametrize(
    "owner",
    [RunConfig, *(entry.config for entry in METHODS.values()), *MODELS.values()],
    ids=lambda owner: owner.__name__,
)
def test_every_setting_of_the_house_has_words_and_admits_its_default(owner: Any) -> None:
    defaults = vars(owner()) if isinstance(owner, type) else owner.__kwdefaults__
    for name, hint in hints_of(owner).items():
        assert describe(hint)
        assert in_words(hint)
        if name in defaults:
            assert check(name, defaults[name], hint) == defaults[name]
