"""Settings by name: which there are, what type each has, and ``key=value`` texts for them.

A setting belongs to the run (:class:`RunConfig`), to the method (its config dataclass) or to the
model (the builder's options), and is looked for in this order.
"""

from __future__ import annotations

import difflib
import inspect
import math
import types
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import method_entry
from gossamer.models import MODELS
from gossamer.train import RunConfig
from gossamer.train.rules import Options

_FROM_DATA = ("input_shape", "output_size", "in_channels", "num_classes", "image_size")
"""Arguments of a model that the data decide; they are no settings."""

_RUN = [field.name for field in fields(RunConfig)]
_WORDS: dict[Any, str] = {
    float: "number",
    int: "whole number",
    bool: "true or false",
    str: "text",
    type(None): "none",
}


@dataclass(frozen=True)
class Setting:
    """One setting of a method.

    Attributes:
        name: Its name.
        hint: Its type.
        default: Its default.
        text: What it does, from the docstring of the class that declares it.
    """

    name: str
    hint: Any
    default: Any
    text: str

    @property
    def type_name(self) -> str:
        """The type in words."""
        return describe(self.hint)


def settings_of(method: str) -> dict[str, Setting]:
    """All settings of a method, in the order of its config dataclass."""
    config = method_entry(method).config
    hints = get_type_hints(config)
    texts = _attribute_texts(config)
    return {
        field.name: Setting(
            field.name,
            hints[field.name],
            None if field.default is MISSING else field.default,
            texts.get(field.name, ""),
        )
        for field in fields(config)
    }


def options_of(model: str) -> list[str]:
    """Names of a model's options."""
    if model not in MODELS:
        raise UnknownName("model", model, list(MODELS))
    return [name for name in inspect.signature(MODELS[model]).parameters if name not in _FROM_DATA]


def apply(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """A copy of ``config`` with ``key=value`` texts applied, later ones last.

    Raises:
        InvalidValue: A text without ``=``, a key that is no setting, or a value against its type.
        UnknownName: An unknown method or model.
    """
    inner: list[tuple[str, str]] = []
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise InvalidValue("--set", assignment, "must read key=value", "e.g. kl_weight=0.1")
        if key.partition(".")[0] in _RUN and not key.startswith("method_options."):
            config = config.with_overrides([assignment])
        else:
            inner.append((key, text))
    # The run's own settings come first: they say which method and model the others belong to.
    method, model = settings_of(config.method), options_of(config.model)
    values = config.to_json()
    for key, text in inner:
        name = key.removeprefix("method_options.")
        if name in method:
            values["method_options"][name] = parse(name, text, method[name].hint)
        elif key in model:
            values["model_options"][key] = Options.parse_option(text)
        else:
            raise _unknown(config, name, [*_RUN, *method, *model])
    return RunConfig.from_json(values)


def parse(name: str, text: str, hint: Any) -> Any:
    """The value of type ``hint`` that a text stands for, as a JSON value.

    Raises:
        InvalidValue: It stands for none.
    """
    value = Options.parse_option(text)
    for kind in _alternatives(hint):
        if kind is str or get_origin(kind) is Literal:
            # "3" and "true" are texts too, where a text is wanted.
            if kind is str or text in get_args(kind):
                return text
        elif _fits(value, kind):
            return value
    raise InvalidValue(name, text, f"must be of type {describe(hint)}", "see gossamer methods NAME")


def describe(hint: Any) -> str:
    """A type in words: ``number``, ``adam or sgd``, ``whole number or none``."""
    return " or ".join(_describe(kind) for kind in _alternatives(hint))


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(word) for word in get_args(kind))
    if get_origin(kind) is tuple:
        return f"[{', '.join(describe(part) for part in get_args(kind))}]"
    return _WORDS.get(kind, str(kind))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return (
            isinstance(value, list)
            and len(value) == len(parts)
            and all(_fits(one, part) for one, part in zip(value, parts, strict=True))
        )
    return type(value) is kind


def _unknown(config: RunConfig, key: str, known: list[str]) -> InvalidValue:
    close = difflib.get_close_matches(key, known, n=1)
    told = f"did you mean {close[0]}? " if close else ""
    return InvalidValue(
        "setting",
        key,
        f"is no setting of the run, of {config.method} or of {config.model}",
        f"{told}see gossamer methods {config.method}",
    )


def _attribute_texts(config: type[Any]) -> dict[str, str]:
    """What the ``Attributes`` sections of a class and its bases say of each field."""
    texts: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        section = (inspect.cleandoc(cls.__doc__ or "")).partition("\nAttributes:\n")[2]
        name = ""
        for line in section.splitlines():
            if line.startswith("    ") and not line.startswith("     "):
                name, _, texts[name] = line.strip().replace("``", "").partition(": ")
            elif name:
                texts[name] += " " + line.strip().replace("``", "")
    return texts
