"""Fixtures for the commands as a user meets them: a real data set, a real run, a refusal."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.lines import TRAIN, only_sentence
from vla import cli


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Six episodes of `reach`, recorded by the command."""
    out = tmp_path_factory.mktemp("recorded") / "data"
    assert cli.main(f"demos reach --episodes 6 --workers 1 --out {out}".split()) == 0
    return out


@pytest.fixture(scope="session")
def run(data, tmp_path_factory) -> Path:
    """A run of four updates on them, made by the command."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert cli.main(f"{TRAIN} --steps 4 --dataset {data} --out {out}".split()) == 0
    return out


@pytest.fixture
def refuse(capsys, monkeypatch) -> Callable[..., None]:
    """Return a check that a command line is refused in one sentence with certain words in it."""
    monkeypatch.delenv("MNEME_DEBUG", raising=False)

    def check(line: str, *words: str) -> None:
        capsys.readouterr()
        code = cli.main(line.split())
        sentence = only_sentence(capsys.readouterr().err)
        assert code in (1, 2)
        for word in words:
            assert word in sentence

    return check
