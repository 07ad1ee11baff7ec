"""The `vla` command: maps a verb to a function and imports it when called."""

import difflib
import errno
import functools
import importlib
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from vla.contracts import renames
from vla.utils.interrupted import Interrupted

VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("vla.doctor:main", "check this machine, and how to fix what does not work"),
    "tasks": ("sim.catalogue:main", "list the tasks and their instructions"),
    "env add": (
        "sim.env_server.env_command:add",
        "install a suite of tasks in a separate environment",
    ),
    "env list": (
        "sim.env_server.env_command:list_environments",
        "list suites, whether they work, and how to install them",
    ),
    "env remove": ("sim.env_server.env_command:remove", "delete the environment of a suite"),
    "demos": ("training.data.demos:main", "record demonstrations of a task as a LeRobot data set"),
    "train": ("training.commands.train:main", "train a policy from demonstrations by a recipe"),
    "train rl": (
        "training.commands.train_rl:main",
        "fine-tune a policy by online RL in simulation",
    ),
    "train distill": ("training.commands.distill:main", "distil a policy into one denoising step"),
    "eval": (
        "training.commands.eval:main",
        "evaluate a policy on a task: success with its interval",
    ),
    "curve": (
        "training.commands.curve:main",
        "measure how long a policy remembers: success against delay",
    ),
    "reward-model train": (
        "training.commands.train_reward_model:main",
        "train a process reward model",
    ),
    "reward-model tune": (
        "training.commands.tune_reward_model:main",
        "fine-tune the adapter of a vision-language reward model",
    ),
    "reward-model calibrate": (
        "training.commands.calibrate_reward_model:main",
        "refit the fusion and probabilities of a reward model",
    ),
    "reward-model eval": (
        "training.commands.eval_reward_model:main",
        "evaluate a reward model against the controls",
    ),
    "convert": (
        "robot_bridge.recording.convert_bag:main",
        "convert recorded bags to a LeRobot data set",
    ),
    "data import": ("vla.data.import_command:main", "convert LeRobot v2, robomimic or RLDS to v3"),
    "data inspect": ("vla.data.inspection.command:main", "check a data set for errors"),
    "label": ("reward_models.label.command:main", "label a data set with progress and rewards"),
    "report": ("training.commands.report:main", "write one HTML page about a run"),
    "hub card": ("vla.hub.command:write_card", "write the model card of a run"),
    "hub push": ("vla.hub.command:push", "upload a policy and its model card to the Hub"),
    "hub pull": ("vla.hub.command:pull", "download a policy from the Hub"),
    "view": ("training.commands.view:main", "look at a data set or a policy in Rerun"),
    "export": (
        "deploy.commands.export:main",
        "export a checkpoint or a reward model to ONNX, to run without torch",
    ),
    "verify-export": (
        "deploy.commands.verify_export:main",
        "compare an exported policy with its checkpoint",
    ),
    "engines": (
        "deploy.commands.engines:main",
        "build an exported policy's engines here, and time them",
    ),
    "lerobot pack": ("lerobot_policy_mneme.convert:pack", "convert a checkpoint for stock LeRobot"),
    "lerobot unpack": (
        "lerobot_policy_mneme.convert:unpack",
        "convert a policy of LeRobot to a checkpoint",
    ),
    "serve": (
        "deploy.commands.serve:main",
        "serve a policy to a robot's computer or to simulators",
    ),
    "ros launch": (
        "robot_bridge.launching.up:main",
        "start the ROS 2 nodes of an arm, simulated or real",
    ),
    "ros interfaces": (
        "robot_bridge.launching.interfaces:main",
        "build the nodes' ROS 2 actions where ROS 2 is from PyPI",
    ),
    "ros execute": (
        "robot_bridge.instruction_cli:main",
        "have an arm follow an instruction until it is done",
    ),
    "doctor arm": (
        "robot_bridge.doctor_arm:main",
        "check an arm and its driver, and its first motions",
    ),
    "safety": ("robot_bridge.safety_cli:main", "enable or stop an arm, and show its safety node"),
    "bench tiny-model": (
        "benchmarks.tiny_model_command:main",
        "make a small random model of a pretrained family",
    ),
    "bench sim": ("benchmarks.sim.throughput:main", "measure simulation and rendering speed"),
    "bench train": (
        "benchmarks.training.throughput:main",
        "measure training speed against LeRobot",
    ),
    "bench preset": (
        "benchmarks.training.presets.bench:main",
        "count the memory and time of presets",
    ),
    "bench rl": ("benchmarks.rl.bench:main", "measure online RL: where each second goes"),
    "bench label": (
        "benchmarks.reward_models.label_bench:main",
        "measure labelling speed against prefixes",
    ),
    "bench policy": ("benchmarks.deploy.policy_latency:main", "measure the latency of a decision"),
    "bench compare": (
        "benchmarks.training.compare:main",
        "compare success and latency of several policies",
    ),
    "bench bridge": (
        "benchmarks.robot_bridge.ros_latency:main",
        "compare a policy over ROS 2 with one process",
    ),
    "bench realtime": (
        "benchmarks.training.latency_sweep:main",
        "measure success by inference latency (RTC)",
    ),
}
"""Verb, or group and verb, to "module:function" and one line of help."""

INTERRUPTED = 130
"""Exit code of a command ended by Ctrl-C: 128 + SIGINT."""

DEFECT = 70
"""Exit code of an error that no sentence explains: EX_SOFTWARE of sysexits.h."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""

LOG_BYTES = 1_000_000
"""Size at which the log of errors becomes `errors.log.1`, and a new one begins."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit code.

    Every error becomes one sentence, and exit code 1, or 70 if it is a defect of the program; its
    traceback goes to `error_log()`. `--debug` before the verb, or MNEME_DEBUG=1, shows it instead.
    An unknown verb gives 2.

    Args:
        argv: Words after `vla`; the process's if None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Two processes on the same cores run ten times slower if waiting threads spin.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    debug = os.environ.get("MNEME_DEBUG", "") == "1"
    if words[:1] == ["--debug"]:
        debug, words = True, words[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        return run("vla.cli:_print_usage", words)
    verb = " ".join(words[:2])
    if verb not in VERBS and (words[0] in VERBS or not _is_group(words[0])):
        verb = words[0]
    rest = words[len(verb.split()) :]
    if verb not in VERBS:
        return _wrong_verb(words)
    return run(VERBS[verb][0], rest, debug=debug)


def _print_usage(words: list[str]) -> int:
    print(usage(VERBS), flush=True)
    return 0 if words else 2


def run(target: str, argv: list[str], *, debug: bool = False) -> int:
    """Import "module:function", call it with `argv`, and return an exit code for any error."""
    before, threading.excepthook = threading.excepthook, functools.partial(_in_thread, argv, target)
    try:
        return _load(target)(argv) or 0
    except Interrupted as stop:
        print(f"interrupted: {stop}; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # of `vla ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # of a library in Rust, no Exception
        if debug or not (isinstance(error, Exception) or panic):
            raise
        log = _keep_traceback(argv, target, error)
        sentence = explain(error)
        _complain(sentence or f"{_one_line(error)}: a defect of this program; report it with {log}")
        return 1 if sentence else DEFECT
    finally:
        threading.excepthook = before


def _in_thread(argv: list[str], target: str, failure: threading.ExceptHookArgs) -> None:
    """Say that a thread, of a library mostly, ended by an error."""
    error = failure.exc_value or failure.exc_type()
    log = _keep_traceback(argv, target, error)
    _complain(f"a thread ended: {explain(error) or _one_line(error)}; its traceback is in {log}")


def error_log() -> Path:
    """Return the file with the tracebacks of the last errors of this user's commands."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "mneme-vla" / "errors.log"


def _keep_traceback(argv: list[str], target: str, error: BaseException) -> str:
    """Append the traceback of an error to the log; return where it is."""
    text = "".join(traceback.format_exception(error))
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    log = error_log()
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        with log.open("a") as file:
            file.write(f"{now} {target} {shlex.join(argv)}\n{text[-LOG_BYTES // 10 :]}\n")
    except OSError:  # a home that cannot be written must not hide the error itself
        return "what `vla --debug` shows"
    return str(log)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def explain(error: BaseException) -> str | None:
    """Return a sentence for the user about an error, or None for a defect of the program."""
    # Libraries in C or Rust raise their own errors with the system's message.
    if getattr(error, "errno", None) in FULL or os.strerror(errno.ENOSPC) in str(error):
        # Of a copy, the file that is written.
        place = getattr(error, "filename2", None) or getattr(error, "filename", None)
        where = f" at {place}" if isinstance(place, str) else ""
        return f"disk full{where}: free space and run the same command again"
    if getattr(error, "errno", None) == errno.EIO or os.strerror(errno.EIO) in str(error):
        text = " ".join(str(error).split())
        return f"{text}: see whether the disk is sound, and run the same command again"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"package {error.name} is not installed: `vla doctor` says how to install it"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no such file or folder: {error.filename}"
    if isinstance(error, OSError) and error.strerror:
        place = error.filename2 or error.filename  # of a rename, the target
        place = os.fsdecode(place) if isinstance(place, bytes) else place
        where = f"{error.strerror.lower()}: {place}" if place else " ".join(error.strerror.split())
        return f"{where}; give another path, or fix this one"
    if isinstance(error, MemoryError):
        return f"out of memory ({error or 'no more could be had'}): free memory, or ask for less"
    if isinstance(error, (ValueError, FileNotFoundError)):
        return " ".join(str(error).split()) or type(error).__name__
    return None


def usage(verbs: dict[str, tuple[str, str]]) -> str:
    """Return the help text with one line per verb."""
    width = max(len(verb) for verb in verbs)
    lines = [f"  {verb:<{width}}  {line}" for verb, (_, line) in verbs.items()]
    return "\n".join(
        [
            "usage: vla [--debug] VERB [ARGUMENTS]",
            "",
            *lines,
            "",
            "`vla VERB --help` explains the arguments of a verb; --debug shows tracebacks.",
        ]
    )


def _is_group(word: str) -> bool:
    return any(verb.startswith(f"{word} ") for verb in VERBS)


def _wrong_verb(words: list[str]) -> int:
    for old in (" ".join(words[:2]), words[0]):
        if old in renames.VERBS:
            _complain(f"`vla {old}` is now `vla {renames.VERBS[old]}`")
            return 2
    if _is_group(words[0]):
        inside = {v: line for v, line in VERBS.items() if v.startswith(f"{words[0]} ")}
        if len(words) == 1 or words[1] in ("-h", "--help"):
            print(usage(inside))
            return 0 if len(words) > 1 else 2
        word, choices = words[1], [v.split()[1] for v in inside]
    else:
        word, choices = words[0], list(dict.fromkeys(v.split()[0] for v in VERBS))
    near = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    _complain(f"unknown verb {word!r}: {hint}known verbs are {', '.join(choices)}")
    return 2


def _load(target: str) -> Callable[[list[str]], int | None]:
    module, function = target.split(":")
    if module.startswith("benchmarks."):
        _find_benchmarks()
    try:
        return getattr(importlib.import_module(module), function)
    except (AttributeError, ImportError, RuntimeError) as error:
        # Without the library that MUJOCO_GL names, MuJoCo fails after loading its parts.
        if "mujoco" in sys.modules or not any(name.startswith("mujoco.") for name in sys.modules):
            raise
        chosen = os.environ.get("MUJOCO_GL")
        raise ValueError(
            f"MuJoCo cannot be imported with MUJOCO_GL={chosen} ({error}); set "
            "MUJOCO_GL=egl and apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri"
        ) from error


def _find_benchmarks() -> None:
    """Make `benchmarks` importable from a source checkout: it is not installed with the package.

    Raises:
        ValueError: there is no source checkout.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / "benchmarks").is_dir():
        raise ValueError(
            "`vla bench` needs a source checkout: benchmarks are not installed with the package; "
            "clone the repository and run `make demo` or `pip install -e .` there"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    # Processes that benchmarks start need the folder as well.
    places = [place for place in (os.environ.get("PYTHONPATH"), str(root)) if place]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)


def _complain(sentence: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}vla: {sentence}{plain}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
