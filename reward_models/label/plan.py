"""Reads and checks the inputs of a labelling before anything is written."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_models.core import checkpoint as reward_models
from reward_models.core.overrides import Override
from reward_models.label import corrections, parts, settings, source, write
from reward_models.label.columns import Derivation
from reward_models.label.score import Job, encode_example, score_group
from reward_models.label.settings import LabelArgs
from vla.contracts import config as configs
from vla.data.reader import read_columns
from vla.nn.devices import check_device

DRY_FRAMES = 64
"""Least number of frames that an estimate times."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The inputs of a labelling, read and checked."""

    args: LabelArgs
    job: Job
    settings: dict[str, Any]
    """Everything that decides the scores, JSON types."""
    derivation: Derivation
    """Everything that decides rewards and flags."""
    corrections: tuple[Override, ...] | None
    """Corrections by people; None without a file of them."""
    chosen: tuple[int, ...]
    """Episodes to label."""
    checksums: dict[str, str]
    """Of the files of the source before labelling."""

    @property
    def derived(self) -> dict[str, Any]:
        """Everything that decides how labels follow from scores, JSON types."""
        digest = None
        if self.corrections is not None:  # "said" is part of what is hashed since format 1
            digest = parts.key_of({"said": [vars(c) for c in self.corrections]})
        return {**configs.to_json(self.derivation), "overrides": digest}


def prepare(args: LabelArgs) -> Plan:
    """Read reward model and data set, and check that they and the settings fit each other.

    Raises:
        ValueError: they do not; nothing has been written.
    """
    scorer = reward_models.load(args.reward_model)
    check_device(args.device)
    scorer.reward_model.to(args.device)  # type: ignore[attr-defined]  # every reward model is a module
    _check_place(args)
    data = source.read(args.source, stride_s=scorer.config.stride_s, instruction=args.instruction)
    cameras = source.match_cameras(data.info, scorer.reward_model.cameras, args.cameras)
    job = Job(
        scorer=scorer, source=data, cameras=cameras, agreement=args.agreement,
        memory_mb=args.memory_mb,
    )  # fmt: skip
    job = _with_example(job, args)
    file = corrections.find(args.source, args.overrides)
    overrides = tuple(corrections.read(file, data.info)) if file else None
    settings.shard(args.shard)
    write.check_copied(args.source)
    sums = source.checksums(args.source)
    config = scorer.config
    return Plan(
        args=args, job=job, corrections=overrides, checksums=sums,
        chosen=settings.chosen_episodes(args.episodes, data.info.num_episodes),
        settings=_settings(args, job, source.digest(sums)),
        derivation=Derivation(
            reward=args.reward, gamma=args.gamma, done_threshold=args.done_threshold,
            stride_s=config.stride_s, horizon_s=config.horizon_s, smooth=args.smooth,
        ),
    )  # fmt: skip


def _check_place(args: LabelArgs) -> None:
    source_path, out = args.source.resolve(), args.out.resolve()
    if out == source_path or source_path in out.parents:
        raise ValueError(
            f"{args.out}: lies within the source, which is not written; choose another"
        )
    if out in source_path.parents:
        raise ValueError(f"{args.out}: holds the source; choose another --out")


def _with_example(job: Job, args: LabelArgs) -> Job:
    if args.example is None:
        return job
    info = job.source.info
    if not 0 <= args.example < info.num_episodes:
        raise ValueError(
            f"example: got {args.example}, expected an episode from 0 to {info.num_episodes - 1}"
        )
    progress = None
    if args.example_progress:
        if args.example_progress not in info.scalars:
            raise ValueError(
                f"example_progress: {info.path} has no column {args.example_progress!r} of one "
                f"number per frame; it has {', '.join(info.scalars) or 'none'}"
            )
        begin, end = info.offsets[args.example : args.example + 2]
        progress = read_columns(info).scalars[args.example_progress][begin:end]
    example = encode_example(job, args.example, args.example_progress, progress)
    return dataclasses.replace(job, example=example)


def _settings(args: LabelArgs, job: Job, content: str) -> dict[str, Any]:
    """Return everything that decides the scores; equal settings give bit-identical scores."""
    scorer = job.scorer
    return {
        "reward_model": reward_models.identity(args.reward_model),
        "scorer": configs.to_json(scorer.config),
        "calibration": configs.to_json(scorer.calibration),
        "source": content,
        "cameras": [camera.name if camera else source.DARK for camera in job.cameras],
        "image_hw": list(job.image_hw),
        "instruction": args.instruction or None,
        "agreement": args.agreement,
        "example": args.example,
        "example_progress": args.example_progress or None,
        "memory_mb": args.memory_mb,
        "device": args.device,
    }


def estimate(plan: Plan) -> str:
    """Time a few frames and return an estimate of the whole labelling, as a message."""
    data = plan.job.source
    chosen = list(plan.chosen)
    counts = np.cumsum(data.scored_frames[chosen])
    last, frames = int(np.argmax(counts >= min(DRY_FRAMES, counts[-1]))), int(counts[-1])
    begin = time.perf_counter()
    score_group(plan.job, chosen[: last + 1])
    rate = counts[last] / (time.perf_counter() - begin)
    tables = sum(f.stat().st_size for f in data.info.path.rglob("*.parquet"))
    size = (tables + 40 * data.info.num_frames) / 2**20
    return (
        f"{len(chosen)} episodes, {frames:,} of {int(data.info.lengths[chosen].sum()):,} frames to "
        f"score at {rate:,.0f}/s: about {frames / rate / 60:.1f} minutes on one process; "
        f"{size:.1f} MB of tables to write, videos are linked; nothing was written"
    )
