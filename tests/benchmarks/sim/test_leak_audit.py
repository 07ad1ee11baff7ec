"""The audit finds nothing in the memory tasks, and finds a leak that is put there."""

import numpy as np
import pytest

from benchmarks.sim import leak_audit
from sim.core.task import Rows, Worlds
from sim.tasks import _lock, cue_colour

QUICK = (16, 16)


@pytest.mark.parametrize("task", leak_audit.TASKS)
def test_after_the_cue_a_probe_can_only_guess(task: str) -> None:
    config = leak_audit.TASKS[task].config(delay_steps=QUICK, distractors=3)
    luck = 1 / config.choices
    control, *after = leak_audit.find_leaks(task, config, 80, vary=False)
    # It sees the cue, so it is not blind; in the 40 or more that are asked luck alone
    # stays below 0.25 + 3.1 * (0.25 * 0.75 / 40)^0.5 = 0.46, 999 times in 1000.
    assert control.share >= 0.9
    assert [f.answer for f in after] == ["cue", "side"]
    assert max(f.share for f in after) < luck + 3.1 * (luck * (1 - luck) / 40) ** 0.5


@pytest.mark.parametrize(
    ("task", "settings"),
    [*((task, {"distractors": 3}) for task in leak_audit.TASKS), ("cue_colour", {"choices": 3})],
)
def test_with_another_cue_the_rest_of_an_episode_is_the_same_to_the_bit(
    task: str, settings: dict[str, int]
) -> None:
    config = leak_audit.TASKS[task].config(delay_steps=QUICK, **settings)
    for index in range(2):
        assert len(leak_audit.traces(task, config, index)) == 1


def test_a_lamp_that_glows_faintly_after_the_cue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    light = cue_colour.CueColour.show_cue

    def glow(self: cue_colour.CueColour, worlds: Worlds, rows: Rows) -> None:
        light(self, worlds, rows)
        after = worlds.steps >= worlds.episode.schedule.cue_end
        off = np.array(_lock.OFF_RGB)
        tint = self._palette[worlds.episode.cue] - off
        worlds.paint("lamp", after, off + 0.03 * tint)

    monkeypatch.setattr(cue_colour.CueColour, "show_cue", glow)
    config = cue_colour.Config(delay_steps=QUICK)
    assert len(leak_audit.traces("cue_colour", config, 0)) == 4
    _, colour, _ = leak_audit.find_leaks("cue_colour", config, 80, vary=False)
    assert colour.share > 0.9
    assert not colour.passed


def test_the_probe_ignores_constant_columns_and_generalises() -> None:
    rng = np.random.default_rng(0)
    answer = np.arange(90) % 3
    informative = np.eye(3)[answer] + 0.1 * rng.normal(size=(90, 3))
    constant = np.full((90, 5), 7.0)
    features = np.hstack([informative, constant]).astype(np.float32)
    assert leak_audit.probe(features, answer, 3) == (90, 90)
    noise = rng.normal(size=(90, 400)).astype(np.float32)
    # More columns than rows fit the training rows perfectly; 30 +- 4.5 of the others by luck.
    assert leak_audit.probe(noise, answer, 3)[0] < 48


def test_a_frequent_answer_is_no_clue() -> None:
    # 70 zeros, 33 ones: always saying 0 would be right 68 % of the time. 30 of each are asked.
    answer = np.array([0] * 70 + [1] * 33)
    noise = np.random.default_rng(0).normal(size=(103, 50)).astype(np.float32)
    right, asked = leak_audit.probe(noise, answer, 2)
    assert asked == 60
    assert right < 30 + 3 * 15**0.5


def test_too_few_episodes_are_refused() -> None:
    with pytest.raises(ValueError, match="episodes: got 5, expected at least 100"):
        leak_audit.main(["--episodes", "5"])


def test_a_line_that_fails_is_checked_on_other_episodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def unlucky(*_: object, seed: int, **__: object) -> list[leak_audit.Finding]:
        leaks = seed in bad_seeds
        return [leak_audit.Finding("cue", "after", 0.25 + 0.1 * leaks, 0.2, 0.4, not leaks)]

    monkeypatch.setattr(leak_audit, "find_leaks", unlucky)
    monkeypatch.setattr(leak_audit, "REPLAYS", 0)
    bad_seeds = {0}
    assert leak_audit.main(["--task", "put_back"]) == 0
    out = capsys.readouterr().out
    assert "cue from after 35.0% (20.0% to 40.0%, guessing 25.0%) FAILED" in out
    assert "cue from after, other episodes 25.0% (20.0% to 40.0%, guessing 25.0%) ok" in out
    bad_seeds = {0, 1}
    assert leak_audit.main(["--task", "put_back"]) == 1
