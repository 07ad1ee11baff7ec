"""Stock `lerobot-train` and `lerobot-eval`: our policy, our tasks, the episodes of `vla eval`."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("lerobot")

from sim import vec_env
from sim.experts.episode import record_episode
from sim.tasks import cue_colour, reach
from tests.lerobot_policy.stock import files, packed, run
from tests.lerobot_versions import EVAL_FREQ, rabc_flags
from training.evaluation.evaluate import evaluate
from vla import checkpoint, cli
from vla.contracts import config as configs
from vla.data.writer import write_shard

EPISODES, SEED = 6, 3
REACH = reach.Config(tolerance_m=0.12)
CUE = cue_colour.Config(delay_steps=(16, 24))


def evaluation(policy, task, settings, out):
    words = [
        f"--policy.path={policy}", "--policy.device=cpu", "--env.type=mneme", f"--env.task={task}",
        f"--env.settings={json.dumps(settings)}", f"--env.episodes_seed={SEED}", "--seed=0",
        f"--eval.n_episodes={EPISODES}", f"--eval.batch_size={EPISODES}", f"--output_dir={out}",
    ]  # fmt: skip
    return "lerobot_eval", words


def progress(place, episodes):
    """Write what `vla label` leaves for LeRobot's reward-aligned cloning."""
    lengths = [len(one.action) for one in episodes]
    columns = {
        "index": np.arange(sum(lengths)),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "progress_sparse": np.concatenate([np.linspace(0, 1, n) for n in lengths]),
    }
    pq.write_table(pa.table(columns), place / "progress.parquet")
    return place / "progress.parquet"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Everything that LeRobot's commands left, after one process has run them all."""
    place = tmp_path_factory.mktemp("stock")
    episodes = [record_episode("reach", seed=0, index=k) for k in range(2)]
    recording = {"task": configs.to_json(reach.Config()), "robot": "so101"}
    write_shard(place / "data", vec_env.load_robot(None), episodes, recording)
    _, reaching = packed(place, 2, name="reaching")
    _, choosing = packed(place, 0, name="choosing")
    learn = [
        "--policy.device=cpu", "--batch_size=3", "--num_workers=0", "--dataset.repo_id=me/reach",
        f"--dataset.root={place / 'data'}", "--dataset.video_backend=pyav",
    ]  # fmt: skip
    train = [
        *learn, "--policy.type=mneme", "--policy.parts={memory: {type: bank, slots: 9}}",
        "--policy.history=2", "--steps=2", f"--output_dir={place / 'trained'}", f"--{EVAL_FREQ}=2",
        "--env.type=mneme", "--env.task=reach", "--eval.n_episodes=1", "--eval.batch_size=1",
    ]  # fmt: skip
    saved = place / "trained" / "checkpoints" / "000002" / "pretrained_model"
    resumed = [f"--config_path={saved / 'train_config.json'}", "--resume=true", "--steps=3"]
    tuned = [*learn, f"--policy.path={reaching}", "--steps=1", f"--{EVAL_FREQ}=0",
             *rabc_flags(progress(place, episodes)),
             f"--output_dir={place / 'tuned'}"]  # fmt: skip
    done = run(
        place, ("lerobot_train", train), ("lerobot_train", resumed), ("lerobot_train", tuned),
        evaluation(reaching, "reach", {"tolerance_m": 0.12}, place / "reach"),
        evaluation(choosing, "cue_colour", {"delay_steps": [16, 24]}, place / "cue_colour"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return place


def policy_of(place, run_name, step):
    folder = place / run_name / "checkpoints" / f"{step:06d}" / "pretrained_model"
    return checkpoint.load(folder)


def test_two_updates_are_saved_and_resumed_with_all_that_a_checkpoint_of_ours_says(place):
    (two, first), (three, later) = (policy_of(place, "trained", step) for step in (2, 3))
    assert (first.step, later.step) == (2, 3)
    assert first.task == configs.to_json(reach.Config())
    assert set(first.instructions) <= set(reach.Config().build(two.robot).instructions)
    assert two.config.memory.slots == 9
    assert two.robot == vec_env.load_robot(None)
    assert two.statistics == three.statistics
    moved = [
        name for name, value in two.state_dict().items()
        if not value.equal(three.state_dict()[name])
    ]  # fmt: skip
    assert any(name.startswith("head.") for name in moved)
    assert not any(name.startswith("normalizer.") for name in moved)


def test_further_training_by_rewards_keeps_arm_and_statistics(place):
    before, origin = checkpoint.load(place / "reaching")
    after, later = policy_of(place, "tuned", 1)
    assert later.step == origin.step + 1
    assert after.statistics == before.statistics
    assert after.config == before.config


@pytest.mark.parametrize(
    ("name", "task", "policy"), [("reach", REACH, "reaching"), ("cue_colour", CUE, "choosing")]
)
def test_every_episode_of_lerobot_eval_ends_as_in_vla_eval(place, name, task, policy):
    told = json.loads((place / name / "eval_info.json").read_text())
    theirs = told["per_task"][0]["metrics"]["successes"]
    ours = evaluate(
        checkpoint.load(place / policy)[0], task, episodes=EPISODES, seed=SEED,
        environments=EPISODES,
    )  # fmt: skip
    assert theirs == ours.success
    if name == "reach":
        assert set(theirs) == {True, False}, "a test that could not fail"


def test_what_lerobot_trained_is_a_run_of_ours(place, capsys):
    out = place / "unpacked"
    assert cli.main(["lerobot", "unpack", str(place / "trained"), "--out", str(out)]) == 0
    saved = place / "trained" / "checkpoints" / "last" / "pretrained_model"
    assert files(out) == files(saved)
    words = ["eval", str(out), "--episodes", "1", "--videos", "0"]
    assert cli.main(words) == 0
    assert "reach: " in capsys.readouterr().out
    assert Path(out / "evaluation.json").is_file()
