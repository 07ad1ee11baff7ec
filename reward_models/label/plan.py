"""Reads and checks everything a labelling was asked for, before anything is written."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import torch

from reward_models import checkpoint as critics
from reward_models.label import corrections, parts, settings, source
from reward_models.label.columns import Derivation
from reward_models.label.score import Job, score_group, show
from reward_models.label.settings import LabelArgs
from reward_models.overrides import Override
from vla.contracts import config as configs
from vla.data.reader import read_columns

DRY_FRAMES = 64
"""Frames that an estimate times, or a few more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Everything that was asked for, read and checked."""

    args: LabelArgs
    job: Job
    asked: dict[str, Any]
    """What decides what is scored, JSON types."""
    derivation: Derivation
    """What decides the rest."""
    corrected: tuple[Override, ...] | None
    """What people said; None if there is no file of it."""
    chosen: tuple[int, ...]
    """Episodes to label."""
    checksums: dict[str, str]
    """Of the source, before anything was done."""

    @property
    def derived(self) -> dict[str, Any]:
        """What decides how labels follow from what was scored, JSON types."""
        said = None if self.corrected is None else [vars(one) for one in self.corrected]
        hashed = None if said is None else parts.key_of({"said": said})
        return {**configs.to_json(self.derivation), "overrides": hashed}


def prepare(args: LabelArgs) -> Plan:
    """Read the critic and the data set and check that they and the settings fit.

    Raises:
        ValueError: something does not; nothing has been written.
    """
    scorer = critics.load(args.critic)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: got cuda, but this machine offers none to torch; use cpu")
    scorer.critic.to(args.device)  # type: ignore[attr-defined]  # every critic is a module
    _check_place(args)
    data = source.read(
        args.source, stride_s=scorer.config.stride_s, instruction=args.instruction
    )  # fmt: skip
    cameras = source.match_cameras(data.info, scorer.critic.cameras, args.cameras)
    job = Job(
        scorer=scorer, source=data, cameras=cameras, agreement=args.agreement,
        memory_mb=args.memory_mb,
    )  # fmt: skip
    job = _with_example(job, args)
    file = corrections.find(args.source, args.overrides)
    corrected = tuple(corrections.read(file, data.info)) if file else None
    settings.shard(args.shard)
    sums = source.checksums(args.source)
    config = scorer.config
    return Plan(
        args=args, job=job, corrected=corrected, checksums=sums,
        chosen=settings.chosen_episodes(args.episodes, data.info.num_episodes),
        asked=_asked(args, job, source.digest(sums)),
        derivation=Derivation(
            reward=args.reward, gamma=args.gamma, done_threshold=args.done_threshold,
            stride_s=config.stride_s, horizon_s=config.horizon_s, smooth=args.smooth,
        ),
    )  # fmt: skip


def _check_place(args: LabelArgs) -> None:
    inside, out = args.source.resolve(), args.out.resolve()
    if out == inside or inside in out.parents:
        raise ValueError(
            f"{args.out}: lies within the source, which is not written; choose another"
        )
    if out in inside.parents:
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
    shown = show(job, args.example, args.example_progress, progress)
    return dataclasses.replace(job, example=shown)


def _asked(args: LabelArgs, job: Job, content: str) -> dict[str, Any]:
    """Return what decides what is scored; the same here gives the same bits."""
    scorer = job.scorer
    return {
        "critic": critics.identity(args.critic),
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
    """Time a few frames and return what labelling would take."""
    data = plan.job.source
    wanted = list(plan.chosen)
    frames = int(data.scored_frames[wanted].sum())
    trial, held = [], 0
    for episode in wanted:
        trial.append(episode)
        held += int(data.scored_frames[episode])
        if held >= DRY_FRAMES:
            break
    begin = time.perf_counter()
    score_group(plan.job, trial)
    rate = held / (time.perf_counter() - begin)
    tables = sum(f.stat().st_size for f in data.info.path.rglob("*.parquet"))
    size = (tables + 40 * data.info.num_frames) / 2**20
    return (
        f"{len(wanted)} episodes, {frames:,} of {int(data.info.lengths[wanted].sum()):,} frames to "
        f"score at {rate:,.0f}/s: about {frames / rate / 60:.1f} minutes on one process; "
        f"{size:.1f} MB of tables to write, videos are linked; nothing was written"
    )
