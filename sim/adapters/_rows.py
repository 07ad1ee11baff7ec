"""Makes an adapter from a class for one environment: rows, episodes, resets, time limits, expert.

An adapter file defines a class `World` and ends with

    def open_adapter(options):
        return _rows.Rows(World, options)

`World(options)` gets the options of its suite and `randomize`. It has

    instructions        every instruction of an episode, a list of strings
    max_episode_steps   control steps after which an episode is truncated
    image_shape         (views, height, width, 3)
    channels            names of the u channels of an action
    low, high           limits of an action, u numbers each
    control_hz          actions a second of the simulator's time
    cameras             names of the views
    has_expert          whether `expert` exists
    time_limit          optional: the same as max_episode_steps for this one episode, or less;
                        read after every step

    reset(seed, index)  begin episode `index` of a seed and return its instruction; all its
                        randomness follows from these two
    step(action)        apply one action, float32 of shape (u,), within the limits, for one control
                        step; return whether an irrevocable mistake was made
    success()           whether the task is solved; ends the episode
    progress()          progress in [0, 1]
    observe()           return images, uint8 of image_shape, and positions, float32 of shape (u,)
    expert()            return the action that solves the task from here, float32 of shape (u,)
    close()
    privileged_state_names      optional: names of p numbers that tell more of the state than images
    privileged_state()          return them, p numbers; asked for in training alone
    referents()                 optional: where in the images what the instruction names is, as in
                                `vla.contracts.referents`, of shape (views, kinds, 2); likewise

Row i of E runs episodes i, i + E, i + 2E and so on, as in `sim.vector.env_slice`. Commands: `reset`
{seed}, `begin` {rows, seed, index}, `step` {length}, and `privileged_state` {} and `referents` {},
which fill the array of this name; rows count from the first of this worker.
The array `actions` holds the commanded actions and, after a step, the executed ones.
"""

import numpy as np

LONGEST_CHUNK = 256
"""Largest number of actions of one step."""


def episode_seed(seed, index):
    """Return a number below 2^31 for episode `index` of a seed, to seed a simulator with."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0] >> 1)


def layout(count, image_shape, channels):
    """Return the layout of the arrays of some rows; "final_" is valid in rows that ended."""
    seen = {
        "images": ((count, *image_shape), "uint8"),
        "proprio": ((count, channels), "float32"),
        "instruction": ((count,), "int32"),
        "time_s": ((count,), "float64"),
    }
    kinds = {
        "reward": "float32", "terminated": "bool", "truncated": "bool", "success": "bool",
        "progress": "float32", "steps": "int32", "episode": "int64", "use_expert": "bool",
        "frozen": "bool",
    }  # fmt: skip
    return {
        **seen,
        **{"final_" + name: field for name, field in seen.items()},
        **{name: ((count,), kind) for name, kind in kinds.items()},
        "actions": ((count, LONGEST_CHUNK, channels), "float32"),
    }


def _privileged_names(world):
    return list(getattr(world, "privileged_state_names", ()))


class Rows:
    """The rows of one worker: the options `rows` [first, last + 1] among all `num_envs`."""

    def __init__(self, world_class, options):
        self._first, stop = options["rows"]
        self._num_envs = options["num_envs"]
        self._worlds = [world_class(options) for _ in range(stop - self._first)]
        if not self._worlds:
            raise ValueError("rows: got none, expected at least 1")
        world = self._worlds[0]
        self._low = np.array(world.low, np.float32)
        self._high = np.array(world.high, np.float32)
        self._instruction_ids = {text: i for i, text in enumerate(world.instructions)}
        count = len(self._worlds)
        self._seed = [0] * count
        self._index = [-1] * count
        self._steps = [0] * count
        self._instruction = [0] * count
        self._arrays = {}

    def fields(self):
        """Return the layout of the shared arrays."""
        world = self._worlds[0]
        count, names = len(self._worlds), _privileged_names(world)
        fields = layout(count, world.image_shape, len(world.channels))
        if names:
            fields["privileged_state"] = ((count, len(names)), "float32")
        if hasattr(world, "referents"):
            fields["referents"] = ((count, world.image_shape[0], 2, 2), "float32")
        return fields

    def announce(self):
        """Return the description of the environments."""
        world = self._worlds[0]
        return {
            "instructions": list(world.instructions),
            "max_episode_steps": int(world.max_episode_steps),
            "image_shape": [int(n) for n in world.image_shape],
            "channels": list(world.channels),
            "low": [float(x) for x in world.low],
            "high": [float(x) for x in world.high],
            "control_hz": float(world.control_hz),
            "cameras": list(world.cameras),
            "has_expert": bool(world.has_expert),
            "privileged_state_names": _privileged_names(world),
            "has_referents": hasattr(world, "referents"),
        }

    def bind(self, arrays):
        """Take the arrays of `fields`."""
        self._arrays = arrays

    def call(self, command, arguments):
        """Run a command of the module's docstring; results are in the arrays."""
        if command == "reset":
            seed, count = arguments["seed"], len(self._worlds)
            for row in range(count):
                self._begin(row, seed, self._first + row)
            self._observe("", range(count))
        elif command == "begin":
            for row, seed, index in zip(arguments["rows"], arguments["seed"], arguments["index"]):
                self._begin(row, seed, index)
            self._observe("", arguments["rows"])
        elif command == "step":
            self._step(arguments["length"])
        elif command in ("privileged_state", "referents"):
            for row, world in enumerate(self._worlds):
                if self._index[row] >= 0:  # it has begun
                    self._arrays[command][row] = getattr(world, command)()
        else:
            raise ValueError(
                "command: got %r, expected reset, begin, step, privileged_state or referents"
                % (command,)
            )

    def close(self):
        """Close all environments."""
        for world in self._worlds:
            world.close()
        self._worlds = []

    def _begin(self, row, seed, index):
        self._seed[row], self._index[row], self._steps[row] = seed, index, 0
        instruction = self._worlds[row].reset(seed, index)
        if instruction not in self._instruction_ids:
            raise ValueError(
                "instruction: got %r, expected one of %s"
                % (instruction, ", ".join(self._instruction_ids))
            )
        self._instruction[row] = self._instruction_ids[instruction]

    def _step(self, length):
        ended, moved = [], []
        for row in range(len(self._worlds)):
            if self._arrays["frozen"][row]:
                for name in ("reward", "steps", "terminated", "truncated"):
                    self._arrays[name][row] = 0
                continue
            moved.append(row)
            if self._run_row(row, length):
                ended.append(row)
        self._observe("final_", ended)
        for row in ended:
            self._begin(row, self._seed[row], self._index[row] + self._num_envs)
        self._observe("", moved)

    def _run_row(self, row, length):
        """Apply up to `length` actions in one row; return whether its episode ended."""
        arrays, world = self._arrays, self._worlds[row]
        actions, use_expert = arrays["actions"][row], bool(arrays["use_expert"][row])
        steps, success, terminated, truncated = 0, False, False, False
        while steps < length and not (terminated or truncated):
            if use_expert:
                actions[steps] = world.expert()
            failed = world.step(np.clip(actions[steps], self._low, self._high))
            steps += 1
            self._steps[row] += 1
            success = bool(world.success())
            terminated = success or bool(failed)
            limit = getattr(world, "time_limit", world.max_episode_steps)
            truncated = not terminated and self._steps[row] >= limit
        arrays["reward"][row] = success
        arrays["terminated"][row] = terminated
        arrays["truncated"][row] = truncated
        arrays["success"][row] = success
        arrays["progress"][row] = min(max(float(world.progress()), 0.0), 1.0)
        arrays["steps"][row] = steps
        arrays["episode"][row] = self._index[row]
        return terminated or truncated

    def _observe(self, prefix, rows):
        arrays = self._arrays
        for row in rows:
            world = self._worlds[row]
            images, proprio = world.observe()
            arrays[prefix + "images"][row] = images
            arrays[prefix + "proprio"][row] = proprio
            arrays[prefix + "instruction"][row] = self._instruction[row]
            arrays[prefix + "time_s"][row] = self._steps[row] / world.control_hz
