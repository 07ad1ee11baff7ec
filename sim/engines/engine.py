"""The interface of a physics engine that runs many copies of one scene.

`batch.py` turns an engine into a `VecEnv` with tasks, episodes and rules. All arrays here have the
layout of the scene's compiled MuJoCo model: joints in the order of `qpos`, bodies, geoms and sites
by their ids, quaternions wxyz, world frame, SI units.
"""

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float64, Int32, Int64

from vla.contracts.types import Array

VARIED = (
    "geom_rgba", "body_pos", "body_quat", "cam_pos", "cam_quat", "light_dir", "light_diffuse",
    "geom_friction", "body_mass", "body_inertia", "body_subtreemass", "body_invweight0",
    "dof_invweight0",
)  # fmt: skip
"""Fields of a model that tasks and randomization write: they may differ between worlds."""


@dataclass(frozen=True, kw_only=True)
class State:
    """State of n worlds: the input of a step of physics."""

    qpos: Float64[Array, "n nq"]
    """Joint positions."""
    qvel: Float64[Array, "n nv"]
    """Joint velocities."""
    ctrl: Float64[Array, "n nu"]
    """Position targets of the actuators."""
    mocap_pos: Float64[Array, "n m 3"]
    """Positions of bodies that tasks move by hand."""
    mocap_quat: Float64[Array, "n m 4"]
    """Their orientations."""


STATE = tuple(field.name for field in fields(State))


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Positions in E worlds from forward kinematics."""

    xpos: Float64[Array, "e nbody 3"]
    """Positions of bodies."""
    geom_xpos: Float64[Array, "e ngeom 3"]
    """Positions of geoms."""
    site_xpos: Float64[Array, "e nsite 3"]
    """Positions of sites."""


GEOMETRY = tuple(field.name for field in fields(Geometry))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Result of an engine for all its worlds after a step or a write."""

    qpos: Float64[Array, "e nq"]
    """Joint positions."""
    qvel: Float64[Array, "e nv"]
    """Joint velocities."""
    geometry: Geometry | None = None
    """None if the caller has to compute kinematics."""
    contacts: Int32[Array, "c 3"] | None = None
    """World, geom and geom of every touching pair; None if the caller has to compute them."""


@runtime_checkable
class Engine(Protocol):
    """E worlds of one scene, stepped together."""

    num_worlds: int
    """E."""
    varies: frozenset[str]
    """Supported fields of `VARIED`; the others are equal in all worlds."""

    def write(self, rows: Int64[Array, " n"], state: State, varied: dict[str, Array]) -> None:
        """Set the state of some worlds, each once, and their fields of the model.

        Args:
            rows: Indices of the worlds.
            state: One row for each.
            varied: Name in `VARIED` -> values, n rows of the model's own shape; those left out
                stay as they are.
        """

    def step(self, ctrl: Float64[Array, "e nu"], substeps: int, active: Bool[Array, " e"]) -> None:
        """Hold position targets for some steps of physics; worlds not active stand still."""

    def read(self) -> Reading:
        """Return the state of all worlds; the arrays are valid until the next call."""

    def faults(self) -> Bool[Array, " e"]:
        """Return the worlds that failed since their last write: NaN, or too many contacts."""

    def render(self, rows: Int64[Array, " n"]) -> Array:
        """Return images of some worlds, u8 [n, v, h, w, 3].

        A numpy array, or a tensor on the engine's device; the caller owns it.
        """

    def close(self) -> None:
        """Free its resources; calling it twice does no harm."""
