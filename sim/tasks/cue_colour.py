"""T1 cue_colour: a lamp shows a colour, goes out, and later the button of that colour is pressed.

Without memory no policy is right more often than 1/K: from go on, everything observed is drawn
independently of the cue (see `sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.expert import Motion
from sim.scene import robot_geoms
from sim.task import World
from sim.tasks import _lock
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec

INSTRUCTIONS = (
    "press the button that has the colour the lamp showed",
    "touch the button in the same colour as the light you saw",
    "remember the lamp's colour, then push the matching button",
    "push the button whose colour the lamp had before it went out",
    "hit the button that matches the signal",
    "which colour did the light have? press that button",
)
BUTTON_RADIUS_M = 0.03
BUTTON_HALF_HEIGHT_M = 0.012
SPACING_M = 0.085
JITTER_M = 0.006
HIDDEN_Z_M = -1.0
LAMP_SIZE_M = 0.045


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Delay, distractors and number of choices."""

    choices: int = 4
    """Number K of colours and buttons, 2 to 8; 1/K is the ceiling without memory."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps; 0 0 leaves the cue visible."""
    cue_steps: int = 16
    """Control steps for which the lamp shows its colour, at least 16."""
    distractors: int = 0
    """Events before go in which a small side lamp shows colours that mean nothing."""
    distractor_steps: int = 24
    """Control steps of one distractor event at most."""
    decision_steps: int = 8
    """Control steps per decision of the policy; the arm is let go at a decision."""
    act_steps: int = 40
    """Control steps from go to the time limit."""

    def build(self, robot: RobotSpec) -> "CueColour":
        """Return the task for a robot.

        Raises:
            ValueError: a field is out of range.
        """
        if not 2 <= self.choices <= len(_lock.PALETTE):
            raise ValueError(f"choices: got {self.choices}, expected 2 to {len(_lock.PALETTE)}")
        _lock.check_timing(self.cue_steps, self.delay_steps, self.decision_steps, self.distractors)
        return CueColour(self, robot)


@dataclasses.dataclass
class Episode:
    """What happens in one episode."""

    cue: int
    """Index of the lamp's colour."""
    schedule: _lock.Schedule
    """When cue, distractors and go come."""
    buttons_m: np.ndarray
    """Where each colour's button will stand at go, shape (K, 3)."""
    touched: tuple[int, ...] = ()
    """Colours of the buttons touched first; a single one in practice."""
    start_distance_m: float = 1.0
    """Distance of the tool from the right button at go."""


class CueColour:
    """Satisfies `sim.task.Task`."""

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        """Build for a robot; `Config.build` has checked the configuration."""
        self.config = config
        self.robot = robot
        self.instructions = INSTRUCTIONS
        self.max_episode_steps = config.act_steps + _lock.longest_go(
            config.cue_steps, config.delay_steps, config.decision_steps
        )
        self._palette = _lock.palette_array(config.choices)

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add lamp, side lamp and buttons; buttons wait under the floor."""
        x_m = self.robot.reach_m[0]
        _add_lamp(scene, "lamp", (x_m - 0.10, 0.18, LAMP_SIZE_M), LAMP_SIZE_M)
        _add_lamp(scene, "side_lamp", (x_m - 0.10, -0.18, 0.022), 0.022)
        for k, rgb in enumerate(self._palette):
            body = scene.worldbody.add_body(
                name=f"button{k}", mocap=True, pos=(0.2, 0.0, HIDDEN_Z_M)
            )
            body.add_geom(
                name=f"button{k}",
                type=mujoco.mjtGeom.mjGEOM_CYLINDER,
                size=(BUTTON_RADIUS_M, BUTTON_HALF_HEIGHT_M, 0),
                rgba=(*rgb, 1.0),
            )

    def reset(self, world: World) -> None:
        """Draw cue, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        cue = int(rng.integers(config.choices))
        schedule = _lock.draw_schedule(
            rng,
            cue_steps=config.cue_steps,
            delay_steps=config.delay_steps,
            decision_steps=config.decision_steps,
            distractors=config.distractors,
            distractor_steps=config.distractor_steps,
            colours=config.choices,
        )
        world.episode = Episode(cue, schedule, self._layout(rng))
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        world.time_limit = schedule.go + config.act_steps
        self._light(world)

    def control(self, world: World, action: np.ndarray) -> np.ndarray:
        """Hold the arm at home until go."""
        if world.steps < world.episode.schedule.go:
            return np.array(self.robot.home)
        return action

    def advance(self, world: World) -> None:
        """Keep the lock, light the lamps, show the buttons at go, then watch for a touch."""
        episode = world.episode
        if world.steps < episode.schedule.go:
            _lock.hold_(world)
        elif world.steps == episode.schedule.go:
            self._go(world)
        elif not episode.touched:
            episode.touched = self._touched(world)
        if world.steps <= episode.schedule.go:
            self._light(world)
            mujoco.mj_kinematics(world.model, world.data)

    def success(self, world: World) -> bool:
        """True if the first button touched has the cue's colour."""
        return world.episode.touched == (world.episode.cue,)

    def failure(self, world: World) -> bool:
        """True if any other button was touched first, or with it."""
        return bool(world.episode.touched) and not self.success(world)

    def progress(self, world: World) -> float:
        """0 until go, then the share of the way to the right button, below 0.95 until success."""
        episode = world.episode
        if self.success(world):
            return 1.0
        if world.steps < episode.schedule.go or self.failure(world):
            return 0.0
        share = 1.0 - self._distance_m(world) / episode.start_distance_m
        return 0.95 * min(max(share, 0.0), 1.0)

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go, then press the right button ("wrong_object": another one)."""
        episode = world.episode
        home = np.array(self.robot.home)
        while world.steps < episode.schedule.go:
            yield home
        target = (episode.cue + (variant == "wrong_object")) % self.config.choices
        yield from Motion(world).press(tuple(episode.buttons_m[target]))

    def _layout(self, rng: np.random.Generator) -> np.ndarray:
        """Draw where each button stands: a random order over an arc around the base."""
        near, far = self.robot.reach_m
        radius = near + 0.65 * (far - near)
        count = self.config.choices
        slots = (np.arange(count) - (count - 1) / 2) * SPACING_M / radius
        angle = slots[rng.permutation(count)]
        spot = radius * np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
        spot[:, 2] = BUTTON_HALF_HEIGHT_M
        spot[:, :2] += rng.uniform(-JITTER_M, JITTER_M, size=(count, 2))
        return spot

    def _go(self, world: World) -> None:
        """Set everything to a state in which only the layout differs between episodes."""
        world.go_home_()
        for k, spot in enumerate(world.episode.buttons_m):
            body = world.model.body(f"button{k}").id
            world.data.mocap_pos[world.model.body_mocapid[body]] = spot
        mujoco.mj_forward(world.model, world.data)
        world.episode.start_distance_m = self._distance_m(world)

    def _light(self, world: World) -> None:
        episode, step = world.episode, world.steps
        schedule = episode.schedule
        lit = schedule.cue_start <= step < schedule.cue_end
        rgb = self._palette[episode.cue] if lit else np.array(_lock.OFF_RGB)
        _set_rgb(world, "lamp", rgb)
        if step >= schedule.go:
            _set_rgb(world, "side_lamp", np.array(_lock.OFF_RGB))
        else:
            _set_rgb(world, "side_lamp", _lock.flash_rgb(schedule, step, self._palette))

    def _touched(self, world: World) -> tuple[int, ...]:
        """Return the colours of the buttons that the arm touches now."""
        model, data = world.model, world.data
        first = model.geom("button0").id
        count = self.config.choices
        touched = set()
        if data.ncon:
            arm = robot_geoms(model)
            for a, b in data.contact.geom:
                for button, other in ((a - first, b), (b - first, a)):
                    if 0 <= button < count and arm[other]:
                        touched.add(int(button))
        offset = data.site_xpos[world.tool_site] - world.episode.buttons_m
        inside = (np.linalg.norm(offset[:, :2], axis=1) < BUTTON_RADIUS_M) & (
            np.abs(offset[:, 2]) < BUTTON_HALF_HEIGHT_M
        )
        return tuple(sorted(touched | set(np.flatnonzero(inside).tolist())))

    def _distance_m(self, world: World) -> float:
        episode = world.episode
        top = episode.buttons_m[episode.cue] + (0.0, 0.0, BUTTON_HALF_HEIGHT_M)
        return float(np.linalg.norm(world.data.site_xpos[world.tool_site] - top))


def _add_lamp(
    scene: mujoco.MjSpec, name: str, pos_m: tuple[float, float, float], size_m: float
) -> None:
    scene.worldbody.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=pos_m,
        size=(size_m, size_m, size_m),
        rgba=(*_lock.OFF_RGB, 1.0),
        contype=0,
        conaffinity=0,
    )


def _set_rgb(world: World, geom: str, rgb: np.ndarray) -> None:
    world.model.geom_rgba[world.model.geom(geom).id, :3] = rgb
