"""Environments of Isaac Lab, 2.3 and 3.x: all rows in one `DirectRLEnv` or `ManagerBasedRLEnv`.

Options: `task` (the id, or MODULE:ID where MODULE registers it), `path` (a folder to import from,
or ""), `device`, `instruction`, `camera_px`, `cameras` and `proprio` (names, or nothing),
`success_term`, `low` and `high` (where actions have no limits).

The simulator steps all rows and resets those that end before it computes observations, so single
rows cannot begin or stay frozen; a chunk stops in all rows with the first that ends.
Nothing of the simulator may be imported before its app runs.
"""

import importlib
import sys
from typing import Any, Dict, List

import numpy as np
from _images import shrink
from _rows import episode_seed, layout
from isaaclab.app import AppLauncher

RERENDERS = 2
"""Frames rendered after a reset: without any, images still show the last episode."""
PROPRIO = ("joint_pos", "proprio", "state")
"""Usual names of the arm's state in observations, the likeliest first."""
NO_SUCCESS = "none"
_opened: List[bool] = []


def open_adapter(options: Dict[str, Any]) -> "IsaacLabEnv":
    """Return the adapter of all rows of an environment.

    Raises:
        ValueError: there are several workers, or the environment is unsupported.
    """
    if list(options["rows"]) != [0, options["num_envs"]]:
        raise ValueError("workers: got several, expected 1: one app of Isaac Lab holds all rows")
    if _opened:
        raise ValueError("isaac_lab_env: this process already has an app, and it can hold only one")
    _opened.append(True)
    # The app reads the command line.
    del sys.argv[1:]
    AppLauncher(headless=True, enable_cameras=True, device=options["device"])
    return IsaacLabEnv(options)


class IsaacLabEnv:
    """All rows, and a copy of their last observation, since the simulator overwrites its own."""

    def __init__(self, options: Dict[str, Any]) -> None:
        """Make the environment; the app runs already."""
        self._options, self._count = options, options["num_envs"]
        self._env, self._compute_final = _make(options)
        self._actions = _Actions(self._env, options)
        self._steps = np.zeros(self._count, np.int64)
        self._index = np.full(self._count, -1)
        self._succeeded = np.zeros(self._count, bool)
        self._arrays: Dict[str, np.ndarray] = {}
        seen, _ = self._env.reset(seed=0)
        leaves = _leaves(seen)
        self._views = _views(self._env, leaves, options)
        self._proprio = _proprio(leaves, options["proprio"])
        self._check_success()
        self._images, self._positions = self._observe(leaves)

    def fields(self) -> Dict[str, Any]:
        """Return the layout of the shared arrays, as `_rows.Rows`."""
        return layout(self._count, self._images.shape[1:], len(self._actions.low))

    def announce(self) -> Dict[str, Any]:
        """Return the description of the environment, and its limitations."""
        return {
            "instructions": [self._options["instruction"]],
            "max_episode_steps": int(self._env.max_episode_length),
            "image_shape": list(self._images.shape[1:]),
            "channels": ["a%d" % i for i in range(len(self._actions.low))],
            "low": self._actions.low.tolist(),
            "high": self._actions.high.tolist(),
            "control_hz": self._control_hz(),
            "cameras": [name for name, _ in self._views],
            "has_expert": False,
            "together": True,
            "final_obs": self._final_kept(),
        }

    def bind(self, arrays: Dict[str, np.ndarray]) -> None:
        """Take the arrays of `fields`."""
        self._arrays = arrays

    def call(self, command: str, arguments: Dict[str, Any]) -> None:
        """Run `reset` {seed}, `begin` of all rows with one {seed}, or `step` {length}."""
        if command == "reset":
            self._reset(arguments["seed"])
        elif command == "begin":
            self._reset(arguments["seed"][0])
        elif command == "step":
            self._step(arguments["length"])
        else:
            raise ValueError("command: got %r, expected reset, begin or step" % (command,))

    def close(self) -> None:
        """Close the environment; closing the app would end the process."""
        self._env.close()

    # --- episodes -------------------------------------------------------------------------------

    def _reset(self, seed: int) -> None:
        """Seed the environment's only generator, which draws all later episodes."""
        seen, _ = self._env.reset(seed=episode_seed(seed, 0))
        self._steps[:] = 0
        self._index = np.arange(self._count)
        self._succeeded[:] = False
        self._images, self._positions = self._observe(_leaves(seen))
        self._write("", self._images, self._positions, self._steps)

    def _step(self, length: int) -> None:
        """Apply up to `length` actions; the first end of an episode stops all rows."""
        arrays = self._arrays
        for name in ("reward", "steps", "terminated", "truncated"):
            arrays[name][:] = 0
        if arrays["frozen"].all():
            return
        arrays["episode"][:] = self._index
        for i in range(length):
            before = self._images, self._positions
            seen, _, terminated, truncated, extras = self._actions.step(arrays["actions"][:, i])
            # The next step overwrites these tensors.
            terminated, truncated = _copy(terminated) > 0, _copy(truncated) > 0
            self._steps += 1
            arrays["steps"] += 1
            self._succeeded |= self._success(extras)
            self._images, self._positions = self._observe(_leaves(seen))
            ended = terminated | truncated
            if ended.any():
                arrays["terminated"][:] = terminated
                arrays["truncated"][:] = truncated & ~terminated
                self._final(before, extras)
                break
        arrays["success"][:] = arrays["progress"][:] = self._succeeded
        if ended.any():
            arrays["reward"][:] = self._succeeded & ended
            self._steps[ended] = 0
            self._index[ended] += self._count
            self._succeeded[ended] = False
        self._write("", self._images, self._positions, self._steps)

    def _final(self, before: Any, extras: Dict[str, Any]) -> None:
        """Write the final observation: the simulator's, else that before the last step."""
        (images, positions), steps = before, self._steps - 1
        final = extras.get("final_obs") if self._compute_final else None
        if final is not None:
            leaves = _leaves(final)
            positions, steps = self._position(leaves), self._steps
            if self._from_observation():
                images = self._image(leaves)
        self._write("final_", images, positions, steps)

    def _write(self, prefix: str, images: Any, positions: Any, steps: np.ndarray) -> None:
        arrays = self._arrays
        arrays[prefix + "images"][:] = images
        arrays[prefix + "proprio"][:] = positions
        arrays[prefix + "instruction"][:] = 0
        arrays[prefix + "time_s"][:] = steps / self._control_hz()

    # --- observations ---------------------------------------------------------------------------

    def _observe(self, leaves: Dict[str, Any]) -> Any:
        """Return images u8 [e, v, px, px, 3] and positions f32 [e, u], copied."""
        return self._image(leaves), self._position(leaves)

    def _image(self, leaves: Dict[str, Any]) -> np.ndarray:
        shown = []
        for _, path in self._views:
            # A term of the observation has a path; a camera of the scene has none.
            source = leaves[path] if path else self._env.scene.sensors[_].data.output["rgb"]
            shown.append(shrink(_copy(source)[..., :3], self._options["camera_px"]))
        return np.stack(shown, axis=1)

    def _position(self, leaves: Dict[str, Any]) -> np.ndarray:
        positions = np.zeros((self._count, len(self._actions.low)), np.float32)
        if self._proprio:
            values = _copy(leaves[self._proprio])[:, : positions.shape[1]]
            positions[:, : values.shape[1]] = values
        return positions

    def _from_observation(self) -> bool:
        return all(path for _, path in self._views)

    def _final_kept(self) -> str:
        """Return the known part of an episode's last observation: "all", "positions" or "lost"."""
        if not self._compute_final:
            return "lost"
        return "all" if self._from_observation() else "positions"

    def _control_hz(self) -> float:
        return round(1.0 / float(self._env.step_dt), 6)

    # --- success --------------------------------------------------------------------------------

    def _check_success(self) -> None:
        """Raise ValueError unless the environment reports success."""
        term, manager = self._options["success_term"], _manager(self._env)
        if term == NO_SUCCESS or (manager and term in manager.active_terms):
            return
        # The keys of extras are known only after a step.
        zero = np.zeros((self._count, len(self._actions.low)), np.float32)
        extras = self._actions.step(zero)[4]
        if term not in extras:
            ends = " and the terms %s" % ", ".join(manager.active_terms) if manager else ""
            raise ValueError(
                "success_term: got %r, expected a termination term or a key of extras: there are "
                "the keys %s%s; give success_term, or %r where nothing says so"
                % (term, ", ".join(sorted(extras)) or "(none)", ends, NO_SUCCESS)
            )
        self._env.reset(seed=0)

    def _success(self, extras: Dict[str, Any]) -> np.ndarray:
        """Return the rows solved in this step; terms keep their value over a reset."""
        term, manager = self._options["success_term"], _manager(self._env)
        if term != NO_SUCCESS and manager and term in manager.active_terms:
            return _copy(manager.get_term(term)) > 0
        if term != NO_SUCCESS and term in extras:
            return np.broadcast_to(_copy(extras[term]) > 0, (self._count,))
        return np.zeros(self._count, bool)


class _Actions:
    """Limits of actions, and the step of the environment."""

    def __init__(self, env: Any, options: Dict[str, Any]) -> None:
        space = env.single_action_space
        if len(getattr(space, "shape", None) or ()) != 1 or not hasattr(space, "low"):
            raise ValueError(
                "%s: its actions are %s, expected a Box of one axis" % (options["task"], space)
            )
        finite = np.isfinite(space.low) & np.isfinite(space.high)
        self.low = np.where(finite, space.low, options["low"]).astype(np.float64)
        self.high = np.where(finite, space.high, options["high"]).astype(np.float64)
        self._env = env
        # The torch of this interpreter; the project does not depend on it.
        self._torch = importlib.import_module("torch")

    def step(self, actions: np.ndarray) -> Any:
        """Apply actions f32 [e, u], within the limits, for one control step."""
        clipped = np.clip(actions, self.low, self.high).astype(np.float32)
        return self._env.step(self._torch.from_numpy(clipped).to(self._env.device))


def _make(options: Dict[str, Any]) -> Any:
    """Return the environment, and whether it computes final observations."""
    if options["path"] and options["path"] not in sys.path:
        sys.path.insert(0, options["path"])
    module, _, task = options["task"].rpartition(":")
    try:
        gymnasium = importlib.import_module("gymnasium")
        importlib.import_module(module or "isaaclab_tasks")
        utils = importlib.import_module("isaaclab_tasks.utils")
    except ImportError as error:
        raise ValueError("%s: cannot be imported: %s" % (options["task"], error)) from error
    try:
        cfg = utils.parse_env_cfg(task, device=options["device"], num_envs=options["num_envs"])
    except gymnasium.error.Error as error:
        raise ValueError("%s: Isaac Lab does not have it: %s" % (options["task"], error)) from error
    if hasattr(cfg, "num_rerenders_on_reset"):
        cfg.num_rerenders_on_reset = max(cfg.num_rerenders_on_reset, RERENDERS)
    elif hasattr(cfg, "rerender_on_reset"):  # before 2.3.1
        cfg.rerender_on_reset = True
    computes = hasattr(cfg, "compute_final_obs")
    if computes:
        cfg.compute_final_obs = True
    if cfg.seed is None:
        cfg.seed = 0
    return gymnasium.make(task, cfg=cfg).unwrapped, computes


def _manager(env: Any) -> Any:
    """Return what holds the terms that end an episode; None in a `DirectRLEnv`."""
    return getattr(env, "termination_manager", None)


def _leaves(seen: Any, path: str = "") -> Dict[str, Any]:
    """Return "group" or "group/term" -> tensor."""
    if not hasattr(seen, "items"):
        return {path: seen}
    leaves: Dict[str, Any] = {}
    for name, inner in seen.items():
        leaves.update(_leaves(inner, path + "/" + name if path else name))
    return leaves


def _named(names: Any, wanted: str) -> str:
    """Return the path that is called so, in full or by its last part; "" if there is none."""
    for path in names:
        if wanted in (path, path.rsplit("/", 1)[-1]):
            return str(path)
    return ""


def _views(env: Any, leaves: Dict[str, Any], options: Dict[str, Any]) -> Any:
    """Return (name, path) of each image; the path is "" for a camera of the scene."""
    terms = [path for path, value in leaves.items() if _is_image(value)]
    sensors = [
        name for name, sensor in env.scene.sensors.items()
        if "rgb" in (getattr(sensor.data, "output", None) or ())
    ]  # fmt: skip
    wanted = options["cameras"] or [path.rsplit("/", 1)[-1] for path in terms] or sensors
    names = ", ".join(terms + sensors) or "(none)"
    if not wanted:
        raise ValueError(
            "%s: neither its observations nor its scene have images: terms of uint8 (normalize="
            "False), or cameras with rgb" % options["task"]
        )
    for name in wanted:
        if not _named(terms, name) and name not in sensors:
            raise ValueError("cameras: got %r, expected some of %s" % (name, names))
    return [(name, _named(terms, name)) for name in wanted]


def _is_image(value: Any) -> bool:
    """Return whether a term is of images as they are: normalised ones cannot be undone."""
    held = getattr(value, "torch", value)
    return held.ndim == 4 and held.shape[3] in (3, 4) and str(held.dtype) == "torch.uint8"


def _proprio(leaves: Dict[str, Any], wanted: str) -> str:
    """Return the path of the arm's state: `wanted`, or a guess; "" if there is none."""
    vectors = [path for path, value in leaves.items() if getattr(value, "torch", value).ndim == 2]
    if wanted:
        if not _named(vectors, wanted):
            raise ValueError(
                "proprio: got %r, expected one of %s" % (wanted, ", ".join(vectors) or "(none)")
            )
        return _named(vectors, wanted)
    ours = [path for path in vectors if path.split("/", 1)[0] == "policy"]
    for name in PROPRIO:
        if _named(ours, name):
            return _named(ours, name)
    return ours[0] if ours else ""


def _copy(data: Any) -> np.ndarray:
    """Return a copy of data of either release: a tensor, or an array with `.torch`."""
    held = getattr(data, "torch", data)
    return np.array(held.cpu().numpy() if hasattr(held, "cpu") else held)
