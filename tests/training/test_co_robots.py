"""One policy for two arms: one run, one checkpoint, the numbers of each arm its own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from deploy.commands import export as export_command
from sim.tasks import reach
from tests.training.tiny_run import tiny_config
from training.commands import eval as eval_command
from training.commands import train
from training.core.config import Demonstrations, EvalConfig, TrainConfig
from vla import checkpoint
from vla.contracts.types import Observation
from vla.policies.vla import VLAPolicy
from vla.robots import panda, so101
from vla.runtime import policy_loader


def config(**changes: object) -> TrainConfig:
    run = tiny_config(
        task=reach.Config(), co_robots=("panda",), demos=Demonstrations(episodes=2), steps=2,
        eval=EvalConfig(every=0, final_episodes=1),
    )  # fmt: skip
    algo = replace(run.algo, batch_size=4, short_decisions=0)
    return replace(run, **{"algo": algo, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates on both arms' demonstrations, recorded for it."""
    out = tmp_path_factory.mktemp("arms") / "run"
    train.train(config(), out, (), Console(quiet=True))
    return out


@pytest.fixture(scope="module")
def policy(run: Path) -> VLAPolicy:
    loaded: VLAPolicy = checkpoint.load(run)[0]
    return loaded


def observation(policy: VLAPolicy, seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    camera = policy.robot.cameras[0]
    images = rng.integers(0, 256, (1, 2, camera.height_px, camera.width_px, 3), np.uint8)
    return Observation(
        images=images,
        image_ok=np.ones((1, 2), np.bool_),
        proprio=np.array([policy.robot.home], np.float32),
        task=("reach",),
        time_s=np.zeros(1),
    )


def test_the_run_records_and_evaluates_every_arm(run: Path) -> None:
    names = {folder.name for folder in run.parent.glob("data-*") if "cache" not in folder.name}
    assert names == {"data-run", "data-run-panda"}
    result = json.loads((run / "evaluation.json").read_text())
    assert [result["robot"], *(other["robot"] for other in result["others"])] == ["so101", "panda"]


def test_each_arm_has_its_own_numbers_and_the_same_weights(policy: VLAPolicy) -> None:
    other = policy.for_robot("panda")
    assert (policy.robot, other.robot) == (so101.SPEC, panda.SPEC)
    assert other.for_robot("so101").statistics == policy.statistics
    assert policy.statistics != other.statistics
    assert other.backbone is policy.backbone
    assert other.head.denoiser is policy.head.denoiser
    assert (policy.noise_shape[2], other.noise_shape[2]) == (6, 8)
    for arm in (policy, other):
        noise = np.zeros((1, *arm.noise_shape), np.float32)
        chunk, _ = arm.act(observation(arm), arm.initial_state(1), noise)
        assert chunk.values.shape == (1, 4, len(arm.robot.channels))
        low, high = (torch.tensor(x) for x in (arm.robot.low, arm.robot.high))
        assert (chunk.values >= low).all()
        assert (chunk.values <= high).all()


def test_an_arm_it_does_not_drive_is_refused(policy: VLAPolicy, run: Path) -> None:
    with pytest.raises(ValueError, match="got 'ur5', this policy drives so101, panda"):
        policy.for_robot("ur5")
    changed = replace(panda.SPEC, control_hz=20.0)
    with pytest.raises(ValueError, match="control_hz"):
        checkpoint.load(run, changed)


def test_a_checkpoint_is_loaded_for_any_of_its_arms(run: Path, policy: VLAPolicy) -> None:
    loaded: VLAPolicy = checkpoint.load(run, panda.SPEC)[0]
    assert loaded.robot == panda.SPEC
    other, noise = policy.for_robot("panda"), np.ones((1, *loaded.noise_shape), np.float32)
    chunks = [
        arm.act(observation(other), arm.initial_state(1), noise)[0].values
        for arm in (loaded, other)
    ]
    assert torch.equal(*chunks)


def test_vla_eval_and_vla_export_take_the_arm(
    run: Path, policy: VLAPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(run), "--robot", "panda", "--episodes", "1", "--videos", "0"]
    assert eval_command.main(asked) == 0
    (found,) = run.glob("eval-reach-panda-*/evaluation.json")
    assert json.loads(found.read_text())["robot"] == "panda"
    assert export_command.main([str(run), "--out", str(tmp_path / "e"), "--robot", "panda"]) == 0
    exported = policy_loader.open_policy(tmp_path / "e", threads=1).policy
    other = policy.for_robot("panda")
    noise = np.full((1, *other.noise_shape), 0.3, np.float32)
    obs = observation(other)
    here = other.act(obs, other.initial_state(1), noise)[0].values.numpy()
    there = exported.act(obs, exported.initial_state(1), noise)[0].values
    np.testing.assert_allclose(np.asarray(there), here, atol=1e-4)
    reference = policy_loader.open_policy(
        tmp_path / "e", threads=1, targets=("torch",), reference_checkpoint=run
    )
    assert reference.policy.robot == panda.SPEC


def test_a_run_goes_on_where_it_was(run: Path, tmp_path: Path) -> None:
    data = (run.parent / "data-run", run.parent / "data-run-panda")
    once, twice = tmp_path / "once", tmp_path / "twice"
    quiet = replace(config(), eval=EvalConfig(every=0, final_episodes=0), save_every=1)
    train.train(quiet, once, data, Console(quiet=True))
    learner = quiet.algo.start(quiet, data)
    learner.collect()
    state = learner.state()
    expected = learner.collect()
    again = quiet.algo.start(quiet, data)
    again.restore(state)
    for one, other in zip(expected, again.collect(), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.actions, other.actions)
    train.train(quiet, twice, data, Console(quiet=True))
    a, b = (checkpoint.load(folder)[0].state_dict() for folder in (once, twice))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_robots_are_told_apart_before_anything_is_recorded(tmp_path: Path) -> None:
    for names, said in ((("so101",), "got so101 beside so101"), (("ur5",), "ur5")):
        with pytest.raises(ValueError, match=said):
            train.train(config(co_robots=names), tmp_path / "run", (), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []


def test_data_sets_are_counted_and_widths_checked(run: Path) -> None:
    settings = config()
    with pytest.raises(ValueError, match="got 1 data sets for 1 tasks of 2 robots"):
        settings.algo.start(settings, (run.parent / "data-run",))
    narrow = replace(settings, policy=replace(settings.policy, max_action_dim=5), co_robots=())
    with pytest.raises(ValueError, match="max_action_dim: got 5, expected 0 or at least the 6"):
        narrow.algo.start(narrow, (run.parent / "data-run",))
