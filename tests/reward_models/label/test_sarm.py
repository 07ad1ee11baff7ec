"""The sidecar as stock LeRobot reads it: its own RA-BC weights on our labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from reward_models.label import sarm
from tests.lerobot_versions import NEW, stock

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def weights(folder: Path, progress: list[float], lengths: list[int], chunk: int) -> np.ndarray:
    """Return LeRobot's raw weight of every frame of episodes."""
    count = len(progress)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(n) for n in lengths])
    rows = sarm.table(np.array(progress, np.float32), np.arange(count), episode, frame, "c")
    sarm.write(folder, rows)
    weigh = stock("RABCWeights")(folder / sarm.FILE, chunk_size=chunk, device=torch.device("cpu"))
    deltas = np.array([weigh._compute_delta(i) for i in range(count)], np.float32)
    assert not np.isnan(deltas).any()
    return weigh._compute_weights(deltas)


def test_labels_without_gaps_are_written_as_lerobot_writes_them(tmp_path: Path) -> None:
    rows = sarm.table(
        np.array([0.0, 0.5, 0.0, 1.0], np.float32), np.arange(4), np.array([0, 0, 1, 1]),
        np.array([0, 1, 0, 1]), "mine",
    )  # fmt: skip
    assert rows.column_names == ["index", "episode_index", "frame_index", "progress_sparse"]
    assert rows["episode_index"].to_pylist() == [0, 0, 1, 1]
    assert rows["progress_sparse"].to_pylist() == [0.0, 0.5, 0.0, 1.0]
    assert rows.schema.metadata == {b"reward_model_path": b"mine"}


def test_gains_weigh_1_and_losses_0(tmp_path: Path) -> None:
    found = weights(tmp_path, [0.0, 0.3, 0.6, 0.4, 0.2, 0.9], [6], 1)
    assert found[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
@pytest.mark.parametrize(
    "silent",
    [[0], [5], [2], [2, 3], [0, 1, 4], [5, 6], [11], [10, 11], [5, 11], range(6), range(6, 12),
     range(12)],
)  # fmt: skip
def test_abstained_frames_weigh_nothing_whatever_the_chunk(
    tmp_path: Path, chunk: int, silent: list[int]
) -> None:
    progress = np.tile(np.linspace(0, 1, 6), 2)
    progress[list(silent)] = np.nan
    found = weights(tmp_path, progress.tolist(), [6, 6], chunk)
    assert found[list(silent)].tolist() == [0.0] * len(silent)


def test_a_measured_frame_before_a_gap_is_compared_with_the_last_measured_one(
    tmp_path: Path,
) -> None:
    # frame 1 would be compared with frame 3, which is silent: 0.9 at frame 2 stands for it
    found = weights(tmp_path, [0.5, 0.7, 0.9, np.nan, 0.1, 0.1], [6], 2)
    assert found[1] == 1.0
    found = weights(tmp_path, [0.5, 0.7, 0.2, np.nan, 0.1, 0.1], [6], 2)
    assert found[1] == 0.0


def test_nan_as_lerobot_itself_would_write_it_weighs_1() -> None:
    """Why the sidecar is written as it is."""
    weigh = object.__new__(stock("RABCWeights"))
    weigh.delta_mean, weigh.delta_std, weigh.epsilon = 0.1, 0.1, 1e-6
    weigh.kappa, weigh.fallback_weight = 0.01, 1.0
    assert weigh._compute_weights(np.array([np.nan], np.float32)).tolist() == [1.0]


class Linear(torch.nn.Module):
    """The least that LeRobot's training step takes for a policy: a loss for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.act = torch.nn.Linear(2, 2)

    def forward(self, batch: dict[str, torch.Tensor], reduction: str = "mean"):
        loss = ((self.act(batch["observation.state"]) - batch["action"]) ** 2).mean(1)
        return (loss if reduction == "none" else loss.mean()), {}


def test_lerobots_own_training_steps_learn_from_labelled_frames_alone(run) -> None:
    from accelerate import Accelerator
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.scripts.lerobot_train import update_policy
    from lerobot.utils.logging_utils import AverageMeter, MetricsTracker

    labelled = run(episodes="0:2")
    frames = LeRobotDataset("local/labelled", root=labelled, video_backend="pyav")
    weights = stock("RABCWeights")(labelled / sarm.FILE, chunk_size=4, device=torch.device("cpu"))
    meters = {n: AverageMeter(n) for n in ("loss", "grad_norm", "lr", "update_s")}
    tracker = MetricsTracker(4, frames.num_frames, frames.num_episodes, meters)
    policy, accelerator = Linear(), Accelerator(cpu=True)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    begin = int(frames.meta.episodes[2]["dataset_from_index"])
    moved = []
    for rows in (range(begin, begin + 4), range(4)):
        before = policy.act.weight.clone()
        batch = torch.utils.data.default_collate([frames[row] for row in rows])
        weigher, told_as = (
            ("sample_weighter", "sample_weight") if NEW else ("rabc_weights_provider", "rabc")
        )
        _, told = update_policy(
            tracker, policy, batch, optimizer, 1.0, accelerator, **{weigher: weights}
        )
        moved.append(
            (told[f"{told_as}_num_zero_weight"], not torch.equal(policy.act.weight, before))
        )
    assert moved == [(4, False), (0, True)]
