"""Labels of successes in hindsight, in place of the simulator's state."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.training.rl.fake_rollouts import episode, groups
from tests.training.rl.runs import ALGOS, config, start
from training.core import loop
from training.core.config import EvalConfig
from training.core.metrics import read_metrics
from training.rl.experience import episode_store
from training.rl.value import keyframes
from training.rl.value.state_estimator import FILE
from vla.contracts.specs import Gripper
from vla.robots import so101

QUICK = EvalConfig(every=0, final_episodes=0)
SO101 = so101.SPEC
ROBOT = replace(
    SO101, channels=SO101.channels[-2:], home=SO101.home[-2:],
    gripper=Gripper(channel=SO101.names[-1], open=1.0, closed=0.0),
)  # fmt: skip
BY_EXPERT = groups(jump_start={"fraction": 1.0, "max_guide_steps": 100})


def run(**changes):
    """Return a run on keyframes whose episodes the expert begins and ends."""
    algo = ALGOS["asymmetric_ac"]
    algo = replace(algo, value=replace(algo.value, state="keyframes"))
    return replace(config("asymmetric_ac", eval=QUICK, **{**BY_EXPERT, **changes}), algo=algo)


def test_labels_are_the_poses_now_at_the_next_reversal_of_the_gripper_and_at_the_end() -> None:
    done = episode(5, success=True)
    done.actions[:, :, 1] = np.array([0.9, 0.8, 0.1, 0.0, 0.9])[:, None]  # closes in 2, opens in 4
    done.actions[1, 0, 1] = 0.0  # only the last action of a decision counts
    labels = keyframes.keyframe_labels(done, ROBOT)
    pose = done.proprio
    ahead = pose[[2, 2, 2, 4, 4]]
    assert np.array_equal(labels, np.concatenate([pose[:5], ahead, pose[[5] * 5]], 1))
    assert keyframes.names(ROBOT)[2:4] == tuple(f"next_keyframe/{name}" for name in ROBOT.names)


def test_without_a_reversal_the_next_keyframe_is_the_end() -> None:
    done = episode(3, success=True)
    done.actions[:, :, 1] = 1.0
    labels = keyframes.keyframe_labels(done, ROBOT)
    assert np.array_equal(labels[:, 2:4], labels[:, 4:])


def test_a_run_on_keyframes_reads_nothing_of_the_simulator(begun, tmp_path) -> None:
    place = start(begun, tmp_path)
    loop.run(run(), place, tmp_path / "run", Console(quiet=True))
    rollouts = episode_store.read_newest(place.experience, 4)
    assert any(e.success for e in rollouts)
    assert all(e.simulator_state.size == 0 for e in rollouts)
    last = read_metrics(tmp_path / "run")[-1]
    assert np.isfinite(last["value_loss"])
    # Nobody takes it for an estimate of the simulator's state.
    assert not (tmp_path / "run/checkpoint" / FILE).exists()


def test_without_a_success_there_are_no_keyframes(begun, tmp_path) -> None:
    nobody = run(jump_start=groups(jump_start={})["jump_start"], reward="sparse")
    with pytest.raises(ValueError, match="got no success among 2 rollouts .* collect more"):
        loop.run(nobody, start(begun, tmp_path), tmp_path / "run", Console(quiet=True))
