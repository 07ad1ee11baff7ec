"""MetaWorld's 50 tasks of a Sawyer arm, with scripted experts (Farama Foundation, MIT licence).

An action moves the hand by up to a centimetre along each axis, 80 times a second; proprioception
is the hand's position in metres and its opening in [0, 1].
"""

import dataclasses
from typing import Any

from sim.env_server.suite_installs import Environment
from sim.suites._arm import arm, channels
from sim.suites._installed import InstalledConfig
from vla.contracts.specs import Gripper

ENVIRONMENT = Environment(
    pythons=("3.11", "3.12"),
    requirements=(
        "absl-py==2.5.1", "cloudpickle==3.1.2", "etils==1.15.0", "farama-notifications==0.0.6",
        "fsspec==2026.9.0", "glfw==2.11.0", "gymnasium==1.4.0", "imageio==2.38.1",
        "metaworld==3.1.1", "mujoco==3.3.0", "numpy==2.4.6", "packaging==26.3", "pillow==13.0.0",
        "pyopengl==3.1.10", "scipy==1.17.1", "typing-extensions==4.16.0", "zipp==4.1.2",
    ),
    sample="push-v3",
)  # fmt: skip

TASKS = {
    "assembly-v3": "put the ring over the peg",
    "basketball-v3": "put the ball into the basket",
    "bin-picking-v3": "move the block into the other bin",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button down from above",
    "button-press-topdown-wall-v3": "press the button behind the wall down from above",
    "button-press-v3": "press the button in from the front",
    "button-press-wall-v3": "press the button in behind the wall",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug from the coffee machine to the mark",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "lift the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "turn the tap clockwise",
    "faucet-open-v3": "turn the tap anticlockwise",
    "hammer-v3": "hit the nail with the hammer",
    "hand-insert-v3": "put the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "push the peg into the hole in the side",
    "peg-unplug-side-v3": "pull the peg out of the hole in the side",
    "pick-out-of-hole-v3": "pick the puck out of the hole",
    "pick-place-v3": "pick up the puck and hold it at the mark",
    "pick-place-wall-v3": "carry the puck over the wall to the mark",
    "plate-slide-back-side-v3": "slide the plate out of the goal to the side",
    "plate-slide-back-v3": "slide the plate back out of the goal",
    "plate-slide-side-v3": "slide the plate to the side into the goal",
    "plate-slide-v3": "slide the plate into the goal",
    "push-back-v3": "push the block back to the mark",
    "push-v3": "push the puck to the mark",
    "push-wall-v3": "push the puck around the wall to the mark",
    "reach-v3": "move the hand to the mark",
    "reach-wall-v3": "move the hand past the wall to the mark",
    "shelf-place-v3": "put the block on the shelf",
    "soccer-v3": "push the ball into the goal",
    "stick-pull-v3": "pull the bottle by its handle with the stick",
    "stick-push-v3": "push the bottle with the stick to the mark",
    "sweep-into-v3": "sweep the block into the hole",
    "sweep-v3": "sweep the block off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}
"""Task -> instruction."""

HAS_EXPERT = True
PACKAGE = "metaworld"
CONTROL_HZ = 80.0

ARM = arm(
    "metaworld_sawyer",
    channels(("dx", "dy", "dz", "grip"), CONTROL_HZ),
    CONTROL_HZ,
    Gripper(channel="grip", open=-1.0, closed=1.0),
    {"corner": 45.0, "gripper": 90.0},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of MetaWorld."""

    name: str = "push-v3"
    """Name of the task (see `vla env list`)."""
    draw: bool = True
    """Whether to render images; black ones cost nothing."""

    def options(self) -> dict[str, Any]:
        """Return task, instruction and whether to render."""
        return {**super().options(), "draw": self.draw}
