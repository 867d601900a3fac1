"""One checker of settings: from a type hint to a check, to the value of a text, and to words.

A setting is declared once, as a field of a dataclass (or an argument of a function) with a type
hint. Everything else follows from the hint:

==============================  ===========================================  ====================
hint                            values                                       text on a command line
==============================  ===========================================  ====================
``float``                       finite numbers                               ``0.5``
``int``                         whole numbers                                ``3``
``bool``                        true, false                                  ``true``
``str``                         texts that are not empty                     as it stands
``Literal["a", "b"]``           these words                                  ``a``
``tuple[float, float]``         two numbers; a list serves, and is kept as   ``[0.5, 2]``
                                a tuple
``tuple[str, ...]``             a list of texts                              ``a,b`` or ``["a"]``
``Sequence[int]``               a list of whole numbers                      ``[64, 64]``
``dict[str, Any]``              a table of JSON values                       ``{"a": 1}``
``X | None``                    also none                                    ``none``
``Annotated[X, Within(1)]``     X within bounds, see :class:`Within`         as X
==============================  ===========================================  ====================
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gossamer.errors import InvalidValue, UnknownName

_NONE = ("none", "null")
_COUNTS = {2: "two", 3: "three", 4: "four"}
_WORDS: dict[Any, str] = {
    float: "number",
    int: "whole number",
    bool: "true or false",
    str: "text",
    dict: "table of names and values",
    type(None): "none",
    Any: "JSON value",
}


@dataclass(frozen=True)
class Within:
    """Bounds of a number: a whole number may equal them, another number lies strictly between.

    A bounded ``float`` is stored as a float, also where a whole number was given.

    Attributes:
        low: Lower bound.
        high: Upper bound.
    """

    low: float
    high: float = math.inf


def hints_of(owner: Any) -> Mapping[str, Any]:
    """The settings of a dataclass, or the arguments of a function, by name: their type hints."""
    return _hints(owner)


@lru_cache(maxsize=64)
def _hints(owner: Any) -> Mapping[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    if isinstance(owner, type):
        return {field.name: hints[field.name] for field in fields(owner)}
    return {name: hint for name, hint in hints.items() if name != "return"}


def checked(owner: Any, values: Mapping[str, Any], of: str = "") -> dict[str, Any]:
    """Values by name, each checked against its hint and in the form in which it is kept.

    Args:
        owner: What declares the settings, see :func:`hints_of`.
        values: The values.
        of: Whose settings these are, for the messages; empty for the run's own.

    Raises:
        InvalidValue: A value against its hint.
        UnknownName: A name that is no setting.
    """
    hints, whose = hints_of(owner), f" of {of}" if of else ""
    for name in values:
        if name not in hints:
            raise UnknownName(f"setting{whose}", str(name), list(hints))
    return {name: check(name + whose, value, hints[name]) for name, value in values.items()}


def check(name: str, value: Any, hint: Any) -> Any:
    """The value in the form in which it is kept: a list that stands for a tuple becomes one.

    Raises:
        InvalidValue: It does not fit; the message names the setting.
    """
    for kind in _alternatives(hint):
        if _fits(value, kind):
            return _kept(name, value, kind)
    raise _refusal(name, value, value, hint)


def parse(name: str, text: str, hint: Any, next_step: str = "") -> Any:
    """The JSON value that a text on a command line stands for.

    Args:
        name: Of the setting.
        text: What was written.
        hint: Its type.
        next_step: Where a reader finds more, for the message.

    Raises:
        InvalidValue: It stands for none.
    """
    kinds = _alternatives(hint)
    if any(text in get_args(kind) for kind in kinds if get_origin(kind) is Literal):
        return text
    if type(None) in kinds and text.lower() in _NONE:
        return None
    value = parse_json(text)
    for kind in kinds:
        if kind is str and text:
            return text  # "3" and "true" are texts too, where a text is wanted
        read = _listed(text, value) if _element(kind) is str else value
        if _fits(read, kind):
            kept = _kept(name, read, kind)
            return list(kept) if isinstance(kept, tuple) else kept
    raise _refusal(name, text, value, hint, next_step)


def parse_json(text: str) -> Any:
    """A JSON value where the text is one (``none`` counts as ``null``), else the text."""
    if text.lower() in (*_NONE, "true", "false"):
        text = {"none": "null"}.get(text.lower(), text.lower())
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # ".5" and "1." are numbers to people, not to JSON
    except ValueError:
        return text


def describe(hint: Any) -> str:
    """A type in a few words for a table: ``number``, ``adam or sgd``, ``whole number or none``."""
    return " or ".join(_named(kind) for kind in _alternatives(hint))


def in_words(hint: Any) -> str:
    """A type as an error says it: ``a number > 0 or none``, ``'adam' or 'sgd'``."""
    return " or ".join(_said(kind) for kind in _alternatives(hint))


def _refusal(name: str, shown: Any, value: Any, hint: Any, next_step: str = "") -> InvalidValue:
    kinds = [_plain(kind) for kind in _alternatives(hint)]
    is_number = isinstance(value, float) and float in kinds
    rule = "finite" if is_number and not math.isfinite(value) else in_words(hint)
    return InvalidValue(name, shown, f"must be {rule}", next_step or _example(kinds))


def _named(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(word) for word in get_args(kind))
    element = _element(kind)
    if element is not None:
        return f"list of {_WORDS[element]}s"
    if get_origin(kind) is tuple:
        return f"[{', '.join(describe(part) for part in get_args(kind))}]"
    return _WORDS[_plain(kind)]


def _said(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(word) for word in get_args(kind))
    element = _element(kind)
    if element is not None:
        return f"a list of {_WORDS[element]}s"
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if len(set(parts)) == 1 and parts[0] in _WORDS:
            return f"{_COUNTS.get(len(parts), str(len(parts)))} {_WORDS[parts[0]]}s"
        return _named(kind)
    plain = _plain(kind)
    if plain is str:
        return "a text that is not empty"
    article = "" if plain in (bool, type(None)) else "a "
    return article + _WORDS[plain] + _bounds_said(kind)


def _bounds_said(kind: Any) -> str:
    within = _bounds(kind)
    if within is None:
        return ""
    below, above = ("≥", "≤") if _plain(kind) is int else (">", "<")
    said = f" {below} {_number(within.low)}"
    return f"{said} and {above} {_number(within.high)}" if math.isfinite(within.high) else said


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _plain(kind: Any) -> Any:
    """Without bounds and parameters: ``int`` of ``Annotated[int, …]``, ``dict`` of ``dict[…]``."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    return dict if get_origin(kind) is dict else kind


def _bounds(kind: Any) -> Within | None:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note for note in notes if isinstance(note, Within)), None)


def _element(kind: Any) -> Any:
    """The type of a list's elements, or ``None`` where the kind is no list of any length."""
    if get_origin(kind) in (Sequence, list):
        return get_args(kind)[0]
    if get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        return get_args(kind)[0]
    return None


def _fits(value: Any, kind: Any) -> bool:
    plain = _plain(kind)
    if plain is Any:
        return True
    if get_origin(plain) is Literal:
        return isinstance(value, str) and value in get_args(plain)
    if _element(plain) is not None or get_origin(plain) is tuple:
        return isinstance(value, (list, tuple)) and _all_fit(value, plain)
    if isinstance(value, bool) or plain is bool:
        return isinstance(value, bool) and plain is bool
    if plain in (int, float):
        number = isinstance(value, int if plain is int else (int, float))
        return number and math.isfinite(value) and _inside(value, kind)
    return isinstance(value, plain) and value != ""


def _all_fit(values: Sequence[Any], kind: Any) -> bool:
    element, parts = _element(kind), get_args(kind)
    if element is not None:
        parts = (element,) * len(values)
    return len(values) == len(parts) and all(map(_fits, values, parts))


def _inside(value: Any, kind: Any) -> bool:
    within = _bounds(kind)
    if within is None:
        return True
    if _plain(kind) is int:
        return bool(within.low <= value <= within.high)
    return bool(within.low < value < within.high)


def _kept(name: str, value: Any, kind: Any) -> Any:
    if _plain(kind) is dict:
        _check_json(name, value)
        return json.loads(json.dumps(value))  # nobody else holds a part of it
    if _plain(kind) is float and _bounds(kind) is not None:
        return float(value)
    return tuple(value) if isinstance(value, list) and _plain(kind) is not Any else value


def _listed(text: str, value: Any) -> Any:
    """What a list of texts is written as: names with commas between them, or JSON."""
    if text.lower() in ("", *_NONE):
        return []
    return value if isinstance(value, list) else [part.strip() for part in text.split(",")]


def _example(kinds: Sequence[Any]) -> str:
    examples = {str: "e.g. a,b", int: "e.g. [64, 64]"}
    return next((examples[e] for e in map(_element, kinds) if e in examples), "")


def _check_json(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str) or not key:
                raise InvalidValue(f"key of {name}", key, "must be a text that is not empty")
            _check_json(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            _check_json(f"{name}[{index}]", inner)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(name, value, "must be finite")
    elif value is not None and not isinstance(value, (str, bool, int)):
        raise InvalidValue(name, type(value).__name__, "must be a JSON value", "use plain values")
