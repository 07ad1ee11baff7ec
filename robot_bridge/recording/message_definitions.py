"""Definitions of ROS 2 message types as bags contain them. This module does not import ROS.

The texts are those of the installed interface packages (`share/PACKAGE/msg/TYPE.msg`) of ROS or its
wheels.
"""

import functools
import os
import re
import sys
from pathlib import Path

RULE = "=" * 80
"""Separator before every further type in a definition."""
PRIMITIVES = frozenset(
    ["bool", "byte", "char", "float32", "float64", "string", "wstring"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
_FIELD = re.compile(
    r"^(?P<type>[A-Za-z][\w/]*)(?:<=\d+)?(?:\[[^\]]*\])?\s+(?P<name>[a-z]\w*)\s*(?!=)"
)


@functools.cache
def definition(type_name: str) -> str:
    """Return the text of a type ("std_msgs/msg/Header") with those of all types within it.

    Each further type follows after a line of 80 "=" and "MSG: PACKAGE/TYPE", as rosbag2 writes it.

    Raises:
        ValueError: the interface package is not installed, or it is no message type.
    """
    names: list[str] = []
    waiting = [type_name]
    while waiting:
        name = waiting.pop(0)
        if name not in names:
            names.append(name)
            waiting += [inner for inner, _ in fields(name) if inner not in PRIMITIVES]
    parts = [text(names[0])]
    parts += [f"{RULE}\nMSG: {name.replace('/msg/', '/')}\n{text(name)}" for name in names[1:]]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def has_stamp(type_name: str) -> bool:
    """Return whether a message begins with a stamp: with a header, or as one."""
    first, _ = next(iter(fields(type_name)), ("", ""))
    return first in ("std_msgs/msg/Header", "builtin_interfaces/msg/Time")


@functools.cache
def fields(type_name: str) -> tuple[tuple[str, str], ...]:
    """Return (type, name) of every field of a message, constants left out, arrays as their item."""
    package = type_name.split("/")[0]
    pairs = []
    for line in text(type_name).splitlines():
        bare = line.split("#")[0].strip()
        match = _FIELD.match(bare)
        if match and not re.match(r"\S+\s+\w+\s*=", bare):
            pairs.append((_full(match["type"], package), match["name"]))
    return tuple(pairs)


@functools.cache
def text(type_name: str) -> str:
    """Return the definition of one type in its interface package, comments included."""
    parts = type_name.split("/")
    if len(parts) != 3 or parts[1] != "msg":
        raise ValueError(f"{type_name!r} is no message type, expected such as std_msgs/msg/Header")
    for root in _roots():
        file = root / "share" / parts[0] / "msg" / f"{parts[2]}.msg"
        if file.is_file():
            return file.read_text()
    raise ValueError(
        f"no definition of {type_name}: install the package {parts[0]} (pip install "
        f"ros-kilted-{parts[0].replace('_', '-')}, or source ROS 2's setup.bash)"
    )


def _roots() -> list[Path]:
    """Return the prefixes of interface packages: those of ROS, then the Python environment."""
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    return [*(Path(prefix) for prefix in prefixes if prefix), Path(sys.prefix)]


def _full(name: str, package: str) -> str:
    """Return a field's type with its package: a bare name is of the same package."""
    if name in PRIMITIVES:
        return name
    if "/" not in name:
        return "std_msgs/msg/Header" if name == "Header" else f"{package}/msg/{name}"
    return name if "/msg/" in name else name.replace("/", "/msg/")
