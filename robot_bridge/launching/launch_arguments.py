"""Settings of a launch configuration as flat launch arguments. This module does not import ROS."""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from robot_bridge.launching import node_settings
from vla.contracts import renames

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LaunchArgument:
    """One launch argument."""

    name: str
    """Its name; nested settings are prefixed: left_robot."""
    description: str
    """What it does."""
    default: str
    """Its default as text."""
    choices: tuple[str, ...] = ()
    """Allowed values; empty for any."""


def of(settings: Any, prefix: str = "") -> Iterator[LaunchArgument]:
    """Yield the launch arguments of a settings instance, its values as the defaults."""
    hints = typing.get_type_hints(type(settings))
    described = node_settings.descriptions(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from of(value, f"{prefix}{field.name}_")
            continue
        yield LaunchArgument(
            name=prefix + field.name, description=described[field.name], default=_text(value),
            choices=_choices(hints[field.name]),
        )  # fmt: skip


def read(settings: T, arguments: Mapping[str, str], prefix: str = "") -> T:
    """Return settings with the values of launch arguments by name; others are ignored.

    Raises:
        ValueError: a value is malformed, or an argument has its name of an earlier release.
    """
    values: dict[str, Any] = {}
    hints = typing.get_type_hints(type(settings))
    renamed = {new: old for old, new in renames.PARAMETERS["launch"].items()}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # T is a dataclass
        default, name = getattr(settings, field.name), prefix + field.name
        old = f"{prefix}{renamed.get(field.name, '')}"
        # A launch file that includes ours may have an argument of that name and another meaning.
        if old in arguments and arguments[old] in (_choices(hints[field.name]) or [arguments[old]]):
            raise ValueError(f"{old} is now {name}; give {name}:={arguments[old]}")
        if dataclasses.is_dataclass(default):
            values[field.name] = read(default, arguments, f"{name}_")
        elif name in arguments:
            values[field.name] = _value(name, arguments[name], default)
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def check_words(settings: Any, words: Sequence[str]) -> None:
    """Refuse NAME:=VALUE words whose names are no launch arguments; ROS leaves them out in silence.

    Raises:
        ValueError: there is one.
    """
    known = [argument.name for argument in of(settings)]
    old = renames.PARAMETERS["launch"]
    for name in (word.partition(":=")[0] for word in words if ":=" in word):
        if name not in known and not any(name.endswith(one) for one in old):
            near = difflib.get_close_matches(name, known, 1, 0.7)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"unknown launch argument {name!r}: {hint}see --show-args")


def _choices(hint: Any) -> tuple[str, ...]:
    if hint is bool:
        return ("true", "false")
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str, default: Any) -> Any:
    """Return the value of a text, by the type of the default."""
    if isinstance(default, tuple):
        return tuple(text.replace(",", " ").split())
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}: got {text!r}, expected true or false")
        return text.lower() == "true"
    try:
        return type(default)(text)
    except ValueError as error:
        expected = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"{name}: got {text!r}, expected {expected}") from error
