"""`vla label`: scores the episodes of a data set and writes a new data set with the labels.

It may be killed at any time: finished episodes are in OUT.parts, and the same command resumes. The
source is never written; its checksums before and after are part of the result.
"""

import contextlib
import resource
import shutil
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch

from reward_models.core.overrides import FILE as OVERRIDES_FILE
from reward_models.label import columns, corrections, parts, settings, source, write
from reward_models.label.plan import Plan, estimate, prepare
from reward_models.label.score import groups, score_groups
from reward_models.label.settings import LabelArgs
from reward_models.label_report.command import report
from reward_models.label_report.read import LABELS_FILE
from reward_models.review import server as review
from vla import checkpoint
from vla.contracts import migrate
from vla.data.progress_bar import bar, sigterm_as_interrupt
from vla.utils import arguments, files
from vla.utils.interrupted import Interrupted

FORMAT = 1
"""Version of meta/labels.json."""


def main(argv: list[str]) -> int:
    """Run `vla label`, or `vla label --review`; return the exit code."""
    if "--review" in argv:
        return review.main([word for word in argv if word != "--review"])
    args = arguments.read(LabelArgs, argv, "vla label")
    torch.set_num_threads(args.threads)
    plan = prepare(args)
    if args.dry_run:
        print(estimate(plan))
        return 0
    print(label(plan))
    if args.report and (args.out / LABELS_FILE).is_file():
        return report(args.out, None, args.gates)
    return 0


def label(plan: Plan) -> str:
    """Score the missing episodes, write the data set once all are scored; return a message.

    Raises:
        ValueError: `out` holds something else, another process works on it, the source changed.
        Interrupted: Ctrl-C or SIGTERM; finished episodes are saved.
        OSError: the disk is full; finished episodes are saved.
    """
    before = _labelled(plan)
    if set(plan.chosen) <= before:
        _tidy(plan, before)
        return f"{plan.args.out}: is labelled already, {_share(plan, before)}"
    episodes = before | set(plan.chosen)
    try:
        return _score_and_join(plan, sorted(episodes))
    except FileNotFoundError:  # another process has joined the parts and deleted them
        if episodes <= _labelled(plan):
            return f"{plan.args.out}: another process has just written it"
        raise


def _score_and_join(plan: Plan, episodes: Sequence[int]) -> str:
    store = parts.open_parts(plan.args.out, plan.settings, plan.checksums)
    parts.clear_leftovers(store)
    begin = time.perf_counter()
    scored = _score_missing(plan, store, episodes)
    speed = _speed(scored, time.perf_counter() - begin)
    left = store.missing(episodes)
    if left and store.folder.exists():
        return (
            f"{store.folder}: {len(episodes) - len(left)} of {len(episodes)} episodes; the process "
            f"that scores the last one joins them; {speed_text(speed)}"
        )
    with parts.claim(store, "join", wait=True):
        # A kill may have left a half-written data set, or the old one half replaced.
        checkpoint.recover_folder(plan.args.out)
        if not set(episodes) <= _labelled(plan):
            _join(plan, store, speed)
    return f"{plan.args.out}: labelled, {_share(plan, episodes)}; {speed_text(speed)}"


def _share(plan: Plan, episodes: Collection[int]) -> str:
    return f"{len(episodes)} of {plan.job.source.info.num_episodes} episodes"


def _tidy(plan: Plan, labelled: set[int]) -> None:
    """Delete the parts of a complete data set that a killed process has left."""
    store = parts.Parts(folder=parts.folder_of(plan.args.out), key="")
    if store.folder.exists() and len(labelled) == plan.job.source.info.num_episodes:
        with contextlib.suppress(FileNotFoundError), parts.claim(store, "join", wait=True):
            checkpoint.recover_folder(plan.args.out)
            shutil.rmtree(store.folder)


def _labelled(plan: Plan) -> set[int]:
    """Return the episodes of `out` that have labels."""
    out = plan.args.out
    if not out.exists():
        return set()
    if not (out / LABELS_FILE).is_file():
        raise ValueError(f"{out}: exists and holds no labelled data set; choose another --out")
    stored = checkpoint.read_json(out / LABELS_FILE)
    parts.check_same(out, migrate.labels(stored.get("asked", {})), plan.settings)
    parts.check_same(out, stored.get("derived", {}), plan.derived)
    return set(stored.get("episodes", ()))


def _score_missing(plan: Plan, store: parts.Parts, episodes: Sequence[int]) -> int:
    """Score the missing episodes of this shard; return the number of scored frames."""
    i, n = settings.shard(plan.args.shard)
    of_shard = [g for k, g in enumerate(groups(plan.job)) if k % n == i - 1]
    cut = [tuple(e for e in group if e in set(episodes)) for group in of_shard]
    todo = [group for group in cut if store.missing(group)]
    frames = plan.job.source.scored_frames
    count = 0
    with parts.claim(store, f"shard-{i}-of-{n}"), sigterm_as_interrupt(), bar("frames") as progress:
        line = progress.add_task("labelling", total=int(sum(frames[list(g)].sum() for g in todo)))
        try:
            for group in score_groups(plan.job, todo):
                for episode, scored in group.items():
                    store.write(episode, scored)
                    progress.advance(line, int(frames[episode]))
                    count += int(frames[episode])
        except KeyboardInterrupt:
            saved = len(episodes) - len(store.missing(episodes))
            raise Interrupted(
                f"{saved} of {len(episodes)} episodes are saved in {store.folder}"
            ) from None
    return count


def _join(plan: Plan, store: parts.Parts, speed: dict[str, Any]) -> None:
    """Write the labelled data set from all parts."""
    data, args = plan.job.source, plan.args
    done = store.done(data.info.num_episodes)
    scored = {episode: store.read(episode) for episode in done}
    derivation = plan.derivation
    frame = columns.frame_columns(data, scored, derivation)
    episode = write.arrays([
        columns.episode_metrics(data, e, scored[e], derivation) if e in scored
        else columns.no_metrics()
        for e in range(data.info.num_episodes)
    ])  # fmt: skip
    if plan.corrections is not None:
        more = corrections.columns(plan.corrections, data.info)
        frame, episode = {**frame, **more[0]}, {**episode, **more[1]}
    labels = write.Labels(
        frame=frame,
        episode=episode,
        reward_model=f"{args.reward_model} ({plan.settings['reward_model']})",
    )
    new = write.write_dataset(data, args.out, labels)
    try:
        if plan.corrections is not None:
            write.write_json(new / OVERRIDES_FILE, [vars(c) for c in plan.corrections])
        if (args.out / OVERRIDES_FILE).is_file():  # those of the data set it replaces
            shutil.copyfile(args.out / OVERRIDES_FILE, new / OVERRIDES_FILE)
        after = source.checksums(args.source)
        parts.check_unchanged(plan.checksums, after)
        write.write_json(new / LABELS_FILE, _provenance(plan, store, done, after, speed))
        if args.out.exists():
            checkpoint.replace_folder(new, args.out)
        else:
            files.publish(new, args.out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    if len(done) == data.info.num_episodes:
        shutil.rmtree(store.folder)


def _provenance(
    plan: Plan, store: parts.Parts, done: list[int], after: dict[str, str], speed: dict[str, Any]
) -> dict[str, Any]:
    config = plan.job.scorer.config
    shards = sorted(file.stem for file in store.folder.glob("shard-*.lock"))
    code = checkpoint.provenance({}, (), 0)
    fps = plan.job.source.info.fps
    return {
        "format": FORMAT,
        "asked": plan.settings,
        "derived": plan.derived,
        "reward_model": str(plan.args.reward_model),
        "source": str(plan.args.source),
        "instructions": "given" if plan.args.instruction else "the source's, per segment",
        "cadence_s": config.stride_s,
        "horizon_s": config.horizon_s,
        "causal": "scored frames",
        "interpolated": "frames between scored ones, linearly: these look ahead to the next",
        "gamma_per_frame": plan.derivation.gamma_per_frame(fps),
        "episodes": done,
        "groups": len(groups(plan.job)),
        "shards": shards,
        "revision": code.revision,
        "versions": code.versions,
        "checksums": {"algorithm": "blake2b-128", "before": plan.checksums, "after": after},
        "last_run": speed,
    }


def _speed(frames: int, seconds: float) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    return {
        "frames": frames,
        "seconds": round(seconds, 3),
        "frames_per_s": round(frames / max(seconds, 1e-9), 1),
        "peak_memory_mb": round(peak),
    }


def speed_text(speed: dict[str, Any]) -> str:
    """Return a clause about speed and memory."""
    return (
        f"{speed['frames']:,} frames scored in {speed['seconds']:.1f} s "
        f"({speed['frames_per_s']:,.0f}/s), peak memory {speed['peak_memory_mb']:,.0f} MB"
    )
