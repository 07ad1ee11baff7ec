"""The `vla` command: maps a verb to a function and imports it when called; it computes nothing."""

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Callable

from vla.interrupted import Interrupted

VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("vla.doctor:main", "what works on this machine, and how to mend what does not"),
    "tasks": ("sim.catalogue:main", "list the tasks and what each one asks for"),
    "env add": ("sim.env_command:add", "install a suite of tasks in an environment of its own"),
    "env list": ("sim.env_command:list_", "list suites: installed, working, what to type"),
    "env remove": ("sim.env_command:remove", "take the environment of a suite away"),
    "demos": ("training.demos:main", "record demonstrations of a task as a LeRobot data set"),
    "model tiny": ("vla.model_command:tiny", "make a small random model of a pretrained family"),
    "train": ("training.train:main", "train a policy from demonstrations by a recipe"),
    "train rl": ("training.rl.train:main", "lift a cloned policy by practice in simulation"),
    "train distill": ("training.distill:main", "teach a student to denoise in one step"),
    "eval": ("training.eval_cli:main", "run a checkpoint on a task: success with its interval"),
    "critic train": ("training.critic.train:main", "train a process-reward critic"),
    "critic tune": ("training.critic.tune:main", "tune a vision-language critic's adapter"),
    "critic calibrate": (
        "training.critic.calibrate:main",
        "fit a critic's fusion and probabilities anew",
    ),
    "critic eval": ("training.critic.evaluate:main", "test a critic beside the controls"),
    "convert": ("robot_bridge.convert_bag:main", "turn recorded bags into a LeRobot data set"),
    "data import": ("vla.data.import_command:main", "turn LeRobot v2, robomimic or RLDS into v3"),
    "data inspect": ("vla.data.inspection.command:main", "look for what is wrong with a data set"),
    "label": ("reward_models.label.command:main", "label a data set with progress and rewards"),
    "report": ("training.report:main", "write one HTML page about a run"),
    "hub card": ("vla.hub.command:write_card", "write the model card of a run"),
    "hub push": ("vla.hub.command:push", "upload a policy and its model card to the Hub"),
    "hub pull": ("vla.hub.command:pull", "download a policy from the Hub"),
    "view": ("training.view.command:main", "look at a data set or a policy in Rerun"),
    "export": ("deploy.export:main", "turn a checkpoint or a critic into ONNX: no torch needed"),
    "parity": ("deploy.parity:main", "prove that what was exported is the original"),
    "engines": ("deploy.engines:main", "build an exported policy's engines here, and time them"),
    "lerobot pack": ("lerobot_policy_mneme.convert:pack", "hand a checkpoint to stock LeRobot"),
    "lerobot unpack": ("lerobot_policy_mneme.convert:unpack", "take a policy over from LeRobot"),
    "serve": ("deploy.serve:main", "serve a policy to a robot's computer or to simulators"),
    "up": ("robot_bridge.up:main", "start the ROS 2 nodes of an arm, simulated or real"),
    "safety": ("robot_bridge.switch:main", "arm, stop or look at an arm's safety node"),
    "bench sim": ("sim.bench:main", "measure simulation and rendering speed"),
    "bench train": ("training.bench:main", "measure training speed against LeRobot"),
    "bench preset": ("training.sizes.bench:main", "count memory and time that presets take"),
    "bench rl": ("training.rl.bench:main", "measure practice: where each second goes"),
    "bench label": ("reward_models.label.bench:main", "measure labelling speed against prefixes"),
    "bench policy": ("deploy.bench:main", "measure the time of one decision"),
    "bench compare": ("training.compare:main", "measure success and time of several policies"),
    "bench bridge": ("robot_bridge.bench:main", "measure a policy over ROS 2 against one process"),
    "bench realtime": ("training.realtime:main", "measure success against delayed decisions"),
}
"""Verb, or group and verb, to "module:function" and one line of help."""

INTERRUPTED = 130
"""Exit code of a command ended by Ctrl-C: 128 + SIGINT."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system calls a full disk or quota."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit code.

    A `ValueError`, a missing file or package and a full disk become one sentence and exit code 1;
    with `--debug` before the verb, or MNEME_DEBUG=1, the traceback is shown. A wrong verb is 2.

    Args:
        argv: Words after `vla`; those of the process when None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Threads that spin long while they wait slow two processes on the same cores down tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    debug = os.environ.get("MNEME_DEBUG", "") == "1"
    if words[:1] == ["--debug"]:
        debug, words = True, words[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage(VERBS))
        return 0 if words else 2
    verb = " ".join(words[:2])
    if verb not in VERBS and (words[0] in VERBS or not _is_group(words[0])):
        verb = words[0]
    rest = words[len(verb.split()) :]
    if verb not in VERBS:
        return _wrong_verb(words)
    return run(VERBS[verb][0], rest, debug=debug)


def run(target: str, argv: list[str], *, debug: bool = False) -> int:
    """Import "module:function", call it with `argv`, and turn what goes wrong into an exit code."""
    try:
        return _load(target)(argv) or 0
    except Interrupted as stop:
        print(f"interrupted: {stop}; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        sentence = explain(error)
        if debug or sentence is None:
            raise
        _complain(sentence)
        return 1


def explain(error: Exception) -> str | None:
    """Return the sentence that tells a user what to do, or None where there is none to tell."""
    # Libraries written in C or Rust raise errors of their own with the system's words in them.
    if getattr(error, "errno", None) in FULL or os.strerror(errno.ENOSPC) in str(error):
        place = getattr(error, "filename", None)
        where = f" at {place}" if isinstance(place, str) else ""
        return f"disk full{where}: free space and run the same command again"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"package {error.name} is not installed: `vla doctor` says how to install it"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no such file or folder: {error.filename}"
    if isinstance(error, OSError) and error.filename and error.strerror:
        place = error.filename2 or error.filename  # of a rename, the name that was asked for
        return f"{error.strerror.lower()}: {place}; give another path, or mend this one"
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
    if _is_group(words[0]):
        inside = {v: line for v, line in VERBS.items() if v.startswith(f"{words[0]} ")}
        if len(words) == 1 or words[1] in ("-h", "--help"):
            print(usage(inside))
            return 0 if len(words) > 1 else 2
        word, known = words[1], [v.split()[1] for v in inside]
    else:
        word, known = words[0], list(dict.fromkeys(v.split()[0] for v in VERBS))
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    _complain(f"unknown verb {word!r}: {hint}known verbs are {', '.join(known)}")
    return 2


def _load(target: str) -> Callable[[list[str]], int | None]:
    module, function = target.split(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (AttributeError, ImportError, RuntimeError) as error:
        # Without the library that MUJOCO_GL names, MuJoCo loads its parts and then fails.
        if "mujoco" in sys.modules or not any(name.startswith("mujoco.") for name in sys.modules):
            raise
        chosen = os.environ.get("MUJOCO_GL")
        raise ValueError(
            f"MuJoCo cannot be imported with MUJOCO_GL={chosen} ({error}); set "
            "MUJOCO_GL=egl and apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri"
        ) from error


def _complain(sentence: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}vla: {sentence}{plain}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
