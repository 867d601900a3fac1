"""Settings by name: which there are, what each does, and ``key=value`` texts for them.

A setting belongs to the run (:class:`RunConfig`), to the method (its config dataclass) or to the
model (the builder's options), and is looked for in this order.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from gossamer.errors import InvalidValue, UnknownName
from gossamer.inference import method_entry
from gossamer.models import MODELS
from gossamer.settings import describe, hints_of, parse
from gossamer.train import RunConfig

_FROM_DATA = ("input_shape", "output_size", "in_channels", "num_classes", "image_size")
"""Arguments of a model that the data decide; they are no settings."""


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
    hints, texts = hints_of(config), _attribute_texts(config)
    return {
        field.name: Setting(
            field.name,
            hints[field.name],
            None if field.default is MISSING else field.default,
            texts.get(field.name, ""),
        )
        for field in fields(config)
    }


def options_of(model: str) -> dict[str, Any]:
    """A model's options: their types by name."""
    if model not in MODELS:
        raise UnknownName("model", model, list(MODELS))
    hints = hints_of(MODELS[model])
    return {name: hint for name, hint in hints.items() if name not in _FROM_DATA}


def value_of(config: RunConfig, name: str) -> Any:
    """What a setting of the method is: as given, else the preset's, else its default.

    ``None`` where the method has no such setting.
    """
    presets = method_entry(config.method).presets
    if config.preset not in presets:
        raise UnknownName(f"preset of {config.method}", config.preset, list(presets))
    declared = settings_of(config.method).get(name)
    chosen: Mapping[str, Any] = {**presets[config.preset], **config.method_options}
    return chosen.get(name, None if declared is None else declared.default)


def apply(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """A copy of ``config`` with ``key=value`` texts applied, later ones last.

    Raises:
        InvalidValue: A text without ``=``, a key that is no setting, or a value against its type.
        UnknownName: An unknown method or model.
    """
    inner: list[tuple[str, str]] = []
    run = hints_of(RunConfig)
    for assignment in assignments:
        key, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise InvalidValue("--set", assignment, "must read key=value", "e.g. kl_weight=0.1")
        if key.partition(".")[0] in run and not key.startswith("method_options."):
            config = config.with_overrides([assignment])
        else:
            inner.append((key, text))
    # The run's own settings come first: they say which method and model the others belong to.
    method, model = settings_of(config.method), options_of(config.model)
    values = config.to_json()
    for key, text in inner:
        name = key.removeprefix("method_options.")
        if name in method:
            more = f"see gossamer methods {config.method}"
            values["method_options"][name] = parse(name, text, method[name].hint, more)
        elif key in model:
            values["model_options"][key] = parse(key, text, model[key])
        else:
            raise _unknown(config, name, [*run, *method, *model])
    return RunConfig.from_json(values)


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
