"""Where does a policy look? How often its queries miss what the instruction names, by act.

`python -m benchmarks.training.grounding_study runs/all --dataset runs/data-tabletop`

The data set has to be of `tabletop`, and of other episodes than those of training.
"""

import collections
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

from benchmarks import harness
from sim.tasks import _language
from training.core import runtime
from training.data import batches
from vla import checkpoint, cli
from vla.contracts.config import validate_min
from vla.contracts.referents import KINDS
from vla.contracts.types import EpisodeBatch
from vla.policies.vla import VLAPolicy

THING = re.compile(
    rf"\b({'|'.join(_language.COLOURS)}) ({'|'.join(sum(_language.NOUNS.values(), ()))})\b"
)
"""A thing in an instruction."""
AT_ONCE = 8
"""Episodes that are encoded at once."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Measure where the queries of a policy look."""

    policy: tyro.conf.Positional[Path]
    """Run or checkpoint of `vla train`, with queries."""
    dataset: Path
    """Data set of `vla demos tabletop`."""
    episodes: int = 240
    """Most of its episodes."""
    tolerance: float = 0.15
    """Distance that is a miss, in halves of the image's side."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, tolerance=0, threads=1)


def act_of(instruction: str) -> str:
    """Return the act that an instruction of `tabletop` asks for.

    Raises:
        ValueError: it is no such instruction.
    """
    wording = THING.sub("{}", instruction)
    for act in _language.ACTS:
        if wording in _language.wordings(act, "all"):
            return act
    raise ValueError(f"instruction: got {instruction!r}, expected one of tabletop")


def misses(policy: VLAPolicy, batch: EpisodeBatch) -> np.ndarray:
    """Return how far from its label each query looks, f32 [m, views, kinds]; NaN where what is
    named is not in the image.

    Raises:
        ValueError: the policy has no queries, or the data set no labels.
    """
    attention = policy.attention(batch)
    if attention is None or batch.referents is None:
        lacks = "queries in the policy" if attention is None else "columns referent... in the data"
        raise ValueError(f"got no {lacks}; record with `vla demos`, train with queries")
    side = round(attention.shape[-1] ** 0.5)
    cell = attention[:, :, : len(KINDS)].argmax(-1)
    place = (torch.stack([cell % side, cell // side], -1) + 0.5) / side * 2 - 1
    where = batch.referents
    far = (place.cpu() - where).norm(dim=-1)
    return torch.where((where.abs() < 1).all(-1), far, torch.nan).numpy()


def measure(args: Study, policy: VLAPolicy) -> dict[tuple[str, str, str], list[float]]:
    """Return the distances by act, camera and kind."""
    store = batches.load_for_policy(policy, args.dataset, phase_seed=0)
    sequences = np.arange(min(args.episodes, len(store.seq_episode)))
    even, rng = np.ones(len(store.frames), np.float32), np.random.default_rng(0)
    found: dict[tuple[str, str, str], list[float]] = collections.defaultdict(list)
    for part in np.split(sequences, range(AT_ONCE, len(sequences), AT_ONCE)):
        longest = int(store.seq_lengths[part].max())
        batch = batches.episode_batch(store, part, policy.config.chunk_size, longest, even, rng)
        acts = [act_of(text) for text in batch.task]
        rows = batch.episode_index[batch.loss_index].tolist()
        for row, far in zip(rows, misses(policy, batch), strict=True):
            for (view, kind), value in np.ndenumerate(far):
                if not np.isnan(value):
                    key = acts[row], policy.config.cameras[view], KINDS[kind]
                    found[key].append(float(value))
    return found


def rows_of(
    found: dict[tuple[str, str, str], list[float]], tolerance: float
) -> Iterable[tuple[str, ...]]:
    """Yield act, camera, what is looked for, the share of misses and the median distance."""
    for key, values in sorted(found.items()):
        far = np.array(values)
        yield *key, harness.share(int((far > tolerance).sum()), len(far)), f"{np.median(far):.3f}"


def main(argv: list[str]) -> int:
    """Print the table."""
    args = harness.read(Study, argv, "training.grounding_study")
    runtime.prepare(args.threads)
    policy = checkpoint.load_vla(args.policy, "the study")[0].eval()
    columns = ("act", "camera", "looks for", f"more than {args.tolerance:g} aside", "median")
    harness.show(harness.table("", columns, rows_of(measure(args, policy), args.tolerance), left=3))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.grounding_study:main", sys.argv[1:]))
