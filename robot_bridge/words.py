"""Settings of a use as a flat list of words, which is what launch arguments are; no ROS here."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from robot_bridge import settings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Word:
    """One setting."""

    name: str
    """Its name; of a setting inside another, with that one's in front: left_robot."""
    description: str
    """What it does."""
    default: str
    """Its default, as a word."""
    choices: tuple[str, ...] = ()
    """What it may be, where that is a list."""


def of(use: Any, before: str = "") -> Iterator[Word]:
    """Yield the settings of an instance of a use, its values as the defaults."""
    hints = typing.get_type_hints(type(use))
    described: dict[str, str] = {}
    for kind in reversed(type(use).__mro__[:-1]):
        described |= settings.descriptions(kind)
    for field in dataclasses.fields(use):
        value = getattr(use, field.name)
        if dataclasses.is_dataclass(value):
            yield from of(value, f"{before}{field.name}_")
            continue
        choices = (
            typing.get_args(hints[field.name])
            if typing.get_origin(hints[field.name]) is typing.Literal
            else ("true", "false") if isinstance(value, bool) else ()
        )  # fmt: skip
        yield Word(
            name=before + field.name, description=described[field.name], default=_word(value),
            choices=choices,
        )  # fmt: skip


def read(use: T, words: Mapping[str, str], before: str = "") -> T:
    """Return a use with the values that words say.

    Args:
        use: What stands where nothing is said.
        words: Values by name; others may be there.
        before: What stands before the names.

    Raises:
        ValueError: a word is no such value.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(use):  # type: ignore[arg-type]  # T is a dataclass
        default, name = getattr(use, field.name), before + field.name
        if dataclasses.is_dataclass(default):
            values[field.name] = read(default, words, f"{name}_")
        elif name in words:
            values[field.name] = _value(name, words[name], default)
    return dataclasses.replace(use, **values)  # type: ignore[type-var]


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, word: str, default: Any) -> Any:
    """Return what a word means, by the type of the default."""
    if isinstance(default, tuple):
        return tuple(word.replace(",", " ").split())
    if isinstance(default, bool):
        if word.lower() not in ("true", "false"):
            raise ValueError(f"{name}: got {word!r}, expected true or false")
        return word.lower() == "true"
    try:
        return type(default)(word)
    except ValueError as error:
        expected = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"{name}: got {word!r}, expected {expected}") from error
