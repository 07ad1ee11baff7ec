"""Parses a verb's command line into a dataclass by tyro; an error becomes one sentence.

`training.core.plugin_flags` chooses the plug-ins whose settings are flags.
"""

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

from vla.contracts import migrate

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
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            if default is None:
                return tyro.cli(kind, args=argv, prog=prog)
            return tyro.cli(kind, args=argv, prog=prog, default=default)
    except SystemExit as stop:
        if not stop.code:
            raise
        wrong = migrate.flag(prog, argv) or sentence(output.getvalue())
        raise ValueError(f"{wrong}; see {prog} --help") from stop


def sentence(box: str) -> str:
    """Return the message of one of tyro's boxes, without frame and help texts.

    Rules divide a box into sections: a heading, then arguments (indented), then help (more so).
    Where the terminal knows no box characters, the frame is blanks and the rules are hyphens.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box).replace("│", " ").replace("─", "-")
    _, *rows = plain.splitlines() or [""]  # the first is the title
    messages = []
    for section in re.split(r"^ {1,2}-+ *$", "\n".join(rows), flags=re.MULTILINE):
        heading = " ".join(re.findall(r"^ {2}(\S.*?) *$", section, re.MULTILINE)).rstrip(".")
        heading = re.sub(r"^Error parsing (?!-)\S+: ", "", heading)  # tyro's name for a class
        arguments = re.findall(r"^ {6}(\S+)", section, re.MULTILINE)
        if heading and not heading.startswith(("For full helptext", "Argument helptext")):
            messages.append(
                f"{heading[:1].lower()}{heading[1:]} {', '.join(arguments[:3])}".strip()
            )
    return "; ".join(messages)
