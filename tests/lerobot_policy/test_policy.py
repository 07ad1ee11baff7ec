"""Policy `mneme` in LeRobot's loops: the same actions, windows, loss and noise as ours."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot")

from gymnasium.envs import registration
from lerobot.configs.types import NormalizationMode
from lerobot.datasets.factory import resolve_delta_timestamps
from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
from lerobot.envs.factory import make_env
from lerobot.policies.factory import make_policy, make_pre_post_processors
from lerobot.scripts.lerobot_eval import rollout

from lerobot_policy_mneme import MnemeConfig, MnemeEnvConfig, MnemePolicy, env
from lerobot_policy_mneme.batch import CLOCK, PLACE, episodes
from lerobot_policy_mneme.configuration_mneme import features, update_from_vla
from lerobot_policy_mneme.origin import arm, check_channels, check_units, new_policy, statistics
from sim import vec_env
from sim.experts.episode import record_episode
from sim.tasks import cue_colour
from tests.fakes import liven_
from tests.training.small_policy import SLOTS, small_policy
from training.data.batches import episode_batch
from training.evaluation.evaluate import Player
from vla.checkpoint import provenance
from vla.contracts import config as configs
from vla.contracts import registry
from vla.data.store import load_episodes
from vla.data.writer import write_shard
from vla.memory import bank, gru

TASK = cue_colour.Config(delay_steps=(16, 16), act_steps=16)
SETTINGS = {"delay_steps": [16, 16], "act_steps": 16}
SEED = 2**40


def wrapped(policy, **settings):
    """Return a policy of ours as LeRobot's."""
    cameras = {camera.name: (96, 96) for camera in policy.robot.cameras}
    inputs, outputs = features(cameras, len(policy.robot.channels))
    config = MnemeConfig(
        device="cpu", input_features=inputs, output_features=outputs, **settings
    )  # fmt: skip
    update_from_vla(config, policy.config)
    return MnemePolicy(config, loaded=(policy, provenance({}, (), 0)))


@pytest.fixture(scope="module")
def moving():
    return lively()


@pytest.fixture(scope="module", params=[bank.Config(slots=SLOTS), gru.Config(hidden_size=16)])
def remembering(request):
    """Return policies whose memories have states of other shapes."""
    return lively(request.param)


def lively(memory=None):
    policy = small_policy(memory)
    liven_(policy, 0, 0.08)
    return policy.eval()


def as_in_vla_eval(policy, rows, seed):
    """Return the actions f32 [rows, steps, u] of `vla eval`, up to the end of each episode."""
    envs = vec_env.make("cue_colour", rows, task_config=TASK)
    player, seen = Player(policy, rows, seed), envs.reset(seed)
    taken = [[] for _ in range(rows)]
    going = np.ones(rows, bool)
    while going.any():
        chunk = player.decide(seen, np.arange(rows))
        step = envs.step_chunk(chunk)
        for row in np.flatnonzero(going):
            taken[row] += list(chunk[row, : step.info["steps"][row]])
        going &= ~(step.terminated | step.truncated)
        seen = step.obs
    return [np.stack(one) for one in taken]


def test_every_action_of_lerobots_rollout_is_that_of_vla_eval_to_the_bit(remembering):
    policy = wrapped(remembering)
    before, after = make_pre_post_processors(policy.config)
    config = MnemeEnvConfig(task="cue_colour", settings=SETTINGS, episodes_seed=SEED)
    envs = make_env(config, n_envs=2)["mneme"][0]
    untouched = (lambda batch: batch, lambda batch: batch)
    found = rollout(envs, policy, *untouched, before, after, seeds=[0, 1])
    expected = as_in_vla_eval(remembering, 2, SEED)
    for row, ours in enumerate(expected):
        assert len(ours) > 8, "more than one decision"
        np.testing.assert_array_equal(found["action"][row, : len(ours)].numpy(), ours)
        assert found["done"][row].int().argmax() == len(ours) - 1
    envs.close()


def moment(rows, steps, episode, seed=0, state=None):
    """Return a batch as LeRobot's processors leave it, with the clock of our environments."""
    rng = np.random.default_rng(4)
    pictures = {
        f"observation.images.{name}": torch.from_numpy(
            rng.random((2, 3, 96, 96), np.float32)[:rows]
        )
        for name in ("front", "wrist")
    }
    batch = {
        **pictures, "observation.state": torch.zeros(rows, 6) if state is None else state,
        "task": ["press the button of the colour the lamp showed"] * rows,
    }  # fmt: skip
    if steps is not None:
        told = torch.tensor([[s, e, seed] for s, e in zip(steps, episode, strict=True)])
        batch[PLACE] = {CLOCK: told}
    return batch


def test_a_row_that_restarts_decides_anew_and_forgets_and_its_neighbour_goes_on(remembering):
    policy, other = wrapped(remembering), wrapped(remembering)
    for step in range(5):
        policy.select_action(moment(2, [step, step], [0, 1]))
    # Row 0 begins episode 7 in the middle of its chunk; row 1 goes on with its own.
    planned = policy.player.planned[1].clone()
    restarted = policy.select_action(moment(2, [0, 5], [7, 1]))
    fresh = other.select_action(moment(1, [0], [7]))
    torch.testing.assert_close(restarted[:1], fresh)
    before = policy.player.state.map(torch.clone)
    for name, value in other.player.state.tensors.items():
        torch.testing.assert_close(before[name][:1], value)
    assert restarted[1].equal(planned[5])
    for step in range(6, 9):
        policy.select_action(moment(2, [step - 5, step], [7, 1]))
    for name, value in policy.player.state.tensors.items():  # row 1 alone has decided since
        assert value[0].equal(before[name][0])
        assert not value[1].equal(before[name][1])
    assert policy.player.decision.tolist() == [1, 2]


def test_without_a_clock_calls_count_the_time_and_reset_empties_memory(moving):
    policy, clocked = wrapped(moving, noise_seed=5), wrapped(moving)
    for step in range(10):
        mine = policy.select_action(moment(1, None, None))
        theirs = clocked.select_action(moment(1, [step], [0], seed=5))
        assert mine.equal(theirs), step
    assert policy.player.state["slot_count"].sum().item() == 2
    policy.reset()
    after = policy.select_action(moment(1, None, None))
    clocked.reset()
    assert after.equal(clocked.select_action(moment(1, [0], [1], seed=5))), "another episode"
    assert policy.player.state["slot_count"].sum().item() == 1


def test_a_chunk_is_a_decision_and_select_action_serves_its_beginning(moving):
    policy, other = wrapped(moving), wrapped(moving)
    chunk = policy.predict_action_chunk(moment(2, None, None))
    assert chunk.shape == (2, 16, 6)
    for step in range(8):
        assert other.select_action(moment(2, None, None)).equal(chunk[:, step])
    torch.testing.assert_close(
        policy.predict_action_chunk(moment(2, None, None))[:, 0],
        other.select_action(moment(2, None, None)),
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two demonstrations, as LeRobot's data set with windows for `history` 3."""
    data = tmp_path_factory.mktemp("recorded") / "data"
    episodes = [record_episode("cue_colour", 0, k, task_config=TASK) for k in range(2)]
    recording = {"task": configs.to_json(TASK), "robot": "so101"}
    write_shard(data, vec_env.load_robot(None), episodes, recording)
    config = MnemeConfig(device="cpu", history=3)
    meta = LeRobotDatasetMetadata("me/cue", root=data)
    stamps = resolve_delta_timestamps(config, meta)
    torch.manual_seed(0)  # noqa: TID251  LeRobot's own commands do so
    return SimpleNamespace(
        data=data, config=config, policy=make_policy(config, ds_meta=meta), meta=meta,
        set=LeRobotDataset("me/cue", root=data, delta_timestamps=stamps, video_backend="pyav"),
    )  # fmt: skip


def batch_of(recorded, frames):
    """Return frames as `lerobot-train` hands them to the policy."""
    batch = torch.utils.data.default_collate([recorded.set[k] for k in frames])
    before, _ = make_pre_post_processors(recorded.config, dataset_stats=recorded.meta.stats)
    return before(batch)


def test_windows_of_lerobot_are_the_decisions_of_our_own_store(recorded):
    """Time 16 of both episodes: decisions at 0, 8 and 16, as those that `vla train` sees."""
    second = int(recorded.policy.starts[1])
    got = episodes(
        batch_of(recorded, [16, second + 16]), recorded.policy.policy, recorded.policy.starts
    )
    store = load_episodes(recorded.data, stride=8)
    rng = np.random.default_rng(0)
    whole = episode_batch(store, np.arange(2), 16, 99, np.ones(len(store.frames)), rng)
    early = whole.step_index <= 16
    for name in ("proprio", "step_index", "episode_index", "decision"):
        assert getattr(got, name).equal(getattr(whole, name)[early]), name
    # LeRobot's decoder and ours need not round alike.
    assert (got.images.int() - whole.images[early].int()).abs().max() <= 2
    at = [i for i, q in enumerate(whole.loss_index) if whole.step_index[q] == 16]
    assert got.actions.equal(whole.actions[at])
    assert got.action_is_pad.equal(whole.action_is_pad[at])
    assert got.task == whole.task
    assert got.loss_index.tolist() == [2, 5]


def test_a_window_that_begins_before_its_episode_holds_what_there_is(recorded):
    second = int(recorded.policy.starts[1])
    frames = [0, 9, second + 3, second + 20]
    got = episodes(batch_of(recorded, frames), recorded.policy.policy, recorded.policy.starts)
    assert got.step_index.tolist() == [0, 1, 9, 3, 4, 12, 20]
    assert got.episode_index.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert got.decision.tolist() == [0, 0, 1, 0, 0, 1, 2]
    assert got.loss_index.tolist() == [0, 2, 3, 6]


def test_the_loss_is_that_of_vla_train_and_none_gives_it_by_sample(recorded):
    policy, batch = recorded.policy.train(), batch_of(recorded, [3, 17, 30])
    with torch.random.fork_rng():
        torch.manual_seed(7)  # noqa: TID251  LeRobot seeds this one
        loss, told = policy.forward(batch)
        torch.manual_seed(7)  # noqa: TID251
        each, _ = policy.forward(batch, reduction="none")
        torch.manual_seed(7)  # noqa: TID251
        generator = policy._random()
    seen = episodes(batch, policy.policy, policy.starts)
    ours, _ = policy.policy.bc_loss(seen, generator)
    torch.testing.assert_close(loss, ours)
    assert each.shape == (3,)
    torch.testing.assert_close(each.mean(), loss)
    assert told["loss"] == pytest.approx(loss.item())


def test_memory_learns_through_the_window_and_not_where_there_is_none(recorded):
    batch = batch_of(recorded, [17])
    pictures = batch["observation.images.front"]
    pictures.requires_grad_(False)
    changed = {**batch, "observation.images.front": pictures.clone()}
    changed["observation.images.front"][:, 0] = 1 - pictures[:, 0]  # the decision at time 1
    policy = recorded.policy.eval()
    losses = []
    for one in (batch, changed):
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(7)  # noqa: TID251
            losses.append(float(policy.forward(one)[0]))
    assert losses[0] != losses[1], "what was seen two decisions ago has a share in the loss"
    forgetful = MnemeConfig(device="cpu", history=3, parts={"memory": {"type": "none"}})
    assert forgetful.observation_delta_indices == [0]
    assert recorded.config.observation_delta_indices == [-16, -8, 0]


def test_what_a_batch_lacks_is_named(recorded, moving):
    batch = batch_of(recorded, [17])
    policy = recorded.policy
    without = {k: v for k, v in batch.items() if k != "observation.state_is_pad"}
    with pytest.raises(ValueError, match="observation.state_is_pad: missing from the batch"):
        policy.forward(without)
    with pytest.raises(ValueError, match="does not agree with `index`"):
        policy.forward({**batch, "index": batch["index"] - 5})
    with pytest.raises(ValueError, match="training batch without dataset_meta"):
        wrapped(moving).forward(batch)
    acting = wrapped(moving)
    blind = moment(1, [0], [0])
    del blind["observation.images.wrist"]
    with pytest.raises(ValueError, match="images.wrist: missing, got obs"):
        acting.select_action(blind)
    with pytest.raises(ValueError, match="expected an instruction each"):
        acting.select_action({**moment(1, [0], [0]), "task": [""]})
    acting.reset()
    acting.select_action(moment(1, [0], [0]))
    with pytest.raises(ValueError, match=r"rows: got 2, expected 1 as before; call reset\(\)"):
        acting.select_action(moment(2, [1, 1], [0, 1]))


def test_a_data_set_of_another_arm_or_unit_is_refused(recorded):
    meta, stats = recorded.meta, recorded.meta.stats
    config = MnemeConfig(device="cpu", robot="panda")
    with pytest.raises(ValueError, match="cameras|has .*shoulder_pan"):
        new_policy(config, meta, stats)
    robot = arm(recorded.config, meta, {"robot": "so101"})
    degrees = replace(statistics(stats), action_high=(90.0,) * 6)
    with pytest.raises(ValueError, match="range from .* to 90, the arm from .* rad or m"):
        check_units(robot, degrees, meta)
    with pytest.raises(ValueError, match="10 frames per second, the policy acts at 30 Hz"):
        check_channels(replace(robot, control_hz=30.0), meta)
    with pytest.raises(ValueError, match="no std of observation.state"):
        statistics({**stats, "observation.state": {"mean": [0.0] * 6}})
    with pytest.raises(ValueError, match=r"name the arm with --policy.robot="):
        arm(recorded.config, meta, {})
    config = MnemeConfig(device="cpu", parts={"chunk_size": 4}, input_features={})
    with pytest.raises(ValueError, match="parts.chunk_size: give --policy.chunk_size instead"):
        new_policy(
            MnemeConfig(device="cpu", parts={"chunk_size": 4}, input_features={}), meta, stats
        )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "pick_plaice"}, "unknown task 'pick_plaice': did you mean pick_place"),
        ({"robot": "so11"}, "unknown robot 'so11': did you mean so101"),
        ({"settings": {"delay": 3}, "task": "cue_colour"}, "unknown field 'delay'"),
        ({"episodes_seed": -1}, "episodes_seed: got -1, expected at least 0"),
    ],
)
def test_an_environment_that_is_none_is_one_sentence(settings, said):
    with pytest.raises(ValueError, match=said):
        MnemeEnvConfig(**settings)


def test_settings_out_of_range_are_one_sentence():
    with pytest.raises(ValueError, match="history: got 0, expected at least 1"):
        MnemeConfig(device="cpu", history=0)
    with pytest.raises(ValueError, match="STATE.*expected IDENTITY"):
        MnemeConfig(
            device="cpu", normalization_mapping={"STATE": NormalizationMode.MIN_MAX}
        )  # fmt: skip
    inputs, outputs = features({"front": (96, 96)}, 6)
    alone = MnemeConfig(device="cpu", input_features=inputs, output_features=outputs)
    with pytest.raises(ValueError, match="neither a data set nor a policy"):
        MnemePolicy(alone)


def test_every_task_is_registered_and_a_seed_is_the_number_of_an_episode():
    for task in registry.names("sim.tasks"):
        assert MnemeEnvConfig(task=task).gym_id in registration.registry
    assert MnemeEnvConfig(task="reach", fps=30).gym_kwargs["fps"] == 30
    one = env.MnemeTask("reach", episodes_seed=9)
    seen, _ = one.reset(seed=4)
    assert seen["robot_state"][CLOCK].tolist() == [0, 4, 9]
    assert one.observation_space.contains(seen)
    stepped, *_ = one.step(np.array(vec_env.load_robot(None).home, np.float32))
    assert stepped["robot_state"][CLOCK].tolist() == [1, 4, 9]
    following, _ = one.reset()
    assert following["robot_state"][CLOCK].tolist() == [0, 5, 9]
    envs = vec_env.make("reach", 6)
    ours = envs.reset(9)
    np.testing.assert_array_equal(seen["pixels"]["front"], ours.images[4, 0])
    np.testing.assert_array_equal(following["pixels"]["wrist"], ours.images[5, 1])
    assert one.task_description == ours.task[5]
    np.testing.assert_array_equal(one.render(), ours.images[5, 0])
    one.close()
