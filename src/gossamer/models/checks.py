"""Checks of the builders' arguments, in one message form."""

from __future__ import annotations

from collections.abc import Iterable


def invalid(name: str, value: object, rule: str, hint: str) -> ValueError:
    """Returns the error for a bad argument: its name, its value, the rule, the next step."""
    return ValueError(f"{name} = {value}: {rule}; {hint}")


def positive_int(name: str, value: object) -> int:
    """Returns ``value`` as an int of at least 1, or raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(name, value, "must be an integer of at least 1", "check the setting")
    return value


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """Returns ``value`` if it is one of the known words, or raises ValueError listing them."""
    words = sorted(known)
    if not isinstance(value, str) or value not in words:
        raise invalid(name, value, "is not known", "choose one of: " + ", ".join(words))
    return value


def height_width(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) of an image size given as one side or as two."""
    if isinstance(image_size, int):
        side = positive_int("image_size", image_size)
        return side, side
    if len(image_size) != 2:
        raise invalid("image_size", image_size, "must be one side or (height, width)", "give two")
    return positive_int("image height", image_size[0]), positive_int("image width", image_size[1])
