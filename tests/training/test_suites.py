"""A policy acts in other people's simulators as it does in ours: demonstrations, evaluation."""

import pytest
import torch

from sim import vec_env
from sim.env_server import suite_installs
from sim.experts import suite_episode
from tests.training.rl.rollouts import collect_rollouts
from training.commands import train, train_rl
from training.data import demos
from training.evaluation.evaluate import evaluate
from training.rl.config import OnlineRLConfig
from vla.contracts.config import PluginConfig, from_json, to_json
from vla.data.reader import open_dataset
from vla.memory import none
from vla.nn.normalize import NormalizationStatistics
from vla.nn.text import train_tokenizer
from vla.policies import vla
from vla.policies.vla import VLAPolicy

SUITES = sorted(s for s in suite_installs.suites() if not suite_installs.is_backend(s))
REACH = "gymnasium_env/sim.gym_plugin:mneme/Reach-v0"


def fresh_policy(task: PluginConfig) -> VLAPolicy:
    """Return a policy with random weights for the arm of a suite's task."""
    arm = vec_env.load_arm(task)
    count = len(arm.channels)
    scale = NormalizationStatistics(
        state_mean=(0.0,) * count, state_std=(1.0,) * count, action_low=arm.low,
        action_high=arm.high,
    )  # fmt: skip
    cameras = tuple(camera.name for camera in arm.cameras)
    config = vla.Config(memory=none.Config(), cameras=cameras)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever tests ran before
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        return config.build(arm, scale, train_tokenizer(("do it",))).eval()


def test_a_policy_is_evaluated_on_any_registered_gymnasium_id() -> None:
    task = vec_env.load_task(REACH)
    found = evaluate(fresh_policy(task), task, episodes=3, seed=4)
    assert found.summary().startswith(f"{REACH}: ")
    assert len(found.success) == 3
    assert all(0 < steps <= 40 for steps in found.steps)


def test_the_same_episodes_through_a_gymnasium_id_as_in_our_own_environments() -> None:
    task = vec_env.load_task(REACH)
    theirs = vec_env.make(REACH, 1).reset(4)
    ours = vec_env.make("reach", 1).reset(4)
    assert theirs.images.shape == ours.images.shape
    assert vec_env.load_arm(task).control_hz == 10.0


def test_a_suite_without_an_expert_demonstrates_nothing() -> None:
    with pytest.raises(ValueError, match="has no scripted expert"):
        suite_episode.check(vec_env.load_task(REACH), "expert")


@pytest.mark.parametrize(
    ("behaviour", "visual_shift", "said"),
    [("drop", "none", "behaviour: got 'drop'"), ("expert", "camera", "visual_shift: got 'camera'")],
)
def test_what_suites_do_not_play_is_refused(behaviour: str, visual_shift: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        suite_episode.check(vec_env.load_task(REACH), behaviour, visual_shift)


def test_naming_a_task_chooses_a_recipe_for_it_with_the_cameras_of_its_arm() -> None:
    args = train.parse(["--task", "metaworld/drawer-open-v3", "--out", "a"])
    assert vec_env.title(args.train.task) == "metaworld/drawer-open-v3"
    assert args.train.policy.cameras == ("corner", "gripper")
    assert train.parse(["--task", "push", "--out", "a"]).train.policy.cameras == ("front", "wrist")


def test_online_rl_takes_a_suites_task_and_its_settings_survive_as_json() -> None:
    words = ["--out", "a", "--policy.path", "p", "--dataset", "d", "--algo.type", "aux_bc"]
    run = train_rl.parse(["--task", "metaworld/push-v3", *words]).train
    assert vec_env.title(run.task) == "metaworld/push-v3"
    assert from_json(OnlineRLConfig, to_json(run)) == run


def test_rollouts_are_collected_on_a_suites_task() -> None:
    task = vec_env.load_task(REACH)
    episodes = collect_rollouts(fresh_policy(task), task, episodes=2, seed=4, version=0)
    assert all(0 < len(e.actions) <= 40 for e in episodes)


def test_a_suites_task_refuses_another_arm_and_another_backend() -> None:
    task = vec_env.load_task("metaworld/push-v3")
    with pytest.raises(ValueError, match="the arm of metaworld/push-v3"):
        vec_env.load_arm(task, "panda")
    with pytest.raises(ValueError, match="brings its own simulator"):
        vec_env.make("metaworld/push-v3", 1, backend="mujoco_warp")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES)
def test_a_policy_is_evaluated_in_every_suite_that_is_installed(suite: str) -> None:
    if suite_installs.state(suite) != "installed":
        pytest.skip(f"not installed: vla env add {suite}")
    note = suite_installs.note(suite)
    if not (note.health and note.health.works):
        pytest.skip(f"does not work here: vla env list --check says why ({suite})")
    task = vec_env.load_task(f"{suite}/{suite_installs.described(suite).sample}")
    found = evaluate(fresh_policy(task), task, episodes=1, seed=4)
    assert found.steps[0] > 0
    assert not found.success[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_suites_expert_is_recorded_as_a_data_set(tmp_path) -> None:
    if suite_installs.state("metaworld") != "installed":
        pytest.skip("not installed: vla env add metaworld")
    task = vec_env.load_task("metaworld/door-close-v3")
    config = demos.DemosConfig(out=tmp_path / "d", episodes=2, workers=1, task=task)
    demos.check(config)
    demos.record_demos(config)
    info = open_dataset(tmp_path / "d")
    assert info.num_episodes == 2
    assert info.action_names == ("dx", "dy", "dz", "grip")
    assert info.recording is not None
    assert info.recording["robot"] == "metaworld_sawyer"
