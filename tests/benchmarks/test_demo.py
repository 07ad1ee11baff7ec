"""`vla` understands the main job's commands, and its table reads their results."""

import io
import json

import pytest
from rich.console import Console

from benchmarks import demo
from tests.test_docs import UNKNOWN, problem_of, stops

__all__ = ["stops"]


@pytest.mark.parametrize("words", demo.commands(demo.OUT), ids=lambda words: " ".join(words[:3]))
def test_every_command_is_understood(words, stops, tmp_path):
    (tmp_path / "meta").mkdir()
    problem = problem_of(["vla", *words], stops, str(tmp_path))
    assert not UNKNOWN.search(problem), problem


def test_the_summary_shows_every_policy_with_its_interval(tmp_path):
    for i, name in enumerate((*demo.MEMORIES, *demo.ONLINE)):
        (tmp_path / name).mkdir()
        result = {"task": {"type": "reach"}, "success": [True] * i + [False] * (10 - i)}
        (tmp_path / name / "evaluation.json").write_text(json.dumps(result))
    page = io.StringIO()
    Console(file=page, width=120).print(demo.summary(tmp_path, 60.0))
    assert "30.0%" in page.getvalue()
    assert "10.8% to 60.3%" in page.getvalue()  # Wilson, 3 of 10
    assert "1.0 minutes in all" in page.getvalue()
