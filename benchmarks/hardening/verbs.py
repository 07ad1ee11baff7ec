"""The commands that write, on inputs of seconds."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from benchmarks.reward_models import synthetic_dataset
from vla import checkpoint, cli

TRAIN = (
    "train --recipe reach --algo.batch-size 4 --threads 1 --log-every 1 --save-every 2 "
    "--eval.every 0 --eval.final-episodes 0"
)


def _absent_or_openable(out: Path) -> bool:
    """Whether a run holds no checkpoint, or one that opens."""
    if (out / "checkpoint").exists():
        checkpoint.load(out)
    return True


@dataclass(frozen=True)
class Verb:
    """A command that writes; `{work}` stands for the inputs' folder, `{out}` for the output."""

    line: str
    before: str = ""
    """Input whose copy is at the output before the command runs; "" for nothing."""
    resumes: Callable[[Path], bool] | None = None
    """Whether an output that is neither old nor new is a state that the command resumes."""
    varies: tuple[str, ...] = ()
    """Files that hold times, by the beginning of their path."""
    refuses: bool = False
    """Whether it refuses an output that is there."""

    def words(self, work: Path, out: Path) -> list[str]:
        """Return the command line."""
        return self.line.format(work=work, out=out).split()


RUN_TIMES = ("metrics.jsonl", "tensorboard")
VERBS = {
    "demos": Verb("demos reach --episodes 4 --seed 3 --workers 1 --out {out}"),
    "data import": Verb("data import {work}/arm.hdf5 --task push --fps 10 --out {out}"),
    "convert": Verb("convert {work}/bags --fps 10 --out {out}", refuses=True),
    "label": Verb(
        "label {work}/clips --reward-model {work}/reward_model --memory-mb 1 --no-report "
        "--out {out}",
        varies=("meta/labels.json",),
    ),
    "data inspect": Verb("data inspect {work}/demos --out {out}", before="old_page"),
    "train": Verb(
        TRAIN + " --steps 4 --dataset {work}/demos --out {out}",
        resumes=_absent_or_openable, varies=RUN_TIMES,
    ),
    "train rl": Verb(
        "train rl --task reach --policy.path {work}/run --dataset {work}/demos --reward sparse "
        "--algo.type filtered_bc --algo.batch-size 4 --n-iterations 2 "
        "--episodes-per-iteration 2 --num-envs 2 --steps 4 --threads 1 --log-every 1 "
        "--save-every 1 --eval.every 0 --eval.final-episodes 0 --out {out}",
        resumes=_absent_or_openable, varies=RUN_TIMES,
    ),
    "train distill": Verb(
        "train distill --policy.path {work}/run --dataset {work}/demos --steps 4 --threads 1 "
        "--algo.batch-size 4 --log-every 1 --save-every 2 --eval.every 0 "
        "--eval.final-episodes 0 --out {out}",
        resumes=_absent_or_openable, varies=RUN_TIMES,
    ),
    "export": Verb("export {work}/run --out {out}", before="old_export"),
    "report": Verb("report {work}/run --out {out}", before="old_page"),
    "hub card": Verb("hub card {work}/run --license apache-2.0 --out {out}", refuses=True),
}  # fmt: skip
"""Every verb that writes data, models or pages, by name."""


def prepare(work: Path, names: Iterable[str]) -> int:
    """Make the inputs of some verbs in a folder; return exit code 0.

    Raises:
        ValueError: a command that makes one fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    for name in names:
        verb = VERBS[name]
        for needed in [
            *re.findall(r"{work}/([\w.]+)", verb.line),
            *[verb.before] * bool(verb.before),
        ]:
            make(work, needed)
    return 0


def make(work: Path, name: str) -> Path:
    """Make an input, if it is not there; return where."""
    path = work / name
    if not path.exists():
        MAKERS[name](work, path)
    return path


def _run(work: Path, path: Path, steps: int) -> None:
    must(f"{TRAIN} --steps {steps} --dataset {make(work, 'demos')} --out {path}")


MAKERS: dict[str, Callable[[Path, Path], object]] = {
    "demos": lambda work, path: must(f"demos reach --episodes 4 --seed 5 --workers 1 --out {path}"),
    "run": lambda work, path: _run(work, path, 4),
    "old_run": lambda work, path: _run(work, path, 2),
    "old_export": lambda work, path: must(f"export {make(work, 'old_run')} --out {path}"),
    "old_page": lambda work, path: path.write_text("what was there before\n"),
    "clips": lambda work, path: synthetic_dataset.make_data(path, episodes=4, steps=30),
    "reward_model": lambda work, path: synthetic_dataset.make_reward_model(path),
    "arm.hdf5": lambda work, path: _robomimic(path),
    "bags": lambda work, path: _bag(path / "bag.mcap"),
}
"""What makes an input, given the folder of all and its own path."""


def clear(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def must(line: str) -> None:
    """Run a command; ValueError if it fails."""
    if cli.main(line.split()):
        raise ValueError(f"vla {line}: failed; see its error above")


def _robomimic(path: Path) -> None:
    """Write two demonstrations as robomimic does."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        env = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
        data.attrs["env_args"] = json.dumps(env)
        for i, length in enumerate((12, 9)):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = length
            demo["actions"] = rng.standard_normal((length, 7))
            demo["rewards"] = np.arange(length) == length - 1
            demo["dones"] = np.arange(length) == length - 1
            obs = demo.create_group("obs")
            obs["robot0_eef_pos"] = rng.standard_normal((length, 3))
            obs["robot0_gripper_qpos"] = rng.standard_normal((length, 2))
            obs["agentview_image"] = rng.integers(0, 255, (length, 64, 64, 3), np.uint8)


def _bag(path: Path) -> None:
    """Write two seconds of an arm with two cameras, as the recorder does."""
    from builtin_interfaces.msg import Duration, Time
    from rclpy.serialization import serialize_message
    from sensor_msgs.msg import Image, JointState
    from std_msgs.msg import Header
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

    from robot_bridge.recording.mcap_writer import McapWriter
    from vla.contracts import registry

    path.parent.mkdir()
    names = list(registry.load("vla.robots", "so101").SPEC.names)
    command = "/joint_trajectory_controller/joint_trajectory"
    writer = McapWriter(path)

    def messages(i: int, header: Header) -> Iterator[tuple[str, object]]:
        at = [0.1 * j + 0.01 * i for j in range(len(names))]
        if i == 0:
            header.frame_id = "push the cube"
            yield "/instruction", header
        yield "/joint_states", JointState(header=header, name=names, position=at)
        pixels = np.full((96, 96, 3), 10 * i, np.uint8).tobytes()
        for camera in ("front", "wrist"):
            yield (
                f"/cameras/{camera}/image_raw",
                Image(header=header, height=96, width=96, step=288, encoding="rgb8", data=pixels),
            )
        point = JointTrajectoryPoint(positions=at, time_from_start=Duration(nanosec=10**8))
        yield command, JointTrajectory(header=header, joint_names=names, points=[point])

    known: set[str] = set()
    for i in range(20):
        at = 1_700_000_000_000_000_000 + 100_000_000 * i
        stamp = Time(sec=at // 10**9, nanosec=at % 10**9)
        for topic, message in messages(i, Header(stamp=stamp)):
            if topic not in known:
                known.add(topic)
                kind = type(message)
                writer.add_topic(topic, f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}")
            writer.write(topic, serialize_message(message), at + 3_000_000, at)
    writer.close()
