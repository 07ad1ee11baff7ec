"""Grid videos of a policy's episodes, in real time.

Each cell shows one episode. When it ends, the cell keeps the last image with a green (success) or
red (failure) border.
"""

import contextlib
import math
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image, ImageDraw, ImageFont

from sim import vec_env
from sim.rollout import rollout
from training.evaluation.evaluate import Player
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Array
from vla.utils.video import BACKGROUND, TEXT, upscale

BORDER_PX, GAP_PX, CAPTION_PX, FONT_PX = 4, 8, 40, 13
HOLD_S = 1.5
"""Duration of the last frame, so that the outcomes can be read."""
RUNNING, SUCCESS, FAILURE = (70, 74, 82), (46, 170, 95), (216, 68, 62)


class Frame(NamedTuple):
    """Images of E episodes at one control step; ended episodes keep their last images."""

    images: UInt8[Array, "e v h w 3"]
    over: Bool[Array, " e"]
    success: Bool[Array, " e"]
    task: tuple[str, ...]


def play(policy: ArmPolicy, task: PluginConfig, *, episodes: int, seed: int) -> Iterator[Frame]:
    """Yield every control step of episodes 0 to `episodes` - 1 of `seed`, side by side.

    The policy decides every `n_action_steps` steps, as in `training.evaluation.evaluate`.
    """
    env = vec_env.make(type_name(task), episodes, robot=policy.robot, task_config=task)
    with contextlib.closing(env):
        player, obs = Player(policy, episodes, seed), env.reset(seed)
        over, success = np.zeros(episodes, np.bool_), np.zeros(episodes, np.bool_)
        images = obs.images.copy()
        yield Frame(images.copy(), over.copy(), success.copy(), obs.task)
        for played in rollout(env, obs, player.step_actions, episodes):
            # After its end, a row shows another episode, which is left out.
            images[played.running] = played.step.final_obs.images[played.running]
            for outcome in played.ended:
                over[outcome.number], success[outcome.number] = True, outcome.success
            yield Frame(images.copy(), over.copy(), success.copy(), obs.task)


class Grid:
    """Composes frames into grid images; captions are cached."""

    def __init__(self) -> None:
        self._captions: dict[tuple[str, int], np.ndarray] = {}

    def __call__(self, frame: Frame) -> UInt8[Array, "h w 3"]:
        """Return one image with a cell per episode: a caption above the camera views."""
        cells = [
            self._cell(images, 0 if not over else 1 if success else 2, task)
            for images, over, success, task in zip(*frame, strict=True)
        ]
        columns = math.ceil(math.sqrt(len(cells)))
        rows = math.ceil(len(cells) / columns)
        height, width = cells[0].shape[:2]
        shape = (rows * (height + GAP_PX) + GAP_PX, columns * (width + GAP_PX) + GAP_PX)
        canvas = np.full((*(side + side % 2 for side in shape), 3), BACKGROUND, np.uint8)
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
    """Return a strip with the instruction (at most two lines) and the outcome, if any."""
    image = Image.new("RGB", (width_px, CAPTION_PX), BACKGROUND)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(FONT_PX)
    mark = ("", "success", "failure")[outcome]
    columns = int((width_px - 20 - draw.textlength("success", font)) / draw.textlength("n", font))
    lines = textwrap.wrap(task, columns, max_lines=2, placeholder=" ...")
    draw.multiline_text((6, 4), "\n".join(lines), TEXT, font, spacing=3)
    draw.text((width_px - 6, 4), mark, (RUNNING, SUCCESS, FAILURE)[outcome], font, anchor="ra")
    return np.asarray(image)
