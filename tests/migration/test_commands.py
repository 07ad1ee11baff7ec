"""Verbs and flags of earlier releases are refused, and the answer has the new name."""

import contextlib
import functools
import importlib
import io
import os
import re
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.migration.recorded import FORMAT_1
from vla import cli
from vla.contracts import registry, renames

POSITIONAL = (
    (), (str(FORMAT_1 / "checkpoints/bank"),), (str(FORMAT_1 / "exported/bank"),), ("reach",),
)  # fmt: skip
"""Words between a verb and its flags: without some of them, a few verbs read no flag."""
GROUPS = {
    "--policy.backbone": "vla.backbones", "--policy.head": "vla.heads", "--policy": "vla.policies",
    "--algo": "training.algos", "--backend": "sim.backends", "--task": "sim.tasks",
    "--reward-model": "reward_models.models",
}  # fmt: skip
"""Plug-ins whose settings are flags of a group."""
LIKELY = ("train", "train rl", "demos", "reward-model train", "hub push", "eval")
"""Verbs to look at first for a flag of any verb."""
FLAGS = [(verb, old, new) for verb, table in renames.FLAGS.items() for old, new in table.items()]


def run(words: tuple[str, ...]) -> tuple[int, str]:
    """Return exit code and output of a command."""
    out, code = io.StringIO(), 0
    wide = mock.patch.dict(os.environ, {"COLUMNS": "1000", "MNEME_DEBUG": ""})
    with wide, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            if words[:2] == ("python", "-m"):
                code = importlib.import_module(words[2]).main(list(words[3:]))
            else:
                code = cli.main(list(words))
        except ValueError as error:
            code, _ = 1, out.write(str(error))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue()


@functools.cache
def help_of(words: tuple[str, ...]) -> str:
    return plain(run((*words, "--help"))[1])


def plain(text: str) -> str:
    """Return text without colours, with flags as tyro prints them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"--[\w.-]+", lambda flag: flag[0].replace("_", "-"), text)


def names(text: str, flag: str) -> bool:
    """Return whether a text has a flag, or a group of flags."""
    return re.search(re.escape(plain(flag)) + r"(?![\w-])", text) is not None


def commands(verb: str, flag: str) -> Iterator[tuple[str, ...]]:
    """Yield words that may lead to a parser with a flag of a verb ("" for any)."""
    verbs = dict.fromkeys((*LIKELY, *cli.VERBS)) if not verb else (verb,)
    if verb and verb in cli.VERBS:
        verbs = (verb, *(name for name in cli.VERBS if name.startswith(f"{verb} ")))
    for name in verbs:
        for positional in POSITIONAL:
            line = (*name.split(), *positional)
            yield line
            for group, folder in GROUPS.items():
                if flag.startswith(f"{group}."):
                    yield from ((*line, f"{group}.type", key) for key in registry.names(folder))


@pytest.mark.parametrize(("old", "new"), renames.VERBS.items())
def test_an_old_verb_is_answered_with_the_new_one(old, new, capsys):
    assert any(name == new or name.startswith(f"{new} ") for name in cli.VERBS)
    assert old not in cli.VERBS
    assert cli.main([*old.split(), "--help"]) == 2
    assert f"`vla {old}` is now `vla {new}`" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "old", "new"), FLAGS)
def test_an_old_flag_is_answered_with_the_new_one(verb, old, new):
    flag = new.split()[0]
    line = next((words for words in commands(verb, flag) if names(help_of(words), flag)), None)
    assert line is not None, f"no parser of verb {verb!r} has {flag}"
    answers = (run((*words, old, "1")) for words in (line, *commands(verb, old)))
    assert any(code in (1, 2) and names(plain(text), flag) for code, text in answers)


@pytest.mark.parametrize(("old", "new"), renames.PLUGINS["training.algos"].items())
def test_an_old_plug_in_is_answered_with_the_new_one(old, new):
    code, text = run(("train", "rl", "--algo.type", old))
    assert code == 1
    assert f"--algo.type: {old} is now {new}" in text
