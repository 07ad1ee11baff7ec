"""Reads a verb's command line into a dataclass; what is wrong with it becomes one sentence.

tyro does the work; which plug-in's settings a verb has is decided in `training.flags`.
"""

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def read(kind: Callable[..., T], argv: list[str], prog: str, default: Any = None) -> T:
    """Return the `kind` (a dataclass, or a function with annotations) that `argv` describes.

    Args:
        kind: What to make.
        argv: Words after `prog`.
        prog: The command, for messages and help.
        default: Instance whose values stand where `argv` says nothing.

    Raises:
        ValueError: an unknown, missing or malformed argument, or `kind` refuses its values.
        SystemExit: help was asked for and printed.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            if default is None:
                return tyro.cli(kind, args=argv, prog=prog)
            return tyro.cli(kind, args=argv, prog=prog, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ValueError(f"{sentence(told.getvalue())}; see {prog} --help") from stop


def sentence(box: str) -> str:
    """Return what one of tyro's boxes says, without its frame and the help texts in it.

    Rules divide a box into sections: a heading, then arguments (indented), then help (more so).
    """
    inside = re.findall(r"^│(.*)│$", re.sub(r"\x1b\[[0-9;]*m", "", box), re.MULTILINE)
    said = []
    for section in re.split(r"\n ─+ \n", "\n".join(inside)):
        heading = " ".join(re.findall(r"^ (\S.*?) *$", section, re.MULTILINE)).rstrip(".")
        heading = re.sub(r"^Error parsing (?!-)\S+: ", "", heading)  # tyro's name for a class
        arguments = re.findall(r"^ {5}(\S+)", section, re.MULTILINE)
        if not heading.startswith(("For full helptext", "Argument helptext")):
            said.append(f"{heading[:1].lower()}{heading[1:]} {', '.join(arguments[:3])}".strip())
    return "; ".join(said)
