"""The study of what a value function should read: it tells learning by heart from learning."""

import numpy as np
import pytest
import torch

from benchmarks import harness
from benchmarks.rl import value_study
from tests.training.rl.fake_rollouts import episode
from tests.training.small_policy import small_policy, write_run
from training.rl.experience import episode_store
from training.rl.experience.replay import Replay
from training.rl.value.chunk_value import ValueConfig

ROLLOUTS, DECISIONS, NOISE = 60, 6, 200


def study(tmp_path, *words: str) -> value_study.Study:
    return harness.read(
        value_study.Study, [str(tmp_path), "--task", "reach", *words], "rl.value_study"
    )


def rollouts() -> tuple[Replay, np.ndarray]:
    """Return decisions of rollouts that succeed by the first number of the state alone; all other
    numbers of it are constant in a rollout and tell one from the other.
    """
    rng = np.random.default_rng(0)
    success = rng.random(ROLLOUTS) < 0.5
    episode = np.repeat(np.arange(ROLLOUTS), DECISIONS)
    cause = np.where(success[episode], 1.0, -1.0) + rng.normal(0, 0.8, len(episode))
    other = rng.normal(size=(ROLLOUTS, NOISE))[episode]
    state = torch.from_numpy(np.column_stack([cause, other]).astype(np.float32))
    zeros = torch.zeros(len(episode))
    data = Replay(
        features=torch.zeros(len(episode), 2), simulator=state, clock=zeros, reward=zeros,
        chunk=torch.zeros(len(episode), 4, 6), not_ended=zeros, next=zeros.long(), episode=episode,
    )  # fmt: skip
    return data, success


def test_what_does_not_matter_is_learned_by_heart(tmp_path) -> None:
    args = study(
        tmp_path, "--updates", "30", "150", "--value.hidden-dim", "32", "--value.lr", "3e-3"
    )
    assert args.value == ValueConfig(state="simulator", hidden_dim=32, lr=3e-3)
    data, success = rollouts()
    whole = list(value_study.measure(args, data, success, list(range(NOISE + 1))))
    cause = list(value_study.measure(args, data, success, [0]))
    assert [row[0] for row in whole] == ["30", "150"]
    loss, in_training, auroc = (float(cell) for cell in whole[-1][1:])
    less, seen, better = (float(cell) for cell in cause[-1][1:])
    assert in_training < seen < loss
    assert less < loss
    assert auroc < better


def test_what_it_cannot_use_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="got updates .*0.*expected numbers of updates from 1"):
        study(tmp_path, "--updates", "0")
    with pytest.raises(ValueError, match="no checkpoint there"):
        value_study.main([str(tmp_path / "none"), "--task", "reach", "--threads", "1"])
    write_run(small_policy(), tmp_path / "run")
    with pytest.raises(ValueError, match="no experience there"):
        value_study.main([str(tmp_path / "run"), "--task", "reach", "--threads", "1"])
    store = tmp_path / "run" / "experience"
    episode_store.write_iteration(store, episode_store.iteration_name(0), [episode(3)])
    with pytest.raises(ValueError, match="got rollouts with 0 numbers .* expected the .* of reach"):
        value_study.main([str(tmp_path / "run"), "--task", "reach", "--threads", "1"])
