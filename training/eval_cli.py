"""`vla eval`: tests a policy in simulation and writes figures, a video and a memory picture.

A checkpoint or an exported policy, whatever drives an arm.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from sim import vec_env
from training import flags, host, pass_at_k, slot_map, video
from training.evaluate import Evaluation, evaluate
from vla import arguments, checkpoint, files, opening
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig, check_least, plugin
from vla.contracts.protocols import ArmPolicy
from vla.policies.vla import VLAPolicy

USAGE = (
    "usage: vla eval CHECKPOINT [--task NAME] [--task.SETTING VALUE] [--episodes N] [--seed S] "
    "[--pass-at K] [--backend NAME]"
)


@dataclass(frozen=True, kw_only=True)
class EvalArgs:
    """Measure a checkpoint's success in simulation."""

    task: PluginConfig
    """Task to test on: what the checkpoint was trained on; --task NAME takes another one."""
    backend: PluginConfig = plugin("sim.backends", vec_env.DEFAULT_BACKEND)
    """Where: MuJoCo in this process; --backend ros is the simulated arm behind ROS 2, in real time
    and without videos."""
    episodes: int = 200
    """How many episodes."""
    seed: int = 1000
    """Seed of the episodes; training has used others."""
    pass_at: int = 0
    """Tries from the start state of each episode, sampled as in practice: tells pass@1 to pass@K
    and whether practice can help, in place of the success when acting; 0 to act."""
    robot: str = ""
    """Arm to drive, which must agree with the one it was trained for; that one if empty."""
    out: Path | None = None
    """Folder of the results; by default the run's own, or for another task one inside it."""
    videos: int = 9
    """Episodes in the grid video; 0 for neither video nor memory picture."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where a checkpoint runs."""
    targets: tuple[str, ...] = ()
    """Who may run the policy, in order: of a checkpoint torch or torch-compile, of an exported
    policy onnxruntime, tensorrt and others; the first that decides on this machine does."""
    against: Path | None = None
    """The checkpoint that an exported policy is of, if targets name torch or torch-compile."""
    threads: int = 1
    """CPU threads of the policy; a second one pays only on an otherwise idle machine."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, seed=0, pass_at=0, videos=0, threads=1)
        if self.pass_at and self.backend.live:
            raise ValueError(
                f"pass_at: got {self.pass_at} on one arm in real time; leave --backend out, or "
                "--pass-at"
            )


def main(argv: list[str]) -> int:
    """Run `vla eval CHECKPOINT ...`; return the exit code.

    Raises:
        ValueError: the checkpoint is damaged or for another arm, or an argument makes no sense.
    """
    if not argv or argv[0].startswith("-"):
        print(f"{USAGE}\n`vla eval CHECKPOINT --help` lists every setting of its task.")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    found = opening.open_(Path(argv[0]), threads=1)
    trained_on = configs.from_json(None, found.task, f"{found.folder}: task", vec_env.TASKS)
    args = parse(argv[1:], trained_on)
    if args.robot:
        checkpoint.check_robot(found.policy.robot, vec_env.load_robot(args.robot))
    flags.check_device(args.device)
    if (args.device, args.targets, args.against, args.threads) != ("cpu", (), None, 1):
        found = opening.open_(
            found.folder, args.threads, args.targets, against=args.against, device=args.device
        )
    policy = found.policy
    if args.pass_at and not isinstance(policy, VLAPolicy):
        raise ValueError(
            f"{found.folder}: target {found.target} cannot be tried several times; leave --pass-at "
            "out, or give a checkpoint without --targets"
        )
    out = args.out or _results_folder(found.folder, trained_on, args)
    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    host.prepare(args.threads)
    console = Console(highlight=False, soft_wrap=True)
    for line in (*found.refusals(), f"target: {found.target}"):
        console.print(line, markup=False)
    if args.pass_at and isinstance(policy, VLAPolicy):
        _try(policy, args, found.step, out, console)
    else:
        _act(policy, args, found.step, out, console)
    console.print(f"results: {out}")
    return 0


def _act(policy: ArmPolicy, args: EvalArgs, step: int, out: Path, console: Console) -> None:
    result = evaluate(
        policy, args.task, episodes=args.episodes, seed=args.seed, quiet=False,
        backend=args.backend,
    )  # fmt: skip
    files.write_json(out / "evaluation.json", {**result.to_json(), "step": step})
    console.print(result.sentence())
    if args.videos and not args.backend.live:
        write_pictures(policy, args.task, result, min(args.videos, args.episodes), out)


def _try(policy: VLAPolicy, args: EvalArgs, step: int, out: Path, console: Console) -> None:
    found = pass_at_k.run(
        policy, args.task, k=args.pass_at, episodes=args.episodes, seed=args.seed, quiet=False
    )
    files.write_json(out / "pass_at_k.json", {**found.to_json(), "step": step})
    for line in found.lines():
        console.print(line)


def parse(argv: list[str], trained_on: PluginConfig) -> EvalArgs:
    """Return the arguments that follow the checkpoint.

    Raises:
        ValueError: an unknown task.
    """
    own = vec_env.title(trained_on)
    name, rest = flags.take(argv, "--task", own)
    task = trained_on if name == own else vec_env.load_task(name)
    where, rest = flags.take(rest, "--backend", vec_env.DEFAULT_BACKEND)
    default = EvalArgs(task=task, backend=registry.load("sim.backends", where).Config())
    return arguments.read(EvalArgs, rest, "vla eval CHECKPOINT", default=default)


def write_pictures(
    policy: ArmPolicy, task: PluginConfig, result: Evaluation, videos: int, out: Path
) -> None:
    """Write `episodes.mp4` and, if the policy has slots, `memory.svg` of the longest of them."""
    video.write_grid(policy, task, episodes=videos, seed=result.seed, path=out / "episodes.mp4")
    ours = not vec_env.is_suite(task)  # the map runs on our own physics
    if ours and isinstance(policy, VLAPolicy) and slot_map.has_slots(policy):
        longest = max(range(videos), key=lambda k: result.steps[k])
        trace = slot_map.record(policy, task, seed=result.seed, episode=longest)
        files.write_text(out / "memory.svg", slot_map.draw(trace))
        files.write_json(out / "memory.json", slot_map.summary(trace))


def _results_folder(folder: Path, trained_on: PluginConfig, args: EvalArgs) -> Path:
    """Return the run's folder, or one inside it named after what differs from training."""
    run = folder.parent if folder.name == "checkpoint" else folder
    if args.task == trained_on and not args.backend.live:
        return run
    where = [configs.type_name(args.backend)] if args.backend.live else []
    same = type(args.task) is type(trained_on)
    # Not of a default task: those of some suites must be named.
    changed = [
        f"{field.name}={_words(getattr(args.task, field.name))}"
        for field in dataclasses.fields(args.task)
        if getattr(args.task, field.name)
        != (getattr(trained_on, field.name) if same else field.default)
    ]
    return run / "-".join(["eval", configs.type_name(args.task), *where, *changed, str(args.seed)])


def _words(value: Any) -> str:
    text = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text.replace("/", "_")  # of one folder's name
