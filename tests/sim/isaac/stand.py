"""An interpreter in which the stand-ins for NVIDIA's packages are installed, as far as it knows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

STAND_INS = Path(__file__).parent / "stand_ins"


def interpreter(folder: Path, lab: int = 2) -> str:
    """Write a script that starts Python with the stand-ins, and return its path."""
    script = folder / f"python-lab{lab}"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{STAND_INS}" MNEME_STAND_IN_LAB={lab} '
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def run(folder: Path, code: str, lab: int = 2) -> str:
    """Run code in that interpreter and return what it prints."""
    done = subprocess.run(
        [interpreter(folder, lab), "-c", code], capture_output=True, text=True, timeout=100,
        env={**os.environ, "MUJOCO_GL": "egl"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


EACH_ALONE = """
import json, os
said = []
for code in codes:
    ours, theirs = os.pipe()
    if not os.fork():
        head, _, last = code.rpartition("\\n")
        try:
            names = {}
            exec(head, names)
            value = eval(last, names)
            answer = json.dumps(value) if isinstance(value, (dict, list)) else "not refused"
        except Exception as error:
            answer = f"{type(error).__name__} {error}"
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    parts = iter(lambda: os.read(ours, 65536), b"")
    said.append(b"".join(parts).decode())
    os.wait()
print(json.dumps({"said": said}))
"""


def answers(folder: Path, imports: str, codes: list[str], lab: int = 2) -> list[str]:
    """Run pieces of code, each in a process of its own, but import what is slow only once.

    The last line of each is an expression: a list or dict comes back as JSON, and what is refused
    as the error.
    """
    return told(folder, f"{imports}\ncodes = {codes!r}\n{EACH_ALONE}", lab)["said"]


def told(folder: Path, code: str, lab: int = 2) -> dict:
    """Run code and return the JSON of its last line."""
    return json.loads(run(folder, code, lab).splitlines()[-1])


def play(env, episodes: int) -> dict[int, bool]:
    """Have the expert play and return episode -> success."""
    home = np.array(env.spec.robot.home, np.float32)
    actions = np.tile(home, (env.num_envs, 1, 1))
    done: dict[int, bool] = {}
    while len(done) < episodes:
        step = env.step_chunk(actions, use_expert=np.ones(env.num_envs, np.bool_))
        for row in np.flatnonzero(step.terminated | step.truncated):
            done[int(step.info["episode"][row])] = bool(step.info["success"][row])
    return done


def alike(images: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return how alike images are, one number in [-1, 1] for each."""
    grey = [np.asarray(i, np.float64).mean(axis=-1).reshape(*i.shape[:-3], -1)
            for i in (images, ours)]  # fmt: skip
    grey = [g - g.mean(axis=-1, keepdims=True) for g in grey]
    grey = [g / np.linalg.norm(g, axis=-1, keepdims=True) for g in grey]
    return np.sum(grey[0] * grey[1], axis=-1)
