"""Grid videos of a policy's episodes, and strips of single moments; it measures nothing.

Every cell is one episode as the policy plays it, at the robot's own pace; when it ends, the cell
stands still in a frame of green (success) or red (failure).
"""

import contextlib
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image, ImageDraw, ImageFont

from sim import vec_env
from training.evaluate import Player
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Array
from vla.video import BACKGROUND, TEXT, encode, upscale

BORDER_PX, GAP_PX, CAPTION_PX, FONT_PX = 4, 8, 40, 13
HOLD_S = 1.5
"""How long the last frame stays, so that the outcomes can be read."""
RUNNING, SUCCESS, FAILURE = (70, 74, 82), (46, 170, 95), (216, 68, 62)


class Frame(NamedTuple):
    """What E episodes show at one control step; rows that are over keep their last images."""

    images: UInt8[Array, "e v h w 3"]
    """Camera images."""
    over: Bool[Array, " e"]
    """Whether the episode has ended."""
    success: Bool[Array, " e"]
    """Whether it ended in success."""
    task: tuple[str, ...]
    """Instructions."""


def play(policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int) -> Iterator[Frame]:
    """Yield every control step of episodes 0 to `episodes` - 1 of `seed`, side by side.

    The policy decides every `execute` steps of its own, as in `training.evaluate`.
    """
    env = vec_env.make(type_name(task), episodes, robot=policy.robot, task_config=task)
    with contextlib.closing(env):
        player, obs = Player(policy, episodes, seed), env.reset(seed)
        number, instruction = np.arange(episodes), obs.task
        over, success = np.zeros(episodes, np.bool_), np.zeros(episodes, np.bool_)
        images, actions, step = obs.images.copy(), np.empty(0), 0
        yield Frame(images.copy(), over.copy(), success.copy(), instruction)
        while not over.all():
            # All start together, so those that still play are always due at the same step.
            due = step % policy.execute
            if due == 0:
                actions = player.decide(obs, number)
            result = env.step(actions[:, due])
            obs, step = result.obs, step + 1
            # What follows an ended episode in its row is another one, and not shown.
            images[~over] = result.final_obs.images[~over]
            ended = ~over & (result.terminated | result.truncated)
            success[ended] = result.info["success"][ended]
            over = over | ended
            yield Frame(images.copy(), over.copy(), success.copy(), instruction)


def write_grid(
    policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int, path: Path
) -> None:
    """Play episodes and write them as a grid, H.264 in MP4 that browsers play.

    Raises:
        ValueError: this PyAV has no H.264 encoder.
    """
    frames = play(policy, task, episodes=episodes, seed=seed)
    encode(map(Grid(), frames), path, policy.robot.control_hz, hold_s=HOLD_S)


class Grid:
    """Composes frames into pictures; captions are drawn only when they change."""

    def __init__(self) -> None:
        self._captions: dict[tuple[str, int], np.ndarray] = {}

    def __call__(self, frame: Frame) -> UInt8[Array, "h w 3"]:
        """Return one picture with a cell per episode: a caption over the views, side by side."""
        cells = [
            self._cell(images, 0 if not over else 1 if success else 2, task)
            for images, over, success, task in zip(*frame, strict=True)
        ]
        columns = math.ceil(math.sqrt(len(cells)))
        rows = math.ceil(len(cells) / columns)
        height, width = cells[0].shape[:2]
        shape = (rows * (height + GAP_PX) + GAP_PX, columns * (width + GAP_PX) + GAP_PX)
        canvas = np.full((*map(_even, shape), 3), BACKGROUND, np.uint8)
        for k, cell in enumerate(cells):
            y = GAP_PX + k // columns * (height + GAP_PX)
            x = GAP_PX + k % columns * (width + GAP_PX)
            canvas[y : y + height, x : x + width] = cell
        return canvas

    def _cell(self, images: np.ndarray, outcome: int, task: str) -> np.ndarray:
        views = upscale(np.concatenate(list(images), axis=1))
        if (task, outcome) not in self._captions:
            self._captions[task, outcome] = caption(task, views.shape[1], outcome)
        inside = np.concatenate([self._captions[task, outcome], views])
        height, width = (side + 2 * BORDER_PX for side in inside.shape[:2])
        cell = np.full((height, width, 3), (RUNNING, SUCCESS, FAILURE)[outcome], np.uint8)
        cell[BORDER_PX:-BORDER_PX, BORDER_PX:-BORDER_PX] = inside
        return cell


def caption(task: str, width_px: int, outcome: int) -> UInt8[Array, "h w 3"]:
    """Return a strip with the instruction, in two lines at most, and the outcome, if any."""
    image = Image.new("RGB", (width_px, CAPTION_PX), BACKGROUND)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(FONT_PX)
    mark = ("", "success", "failure")[outcome]
    columns = int((width_px - 20 - draw.textlength("success", font)) / draw.textlength("n", font))
    lines = textwrap.wrap(task, columns, max_lines=2, placeholder=" ...")
    draw.multiline_text((6, 4), "\n".join(lines), TEXT, font, spacing=3)
    draw.text((width_px - 6, 4), mark, (RUNNING, SUCCESS, FAILURE)[outcome], font, anchor="ra")
    return np.asarray(image)


def strip(images: Sequence[UInt8[Array, "h w 3"]], labels: Sequence[str]) -> bytes:
    """Return a PNG of images side by side, each under its label."""
    font = ImageFont.load_default(FONT_PX)
    tiles = []
    for picture, label in zip(images, labels, strict=True):
        views = upscale(picture)
        head = Image.new("RGB", (views.shape[1], 22), BACKGROUND)
        ImageDraw.Draw(head).text((6, 4), label, TEXT, font)
        tiles.append(np.concatenate([np.asarray(head), views]))
        tiles.append(np.full((len(tiles[0]), GAP_PX // 2, 3), BACKGROUND, np.uint8))
    out = io.BytesIO()
    Image.fromarray(np.concatenate(tiles[:-1], axis=1)).save(out, "PNG", optimize=True)
    return out.getvalue()


def _even(side: int) -> int:
    return side + side % 2
