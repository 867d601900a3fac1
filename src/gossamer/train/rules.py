"""The rules a setting can have: check a value, parse a text. One class per kind of value."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import Any

from gossamer.errors import InvalidValue, UnknownName

_NONE = ("none", "null")


class Rule(ABC):
    """What a setting's value must be.

    Args:
        optional: Whether ``None`` is allowed.
    """

    def __init__(self, *, optional: bool = False) -> None:
        self.optional = optional

    def check(self, name: str, value: Any) -> Any:
        """The value in its stored form.

        Raises:
            InvalidValue: It breaks the rule; the message names the setting.
        """
        if value is None and self.optional:
            return None
        return self._check(name, value)

    def parse(self, name: str, text: str) -> Any:
        """The value that a text on the command line stands for."""
        if self.optional and text.lower() in _NONE:
            return None
        return self._check(name, self._parse(name, text))

    @abstractmethod
    def _check(self, name: str, value: Any) -> Any: ...

    def _parse(self, name: str, text: str) -> Any:
        return text


class Text(Rule):
    """A text that is not empty."""

    def _check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise InvalidValue(name, value, "must be a text that is not empty")
        return value


class Choice(Rule):
    """One of a few words."""

    def __init__(self, *words: str, optional: bool = False) -> None:
        super().__init__(optional=optional)
        self.words = words

    def _check(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise UnknownName(name, str(value), self.words)
        return value


class Integer(Rule):
    """A whole number in ``[low, high]``."""

    def __init__(self, *, low: int, high: int | None = None, optional: bool = False) -> None:
        super().__init__(optional=optional)
        self.low, self.high = low, high

    def _check(self, name: str, value: Any) -> int:
        rule = f"must be a whole number ≥ {self.low}"
        if self.high is not None:
            rule += f" and ≤ {self.high}"
        if type(value) is not int or value < self.low:
            raise InvalidValue(name, value, rule)
        if self.high is not None and value > self.high:
            raise InvalidValue(name, value, rule)
        return value

    def _parse(self, name: str, text: str) -> Any:
        try:
            return int(text)
        except ValueError:
            return text  # the check says what it should have been


class Number(Rule):
    """A finite number in the open interval ``(low, high)``."""

    def __init__(self, *, low: float, high: float = math.inf, optional: bool = False) -> None:
        super().__init__(optional=optional)
        self.low, self.high = low, high

    def _check(self, name: str, value: Any) -> float:
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric or not math.isfinite(value) or not self.low < value < self.high:
            upper = f" and < {self.high:g}" if math.isfinite(self.high) else ""
            raise InvalidValue(name, value, f"must be a number > {self.low:g}{upper}")
        return float(value)

    def _parse(self, name: str, text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text


class Names(Rule):
    """Several names; on the command line separated by commas."""

    def _check(self, name: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
            raise InvalidValue(name, value, "must be a list of names", "e.g. a,b")
        return tuple(value)

    def _parse(self, name: str, text: str) -> Any:
        return [] if text.lower() in ("", *_NONE) else [part.strip() for part in text.split(",")]


class Options(Rule):
    """Named arguments for something else, as JSON values; that something checks them."""

    def _check(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidValue(name, value, "must be a table of names and values")
        _check_json(name, value)
        copied: dict[str, Any] = json.loads(json.dumps(value))
        return copied

    def _parse(self, name: str, text: str) -> Any:
        return self.parse_option(text)

    @staticmethod
    def parse_option(text: str) -> Any:
        """A JSON value where the text is one (``none`` counts as ``null``), else the text."""
        if text.lower() in (*_NONE, "true", "false"):
            text = {"none": "null"}.get(text.lower(), text.lower())
        try:
            return json.loads(text)
        except ValueError:
            return text


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
