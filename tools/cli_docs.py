"""Renders `docs/cli.md`, the reference of every verb and flag, from the parsers themselves.

    python tools/cli_docs.py            write docs/cli.md
    python tools/cli_docs.py --check    exit code 1 if docs/cli.md differs from the parsers

Each verb starts as a user starts it and stops where it would parse its arguments, so the text
follows from the same dataclasses as `vla VERB --help`. No command runs and no file is opened.
"""

import argparse
import dataclasses
import difflib
import functools
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import tyro  # noqa: E402

from deploy.reward_model import export as reward_model_export  # noqa: E402
from deploy.reward_model import verify as reward_model_verify  # noqa: E402
from robot_bridge.launching import graph  # noqa: E402
from training.commands import eval as eval_command  # noqa: E402
from vla import cli  # noqa: E402
from vla.contracts import registry  # noqa: E402
from vla.utils import arguments  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
TASK = "reach"
"""The task whose settings stand for those of every task."""
TASKS = ("sim.tasks", "sim.suites")
CHOICES: dict[str, tuple[tuple[str, str | tuple[str, ...], str], ...]] = {
    "train": (
        ("--recipe", "training.recipes", "reach"),
        ("--preset", "training.presets", "tiny"),
        ("--task", TASKS, ""),
    ),
    "train rl": (("--task", TASKS, ""),),
    "eval": (("--task", TASKS, "the policy's"),),
}
"""Flags that a verb removes before the parser sees its arguments: flag, folders, default."""
FIRST = {
    "demos": ("TASK", TASK),
    "bench tiny-model": ("FAMILY", "smolvlm"),
    "engines": ("FOLDER", "FOLDER"),
    "serve": ("FOLDER", "FOLDER"),
    "bench bridge": ("FOLDER", "FOLDER"),
}
"""Arguments that a verb needs before its flags: name, and an example."""
HEAD = """# Command line

Generated from the parsers by `python tools/cli_docs.py`; do not edit. `make check` compares them.

`vla VERB --help` prints the same on a terminal. A plug-in's settings are flags, too. Tables list
those of the default plug-ins; `--policy.memory.type bank --help` lists those of another one.
A task of a suite is named SUITE/TASK. `vla --debug VERB` shows tracebacks.
"""


class Captured(BaseException):
    """Carries a parser out of a verb; no `except Exception` on the way stops it."""

    def __init__(self, parser: argparse.ArgumentParser, config: Any = None) -> None:
        super().__init__()
        self.parser = parser
        self.config = config


@dataclasses.dataclass(frozen=True)
class Form:
    """One way of calling a verb."""

    usage: str
    """Arguments between the verb and its flags."""
    start: Callable[[list[str]], Any]
    """Calls the verb with its arguments, without opening the files they name."""
    example: tuple[str, ...] = ()
    """Arguments with which the verb reaches its parser."""


def render() -> str:
    """Return the text of `docs/cli.md`."""
    with tempfile.TemporaryDirectory() as folder, _stopped_at_arguments():
        (Path(folder) / "meta").mkdir()  # `vla view` recognizes a data set by it
        sections = [_section(verb, line, folder) for verb, (_, line) in cli.VERBS.items()]
    contents = [
        f"| [`vla {verb}`](#{_anchor(verb)}) | {line} |" for verb, (_, line) in cli.VERBS.items()
    ]
    return "\n".join([HEAD, "| verb | what it does |", "|---|---|", *contents, "", *sections])


def flags(verb: str) -> set[str]:
    """Return every flag of a verb of `vla`, with the default plug-ins."""
    with tempfile.TemporaryDirectory() as folder, _stopped_at_arguments():
        (Path(folder) / "meta").mkdir()
        parsers = [_captured(verb, form).parser for form in forms(verb, folder)]
    chosen = {flag for flag, *_ in CHOICES.get(verb, ())}
    actions = [action for parser in parsers for action in parser._actions]  # noqa: SLF001
    return chosen.union(*(action.option_strings for action in actions))


def forms(verb: str, data: str) -> list[Form]:
    """Return the ways of calling a verb: several where its flags depend on its arguments.

    Args:
        verb: A key of `vla.cli.VERBS`.
        data: A folder that looks like a data set.
    """

    def call(words: list[str]) -> Any:
        return cli.main([*verb.split(), *words])

    def view_data(words: list[str]) -> Any:
        return call([data, *words[1:]])

    def evaluate(words: list[str]) -> Any:
        return eval_command.parse(words[1:], registry.load("sim.tasks", TASK).Config())

    if verb == "eval":
        return [Form("CHECKPOINT", evaluate)]
    if verb == "view":
        return [Form("DATASET", view_data), Form("POLICY", call, ("POLICY",))]
    if verb == "export":
        model = Form("REWARD_MODEL", reward_model_export.main, ("REWARD_MODEL",))
        return [Form("CHECKPOINT", call, ("CHECKPOINT",)), model]
    if verb == "verify-export":
        model = Form("FOLDER (of a reward model)", reward_model_verify.main, ("FOLDER",))
        return [Form("FOLDER", call, ("FOLDER",)), model]
    if verb == "ros launch":
        return [Form(name, call, (name,)) for name in graph.CONFIGS]
    if verb == "label":
        return [Form("", call), Form("--review", call, ("--review",))]
    usage, first = FIRST.get(verb, ("", ""))
    return [Form(usage, call, (first,) if first else ())]


@contextmanager
def _stopped_at_arguments() -> Iterator[None]:
    """Make every parser raise `Captured` instead of parsing."""

    def read(kind: Any, argv: list[str], prog: str, default: Any = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            parser = (
                tyro.extras.get_parser(kind, prog=prog)
                if default is None
                else tyro.extras.get_parser(kind, prog=prog, default=default)
            )
        raise Captured(parser, kind if default is None else default)

    def parse_args(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        raise Captured(parser)

    with (
        mock.patch.object(arguments, "read", read),
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args),
    ):
        yield


def _section(verb: str, line: str, data: str) -> str:
    parts = [f"## vla {verb}", "", f"{line[:1].upper()}{line[1:]}.", ""]
    for form in forms(verb, data):
        parts += _form(verb, form, _captured(verb, form))
    return "\n".join(parts)


def _captured(verb: str, form: Form) -> Captured:
    try:
        form.start(list(form.example))
    except Captured as captured:
        return captured
    raise ValueError(f"vla {verb} {form.usage} ended before it read its arguments")


def _form(verb: str, form: Form, captured: Captured) -> list[str]:
    parser = captured.parser
    positional = [_name(action) for action in parser._actions if not action.option_strings]  # noqa: SLF001
    words = " ".join(word for word in ("vla", verb, form.usage, *positional) if word)
    rows = [_choice(*choice) for choice in CHOICES.get(verb, ())]
    rows += [
        _choice(f"--{path.replace('_', '-')}.type", *rest)
        for path, *rest in _plugins(captured.config, "")
    ]
    rows += [row for row in map(_row, parser._actions) if row]  # noqa: SLF001
    table = ["| flag | default | |", "|---|---|---|", *rows, ""] if rows else []
    return [f"```\n{words}{' [FLAGS]' if rows else ''}\n```", "", *table]


def _row(action: argparse.Action) -> str:
    """Return a table row of one argument; none for `--help`."""
    if action.dest == "help":
        return ""
    text = " ".join(str(action.help or "").split())
    text, default = _split_default(text)
    if action.default not in (None, argparse.SUPPRESS) and not default and not _missing(action):
        default = _plain(action.default)
    if action.required and not default:
        default = "required"
    text = f"{text[:1].upper()}{text[1:]}"
    return f"| `{_cell(_name(action))}` | {_default(default)} | {_cell(_sentence(text))} |"


def _missing(action: argparse.Action) -> bool:
    return "MISSING" in repr(action.default) or action.default == []


def _split_default(text: str) -> tuple[str, str]:
    """Return tyro's help without its trailing "(default: X)" or "(required)", and that X."""
    match = re.search(r"\s*\((required|optional|default: .*|default if used: .*)\)$", text)
    if match is None:
        return text, ""
    default = match[1].removeprefix("default: ")
    return text[: match.start()], default or "none"


def _name(action: argparse.Action) -> str:
    metavar = action.metavar
    if isinstance(metavar, tuple):
        metavar = " ".join(metavar)
    if metavar is None and action.choices is not None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    if metavar is None and action.nargs != 0:
        metavar = action.dest.upper()
    metavar = " ".join((metavar or "").replace("{None}|", "").split())
    if not action.option_strings:
        return metavar.replace("[[", "[").replace("]]", "]")
    flags = ", ".join(dict.fromkeys(action.option_strings))
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0 or not metavar:
        return flags
    return f"{flags} {metavar}"


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)


def _default(text: str) -> str:
    """Return a default as a cell, without machine-specific paths."""
    if text in ("", "required"):
        return text
    text = text.replace(str(ROOT), ".").replace(os.path.expanduser("~"), "~")
    return f"`{_cell(text)}`" if text not in ("none", "None", "''") else "none"


def _sentence(text: str) -> str:
    return text if not text or text[-1] in ".!?:)" else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _choice(flag: str, folders: str | tuple[str, ...], default: str) -> str:
    """Return a row of a flag that takes the name of a plug-in from `folders`."""
    folders = (folders,) if isinstance(folders, str) else folders
    names = ", ".join(f"`{name}`" for folder in folders for name in registry.names(folder))
    return f"| `{flag} NAME` | {f'`{default}`' if default else ''} | One of {names}. |"


def _plugins(config: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    """Yield path, folder and default of every plug-in field of a configuration."""
    if isinstance(config, functools.partial):
        for default in config.keywords.values():
            yield from _plugins(default, path)
        return
    if isinstance(config, type) or not dataclasses.is_dataclass(config):
        return
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        here = f"{path}.{field.name}" if path else field.name
        if "package" in field.metadata:
            yield here, field.metadata["package"], type(value).__module__.rsplit(".", 1)[-1]
        if dataclasses.is_dataclass(value):
            yield from _plugins(value, here)


def _anchor(verb: str) -> str:
    return f"vla {verb}".replace(" ", "-")


def main(argv: list[str]) -> int:
    """Write the page, or with --check compare it; return the exit code."""
    text = render()
    if argv == ["--check"]:
        present = PAGE.read_text() if PAGE.is_file() else ""
        if present == text:
            return 0
        changes = difflib.unified_diff(
            present.splitlines(), text.splitlines(), "docs/cli.md", "parsers", n=0, lineterm=""
        )
        print("\n".join(list(changes)[:20]), file=sys.stderr)
        print("docs/cli.md is out of date: run `python tools/cli_docs.py`", file=sys.stderr)
        return 1
    if argv:
        print("usage: python tools/cli_docs.py [--check]", file=sys.stderr)
        return 2
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
