"""`vla label`: scores what is missing of a data set, then writes it anew with the labels in it.

Safe to kill at any moment: finished episodes are in OUT.parts, and the same command goes on. The
source is read and never written; its checksums before and after are part of the result.
"""

import contextlib
import resource
import shutil
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch

from reward_models.label import columns, corrections, parts, settings, source, write
from reward_models.label.plan import Plan, estimate, prepare
from reward_models.label.score import groups, score_groups
from reward_models.label.settings import LabelArgs
from reward_models.label_report.command import report
from reward_models.label_report.read import LABELS_FILE
from reward_models.review import server as review
from vla import arguments, checkpoint
from vla.data.bar import bar, stoppable
from vla.interrupted import Interrupted

FORMAT = 1
"""Version of meta/labels.json."""


def main(argv: list[str]) -> int:
    """Run `vla label SOURCE --critic C --out DIR`, or `vla label --review DIR`; return the code."""
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


# --- the run -------------------------------------------------------------------------------------


def label(plan: Plan) -> str:
    """Score what is missing, join it if nothing is, and say what came of it.

    Raises:
        ValueError: `out` holds something else, another process is at work, the source changed.
        Interrupted: Ctrl-C or SIGTERM; finished episodes are saved.
        OSError: the disk is full; what is finished is saved.
    """
    before = _labelled(plan)
    if set(plan.chosen) <= before:
        _tidy(plan, before)
        return f"{plan.args.out}: is labelled already, {_share(plan, before)}"
    wanted = before | set(plan.chosen)
    try:
        return _score_and_join(plan, sorted(wanted))
    except FileNotFoundError:  # whoever joins the parts deletes them
        if wanted <= _labelled(plan):
            return f"{plan.args.out}: another process has just written it"
        raise


def _score_and_join(plan: Plan, wanted: Sequence[int]) -> str:
    store = parts.open_parts(plan.args.out, plan.asked, plan.checksums)
    parts.clear_leftovers(store)
    begin = time.perf_counter()
    scored = _score_missing(plan, store, wanted)
    speed = _speed(scored, time.perf_counter() - begin)
    left = store.missing(wanted)
    if left and store.folder.exists():
        return (
            f"{store.folder}: {len(wanted) - len(left)} of {len(wanted)} episodes; whoever scores "
            f"the last ones joins them; {told(speed)}"
        )
    with parts.claim(store, "join", wait=True):
        # A kill may have left a half-written data set, or the old one half replaced.
        checkpoint.recover_folder(plan.args.out)
        if not set(wanted) <= _labelled(plan):
            _join(plan, store, speed)
    return f"{plan.args.out}: labelled, {_share(plan, wanted)}; {told(speed)}"


def _share(plan: Plan, episodes: Collection[int]) -> str:
    return f"{len(episodes)} of {plan.job.source.info.num_episodes} episodes"


def _tidy(plan: Plan, labelled: set[int]) -> None:
    """Delete the parts of a data set that is complete, if a kill has left them."""
    store = parts.Parts(folder=parts.folder_of(plan.args.out), key="")
    if store.folder.exists() and len(labelled) == plan.job.source.info.num_episodes:
        with contextlib.suppress(FileNotFoundError), parts.claim(store, "join", wait=True):
            checkpoint.recover_folder(plan.args.out)
            shutil.rmtree(store.folder)


def _labelled(plan: Plan) -> set[int]:
    """Return the episodes that `out` has labels for.

    Raises:
        ValueError: it holds something else.
    """
    out = plan.args.out
    if not out.exists():
        return set()
    if not (out / LABELS_FILE).is_file():
        raise ValueError(f"{out}: exists and holds no labelled data set; choose another --out")
    found = checkpoint.read_json(out / LABELS_FILE)
    parts.check_same(out, found.get("asked", {}), plan.asked)
    parts.check_same(out, found.get("derived", {}), plan.derived)
    return set(found.get("episodes", ()))


def _score_missing(plan: Plan, store: parts.Parts, wanted: Sequence[int]) -> int:
    """Score this shard's episodes that are not done; return how many frames that were."""
    i, n = settings.shard(plan.args.shard)
    mine = [g for k, g in enumerate(groups(plan.job)) if k % n == i - 1]
    todo = []
    for group in mine:
        inside = tuple(e for e in group if e in set(wanted))
        if store.missing(inside):
            todo.append(inside)
    frames = plan.job.source.scored_frames
    count = 0
    with parts.claim(store, f"shard-{i}-of-{n}"), stoppable(), bar("frames") as shown:
        line = shown.add_task("labelling", total=int(sum(frames[list(g)].sum() for g in todo)))
        try:
            for found in score_groups(plan.job, todo):
                for episode, scored in found.items():
                    store.write(episode, scored)
                    shown.advance(line, int(frames[episode]))
                    count += int(frames[episode])
        except KeyboardInterrupt:
            saved = len(wanted) - len(store.missing(wanted))
            raise Interrupted(
                f"{saved} of {len(wanted)} episodes are saved in {store.folder}"
            ) from None
    return count


def _join(plan: Plan, store: parts.Parts, speed: dict[str, Any]) -> None:
    """Write the labelled data set from all parts there are."""
    data, args = plan.job.source, plan.args
    done = store.done(data.info.num_episodes)
    scored = {episode: store.read(episode) for episode in done}
    how = plan.derivation
    frame = columns.frame_columns(data, scored, how)
    episode = write.arrays(
        [
            columns.episode_figures(data, e, scored[e], how)
            if e in scored
            else columns.no_figures()
            for e in range(data.info.num_episodes)
        ]
    )
    if plan.corrected is not None:
        more = corrections.columns(plan.corrected, data.info)
        frame, episode = {**frame, **more[0]}, {**episode, **more[1]}
    labels = write.Labels(
        frame=frame, episode=episode, critic=f"{args.critic} ({plan.asked['critic']})"
    )
    fresh = write.write_dataset(data, args.out, labels)
    try:
        if plan.corrected is not None:
            write.write_corrections(fresh, plan.corrected)
        write.keep_corrections(args.out, fresh)
        after = source.checksums(args.source)
        parts.check_untouched(plan.checksums, after)
        write.write_provenance(fresh, _provenance(plan, store, done, after, speed))
        write.put_in_place(fresh, args.out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if len(done) == data.info.num_episodes:
        shutil.rmtree(store.folder)


def _provenance(
    plan: Plan, store: parts.Parts, done: list[int], after: dict[str, str], speed: dict[str, Any]
) -> dict[str, Any]:
    config = plan.job.scorer.config
    shards = sorted(file.stem for file in store.folder.glob("shard-*.lock"))
    here = checkpoint.provenance({}, (), 0)
    fps = plan.job.source.info.fps
    return {
        "format": FORMAT,
        "asked": plan.asked,
        "derived": plan.derived,
        "critic": str(plan.args.critic),
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
        "revision": here.revision,
        "versions": here.versions,
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


def told(speed: dict[str, Any]) -> str:
    """Return a clause about how fast it went."""
    return (
        f"{speed['frames']:,} frames scored in {speed['seconds']:.1f} s "
        f"({speed['frames_per_s']:,.0f}/s), peak memory {speed['peak_memory_mb']:,.0f} MB"
    )
