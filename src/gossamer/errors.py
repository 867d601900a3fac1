"""The one form of every error: what it is about, its value, the rule, the next step.

Each class takes the same four pieces, so that a message reads alike everywhere and the command line
can print it as one line::

    raise InvalidValue("sparsity", 1.0, "must lie in [0, 1)", "use 0 for a dense model")
    # sparsity = 1.0: must lie in [0, 1); use 0 for a dense model
"""

from __future__ import annotations

_MAX_VALUE_LENGTH = 120


class GossamerError(Exception):
    """Base of all errors that Gossamer raises on purpose.

    Args:
        name: The thing that is wrong: an argument, a file, a column, a layer.
        value: Its value, shown shortened; pass ``None`` where there is none to show.
        rule: What must hold.
        hint: What to do next; may be empty.
    """

    def __init__(self, name: str, value: object, rule: str, hint: str = "") -> None:
        self.name = name
        self.value = value
        self.rule = rule
        self.hint = hint
        super().__init__(_sentence(name, value, rule, hint))


class InvalidValue(GossamerError, ValueError):
    """An argument, option or setting outside its rule."""


class UnknownName(GossamerError, ValueError):
    """A name that no table holds; the hint lists the ones that exist."""

    def __init__(self, kind: str, value: str, known: list[str] | tuple[str, ...]) -> None:
        super().__init__(kind, value, "is not known", "choose one of: " + ", ".join(sorted(known)))


class InvalidData(GossamerError, ValueError):
    """Data that cannot be used as it is: shape, dtype, label, non-finite value, missing column."""


class NonFinite(GossamerError, ArithmeticError):
    """A loss, score or standard deviation became NaN or infinite."""


class CheckpointError(GossamerError, RuntimeError):
    """A run folder or checkpoint that is damaged, foreign or would be overwritten."""


class MissingDependency(GossamerError):
    """An optional package is needed for what was asked."""


def _sentence(name: str, value: object, rule: str, hint: str) -> str:
    shown = ""
    if value is not None:
        text = value if isinstance(value, str) else repr(value)
        text = " ".join(text.split())
        if len(text) > _MAX_VALUE_LENGTH:
            text = text[: _MAX_VALUE_LENGTH - 1] + "…"
        shown = f" = {text}"
    return f"{name}{shown}: {rule}" + (f"; {hint}" if hint else "")
