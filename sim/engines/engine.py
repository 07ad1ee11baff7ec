"""The interface of a physics engine that runs many copies of one scene; it holds none.

`batch.py` turns an engine into a `VecEnv`: tasks, episodes and rules are its business, and an
engine knows nothing of them. Everything crosses here in the layout of the scene's compiled
MuJoCo model, whatever the engine's own: joints in the order of `qpos`, bodies, geoms and sites by
their ids, quaternions wxyz, world frame, SI units.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float64, Int32, Int64

from vla.contracts.types import Array

VARIED = (
    "geom_rgba", "body_pos", "body_quat", "cam_pos", "cam_quat", "light_dir", "light_diffuse",
    "geom_friction", "body_mass", "body_inertia", "body_subtreemass", "body_invweight0",
    "dof_invweight0",
)  # fmt: skip
"""Fields of a model that tasks and randomisation write: what may differ between worlds."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where n worlds stand: all that physics goes on from."""

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


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Where everything of E worlds is, as forward kinematics gives it."""

    xpos: Float64[Array, "e nbody 3"]
    """Positions of bodies."""
    xmat: Float64[Array, "e nbody 9"]
    """Orientations of bodies, rows of the rotation matrix."""
    geom_xpos: Float64[Array, "e ngeom 3"]
    """Positions of geoms."""
    site_xpos: Float64[Array, "e nsite 3"]
    """Positions of sites."""
    site_xmat: Float64[Array, "e nsite 9"]
    """Orientations of sites."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an engine says of all its worlds after a step or a write."""

    qpos: Float64[Array, "e nq"]
    """Joint positions."""
    qvel: Float64[Array, "e nv"]
    """Joint velocities."""
    geometry: Geometry | None = None
    """None if the engine leaves kinematics to its caller."""
    contacts: Int32[Array, "c 3"] | None = None
    """World, geom and geom of every pair that touches; None if left to the caller."""


@runtime_checkable
class Engine(Protocol):
    """E worlds of one scene, stepped together; nobody but its caller writes to it."""

    num_worlds: int
    """E."""
    varies: frozenset[str]
    """Which of `VARIED` it honours; what it does not is the same in all its worlds."""

    def write(self, rows: Int64[Array, " n"], state: State, varied: dict[str, Array]) -> None:
        """Put some worlds, each once, where `state` says, with fields of the model of their own.

        Args:
            rows: Which.
            state: One row for each.
            varied: Name in `VARIED` -> values, n rows of the model's own shape; those left out
                stay as they are.
        """
        ...

    def step(self, ctrl: Float64[Array, "e nu"], substeps: int, active: Bool[Array, " e"]) -> None:
        """Hold position targets for some steps of physics; worlds not active stand still."""
        ...

    def read(self) -> Reading:
        """Return where all worlds stand; the arrays are valid until the next call."""
        ...

    def faults(self) -> Bool[Array, " e"]:
        """Return which worlds went wrong since they were written last: NaN, or room for contacts
        ran out. They stay so until they are written again.
        """
        ...

    def render(self, rows: Int64[Array, " n"]) -> Array:
        """Return pictures of some worlds as they stand, u8 [n, v, h, w, 3].

        A numpy array, or a tensor on the engine's own device; the caller's to keep.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; twice does no harm."""
        ...
