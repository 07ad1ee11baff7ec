"""`vla eval`: evaluates a policy in simulation and writes metrics, a video and a memory plot.

The policy is a checkpoint or an exported policy.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from sim import vec_env
from training.core import plugin_flags, runtime
from training.evaluation import pass_at_k, slot_map, video
from training.evaluation.evaluate import Evaluation, evaluate
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, plugin, validate_min
from vla.contracts.protocols import ArmPolicy
from vla.nn.devices import check_device
from vla.policies.vla import VLAPolicy
from vla.runtime import policy_loader
from vla.utils import arguments, charts, files
from vla.utils.video import encode

USAGE = (
    "usage: vla eval CHECKPOINT [--task NAME] [--task.SETTING VALUE] [--episodes N] [--seed S] "
    "[--pass-at K] [--backend.type NAME]"
)


@dataclass(frozen=True, kw_only=True)
class EvalArgs:
    """Measure the success rate of a policy in simulation."""

    task: PluginConfig
    """Task to evaluate on, by default the training task; --task NAME takes another."""
    backend: PluginConfig = plugin("sim.backends", vec_env.DEFAULT_BACKEND)
    """Simulator: MuJoCo in this process by default; --backend.type ros is the simulated arm behind
    ROS 2, in real time and without videos."""
    episodes: int = 200
    """Number of episodes."""
    seed: int = 1000
    """Seed of the episodes; differs from the seeds of training."""
    pass_at: int = 0
    """K, attempts from each start state with sampled actions as in online RL: reports pass@1 to
    pass@K and whether online RL can improve the policy; 0 to measure the success rate."""
    robot: str = ""
    """Robot, one of those of training; the first of them if empty."""
    num_inference_steps: int = 0
    """Denoising steps of a checkpoint; 0 for those that it was trained with."""
    out: Path | None = None
    """Folder of the results; by default the run's, or for another task a folder inside it."""
    videos: int = 9
    """Episodes in the grid video; 0 for no video and no memory plot."""
    device: str = "cpu"
    """Device of a checkpoint: cpu, cuda or cuda:N."""
    targets: tuple[str, ...] = ()
    """Inference targets in order of preference: for a checkpoint torch or torch-compile, for an
    exported policy onnxruntime, tensorrt and others; the first that works here runs."""
    reference_checkpoint: Path | None = None
    """Checkpoint that an exported policy was made from, if `targets` names torch or
    torch-compile."""
    threads: int = 1
    """CPU threads of the policy; a second thread helps only on an otherwise idle machine."""

    def __post_init__(self) -> None:
        validate_min(
            self, episodes=1, seed=0, pass_at=0, videos=0, threads=1, num_inference_steps=0
        )
        if self.pass_at and self.backend.is_realtime:
            raise ValueError(
                f"pass_at: got {self.pass_at} with a real-time backend; leave --backend.type "
                "out, or --pass-at"
            )


def main(argv: list[str]) -> int:
    """Run `vla eval CHECKPOINT ...`; return the exit code."""
    if not argv or argv[0].startswith("-"):
        print(f"{USAGE}\n`vla eval CHECKPOINT --help` lists every setting of its task.")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    loaded = policy_loader.open_policy(Path(argv[0]), threads=1)
    trained_on = configs.from_json(None, loaded.task, f"{loaded.folder}: task", vec_env.TASKS)
    args = parse(argv[1:], trained_on)
    check_device(args.device)
    first = loaded.policy.robot.name
    chosen = (args.device, args.targets, args.reference_checkpoint, args.threads, args.robot)
    if chosen != ("cpu", (), None, 1, ""):
        loaded = policy_loader.open_policy(
            loaded.folder, args.threads, args.targets,
            reference_checkpoint=args.reference_checkpoint, device=args.device, robot=args.robot,
        )  # fmt: skip
    policy = loaded.policy
    if args.robot:
        checkpoint.check_robot(policy.robot, vec_env.load_robot(args.robot))
    arm = "" if policy.robot.name == first else policy.robot.name
    if args.num_inference_steps:
        if not isinstance(policy, VLAPolicy):
            raise ValueError(
                f"num_inference_steps: got {args.num_inference_steps} with target {loaded.target}, "
                "expected a checkpoint without --targets; an export takes them when it is made: "
                "`vla export --num-inference-steps`"
            )
        policy = policy.with_steps(args.num_inference_steps)
    if args.pass_at and not isinstance(policy, VLAPolicy):
        raise ValueError(
            f"{loaded.folder}: target {loaded.target} cannot sample several attempts; leave "
            "--pass-at out, or give a checkpoint without --targets"
        )
    out = args.out or _results_folder(loaded.folder, trained_on, args, arm)
    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    runtime.prepare(args.threads)
    console = Console(highlight=False, soft_wrap=True)
    for line in (*loaded.refusals(), f"target: {loaded.target}"):
        console.print(line, markup=False)
    if args.pass_at and isinstance(policy, VLAPolicy):
        attempts = pass_at_k.run(
            policy, args.task, k=args.pass_at, episodes=args.episodes, seed=args.seed, quiet=False
        )
        files.write_json(out / "pass_at_k.json", {**attempts.to_json(), "step": loaded.step})
        console.print("\n".join(attempts.lines()))
    else:
        _measure_success(policy, args, loaded.step, out, console)
    console.print(f"results: {out}")
    return 0


def _measure_success(
    policy: ArmPolicy, args: EvalArgs, step: int, out: Path, console: Console
) -> None:
    result = evaluate(
        policy, args.task, episodes=args.episodes, seed=args.seed, quiet=False,
        backend=args.backend,
    )  # fmt: skip
    files.write_json(out / "evaluation.json", {**result.to_json(), "step": step})
    console.print(result.summary())
    if args.videos and not args.backend.is_realtime:
        write_media(policy, args.task, result, min(args.videos, args.episodes), out)


def parse(argv: list[str], trained_on: PluginConfig) -> EvalArgs:
    """Return the arguments that follow the checkpoint.

    Raises:
        ValueError: an unknown task.
    """
    title = vec_env.title(trained_on)
    name, rest = plugin_flags.take(argv, "--task", title)
    task = trained_on if name == title else vec_env.load_task(name)
    default, rest = plugin_flags.choose_plugins(EvalArgs(task=task), rest)
    return arguments.read(EvalArgs, rest, "vla eval CHECKPOINT", default=default)


def write_media(
    policy: ArmPolicy, task: PluginConfig, result: Evaluation, videos: int, out: Path
) -> None:
    """Write `episodes.mp4` and, for a policy with slots, `memory.svg` of the longest episode."""
    grids = map(video.Grid(), video.play(policy, task, episodes=videos, seed=result.seed))
    encode(grids, out / "episodes.mp4", policy.robot.control_hz, hold_s=video.HOLD_S)
    # The slot map runs on the built-in physics.
    if not vec_env.is_suite(task) and isinstance(policy, VLAPolicy) and slot_map.has_slots(policy):
        longest = max(range(videos), key=lambda k: result.steps[k])
        trace = slot_map.record(policy, task, seed=result.seed, episode=longest)
        files.write_text(out / "memory.svg", charts.svg(slot_map.draw(trace)))
        files.write_json(out / "memory.json", slot_map.summary(trace))


def _results_folder(folder: Path, trained_on: PluginConfig, args: EvalArgs, arm: str = "") -> Path:
    """Return the run's folder, or a folder inside it named after what differs from training; `arm`
    is empty for the first one.
    """
    run = checkpoint.run_of(folder)
    where = [arm] if arm else []
    where += [configs.type_name(args.backend)] if args.backend.is_realtime else []
    where += [f"steps={args.num_inference_steps}"] if args.num_inference_steps else []
    if args.task == trained_on and not where:
        return run
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
