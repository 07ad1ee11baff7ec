"""The study counts what it says it counts; its episodes here are made up."""

import numpy as np
import pytest

from benchmarks.robot_bridge import monitor_study
from benchmarks.robot_bridge.monitor_study import Episode, choose, summary, watch
from robot_bridge.sensing.progress_monitor import ProgressMonitorConfig
from vla.utils.statistics import wilson

CONFIG = ProgressMonitorConfig(stall_s=1.0, help_s=2.5, drop=0.3, sustain_s=0.2, window_s=0.2)


def episode(truth, good, behaviour="expert", done=None):
    """Return an episode whose reward model says the truth."""
    truth = np.array(truth, np.float32)
    done = np.full(len(truth), float(good) * (truth >= 1)) if done is None else done
    said = np.stack([truth, done, np.full(len(truth), 0.9)], 1).astype(np.float32)
    return Episode(behaviour, good, 0.2 * np.arange(len(truth)), truth, said)


DONE = episode([*np.linspace(0, 1, 11), *[1.0] * 20], good=True)
FROZEN = episode([*np.linspace(0, 0.5, 6), *[0.5] * 20], good=False, behaviour="freeze")
DROPPED = episode([*np.linspace(0, 0.8, 9), *[0.1] * 5], good=False, behaviour="drop")


def test_a_watch_says_when_and_for_how_long():
    found = watch(CONFIG, FROZEN)
    # The median of two moments ends its rise at 1.2 s: slow 1 s after it, help 2.5 s after it,
    # which is seen with the next moment.
    assert found.first_s == pytest.approx(
        {"nominal": 0.0, "stalled": 2.2, "intervention_requested": 3.8}
    )
    assert sum(found.spent_s.values()) == pytest.approx(5.0)
    assert set(watch(CONFIG, DONE).first_s) == {"nominal", "done"}


def test_figures_are_by_outcome_with_intervals_and_delays():
    figures = summary(CONFIG, [DONE, FROZEN, DROPPED])
    assert (figures["good"]["number"], figures["good"]["any"]) == (1, 0.0)
    assert (figures["bad"]["any"], figures["bad"]["regressed"]) == (1.0, 0.5)
    assert figures["bad: drop"]["delay_s"] == pytest.approx([0.6], abs=0.21)
    assert figures["bad"]["any 95 %"] == pytest.approx(wilson(2, 2))


def test_the_chosen_thresholds_have_no_more_false_alarms_than_allowed():
    config = choose([DONE, FROZEN, DROPPED], 0.0)
    figures = summary(config, [DONE, FROZEN, DROPPED])
    assert (figures["good"]["any"], figures["bad"]["any"]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 1 good and 0 bad episodes; need both"):
        choose([DONE], 0.0)


def test_the_command_says_what_is_missing(capsys, tmp_path):
    assert monitor_study.main(["--reward-model", str(tmp_path), "--dataset", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}")
