"""A made-up suite in a folder: its file, its adapter, and a wheel that pip installs offline."""

import zipfile
from pathlib import Path

import numpy as np

SUITE = '''"""A suite of one task, for tests."""

import dataclasses
from pathlib import Path

from sim.env_server.suite_installs import Environment
from sim.suites._arm import arm, channels
from sim.suites._installed import InstalledConfig
from vla.contracts.specs import Gripper

ENVIRONMENT = Environment(pythons=({python!r},), requirements=({wheel!r},), sample="count")
TASKS = {{"count": "count to three", "never": "count to nothing"}}
HAS_EXPERT = True
PACKAGE = "tiny"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of the tiny suite."""

    name: str = "count"

    def adapter(self):
        return Path({adapter!r})

    def arm(self):
        hand = Gripper(channel="grip", open=-1.0, closed=1.0)
        return arm("tiny", channels(("dx", "grip"), 10.0), 10.0, hand, {{"front": 45.0}})
'''

ADAPTER = """
import numpy as np
import tiny_simulator
from _rows import Rows, episode_seed


class World:
    max_episode_steps = 5
    image_shape = (1, 96, 96, 3)
    channels, low, high = ("dx", "grip"), (-1.0, -1.0), (1.0, 1.0)
    control_hz, cameras, has_expert = 10, ("front",), True

    def __init__(self, options):
        self.instructions = [options["instruction"]]
        self.goal = 3 if options["task"] == "count" else 99

    def reset(self, seed, index):
        self.rng, self.count = np.random.default_rng(episode_seed(seed, index)), 0
        return self.instructions[0]

    def step(self, action):
        self.count += 1
        return False

    def success(self):
        return self.count >= self.goal

    def progress(self):
        return self.count / self.goal

    def observe(self):
        return self.rng.integers(0, 255, self.image_shape), np.zeros(2)

    def expert(self):
        return np.zeros(2)

    def close(self):
        pass


def open_adapter(options):
    return Rows(World, options)
"""


def write_suite(folder: Path, python: str) -> Path:
    """Write the suite into an empty folder; returns the folder of its suite file."""
    here = Path(__file__).parents[3] / "sim" / "adapters"
    for name in ("suites", "adapters"):
        (folder / name).mkdir()
    (folder / "adapters" / "_rows.py").write_text((here / "_rows.py").read_text())
    adapter = folder / "adapters" / "tiny.py"
    adapter.write_text(ADAPTER)
    wheel = _wheel(folder)
    text = SUITE.format(python=python, wheel=str(wheel), adapter=str(adapter))
    (folder / "suites" / "tiny.py").write_text(text)
    return folder / "suites"


def _wheel(folder: Path) -> Path:
    """Write a wheel with one module, and with a line that finds the numpy of this interpreter."""
    info = "tiny_simulator-1.0.dist-info"
    content = {
        "tiny_simulator.py": "",
        "borrowed.pth": f"{Path(np.__file__).parents[1]}\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-simulator\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*content, f"{info}/RECORD"))
    file = folder / "tiny_simulator-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in {**content, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return file
