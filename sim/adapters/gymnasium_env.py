"""Any environment that is registered with Gymnasium, with images and a Box of actions.

Options: `task` (the id), `kwargs` of `gymnasium.make`, `camera_px`, `proprio` (key, or ""),
`instruction`, `control_hz` and `max_episode_steps` (0 for the environment's), `path` (a folder to
import from, or "").
"""

import sys

import gymnasium
import numpy as np
from _images import shrink
from _rows import Rows, episode_seed

PROPRIO = ("agent_pos", "observation.state", "proprio", "state", "observation", "qpos")
"""Usual keys of the arm's state, the likeliest first."""
SUCCESS = ("is_success", "success")


class World:
    """One environment; images are resized, and the arm's state has u numbers."""

    def __init__(self, options):
        self._options = options
        self._env = env = _make(options)
        self.channels, self.low, self.high = _actions(env, options["task"])
        self.control_hz = options["control_hz"] or env.metadata.get("render_fps")
        if not self.control_hz:
            raise ValueError("%s: has no rate (render_fps); give control_hz" % options["task"])
        self.max_episode_steps = options["max_episode_steps"] or _limit(env)
        if not self.max_episode_steps:
            raise ValueError("%s: has no time limit; give max_episode_steps" % options["task"])
        self.has_expert = False
        seen, info = env.reset(seed=0)
        self._views = _views(env.observation_space)
        if self._views is None and env.render_mode != "rgb_array":
            raise ValueError(
                "%s: neither its observation nor render() is an image" % options["task"]
            )
        self.cameras = list(self._views) if self._views else ["camera"]
        px = options["camera_px"]
        self.image_shape = (len(self.cameras), px, px, 3)
        self._proprio = _proprio_key(env.observation_space, options["proprio"])
        instructions = (
            [options["instruction"]] if options["instruction"] else _attribute(env, "instructions")
        )
        self.instructions = list(instructions or [info.get("task") or options["task"]])
        self._set(seen, info)
        self.time_limit = self.max_episode_steps

    def reset(self, seed, index):
        """Begin an episode; return its instruction."""
        seen, info = self._env.reset(seed=episode_seed(seed, index))
        self._steps, self.time_limit = 0, self.max_episode_steps
        self._set(seen, info)
        task = info.get("task")
        return task if task in self.instructions else self.instructions[0]

    def step(self, action):
        """Apply one action; return whether the environment ended the episode without success."""
        seen, _, terminated, truncated, info = self._env.step(action)
        self._steps += 1
        self._set(seen, info)
        if truncated:
            self.time_limit = self._steps
        return bool(terminated) and not self._success

    def success(self):
        """Return the environment's success after the last step."""
        return self._success

    def progress(self):
        """Return its progress in [0, 1], or its success as 0 or 1."""
        return max(float(self._info.get("progress", 0.0)), float(self._success))

    def observe(self):
        """Return images u8 [v, px, px, 3] and proprioception f32 [u]."""
        if self._views is None:
            shown = [self._env.render()]
        else:
            shown = [_at(self._seen, path) for path in self._views.values()]
        images = np.stack([shrink(image, self.image_shape[1]) for image in shown])
        proprio = np.zeros(len(self.channels), np.float32)
        if self._proprio is not None:
            values = np.ravel(_at(self._seen, self._proprio))[: len(proprio)]
            proprio[: len(values)] = values
        return images, proprio

    def close(self):
        """Close the environment."""
        self._env.close()

    def _set(self, seen, info):
        self._seen, self._info = seen, info
        self._success = any(bool(info.get(key, False)) for key in SUCCESS)


def _make(options):
    """Return the environment, which renders if its observation has no images."""
    if options["path"] and options["path"] not in sys.path:
        sys.path.insert(0, options["path"])
    kwargs = dict(options["kwargs"])
    try:
        env = gymnasium.make(options["task"], disable_env_checker=True, **kwargs)
        modes = env.metadata.get("render_modes", [])
        if "render_mode" not in kwargs and _views(env.observation_space) is None:
            if "rgb_array" not in modes:
                return env
            env.close()
            kwargs["render_mode"] = "rgb_array"
            env = gymnasium.make(options["task"], disable_env_checker=True, **kwargs)
        return env
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise ValueError("%s: Gymnasium cannot make it: %s" % (options["task"], error)) from error


def _actions(env, task):
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ValueError("%s: its actions are %s, expected a Box of one axis" % (task, space))
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ValueError("%s: its actions are %s, expected finite limits" % (task, space))
    names = ["a%d" % i for i in range(space.shape[0])]
    return names, space.low.astype(float).tolist(), space.high.astype(float).tolist()


def _limit(env):
    return getattr(env.spec, "max_episode_steps", None) or _attribute(env, "_max_episode_steps")


def _attribute(env, name):
    return getattr(env.unwrapped, name, None)


def _views(space):
    """Return name -> path of each image in an observation; None without images."""
    if _is_image(space):
        return {"camera": []}
    if not isinstance(space, gymnasium.spaces.Dict):
        return None
    views = {}
    for key, inner in space.spaces.items():
        if _is_image(inner):
            views[key] = [key]
        elif isinstance(inner, gymnasium.spaces.Dict):
            views.update({k: [key, k] for k, leaf in inner.spaces.items() if _is_image(leaf)})
    return views or None


def _is_image(space):
    box = isinstance(space, gymnasium.spaces.Box)
    return box and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3


def _proprio_key(space, wanted):
    """Return the path of the arm's state in an observation, or None."""
    if not isinstance(space, gymnasium.spaces.Dict):
        if wanted:
            raise ValueError(
                "proprio: got %r, expected an empty one: observations have no keys" % wanted
            )
        return None if _is_image(space) else ()
    vectors = [key for key, inner in space.spaces.items() if len(inner.shape or ()) == 1]
    if wanted and wanted not in vectors:
        raise ValueError("proprio: got %r, expected one of %s" % (wanted, ", ".join(vectors)))
    for key in (wanted,) if wanted else PROPRIO + tuple(vectors):
        if key in vectors:
            return (key,)
    return None


def _at(seen, path):
    for key in path:
        seen = seen[key]
    return seen


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
