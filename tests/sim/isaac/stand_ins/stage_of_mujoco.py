"""Worlds of an arm and simple shapes on plain MuJoCo: the physics of the stand-ins."""

import mujoco
import numpy as np

SHAPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
}


class Stage:
    """Compiled once from what was asked for; `count` copies of it."""

    def __init__(self, timestep_s: float, gravity: tuple[float, ...]) -> None:
        self.timestep_s, self.gravity = timestep_s, gravity
        self.arm_file = ""
        self.arm_weightless = False
        self.drives: dict[str, dict[str, float]] = {}
        self.arm_bits = 0
        self.arm_friction: float | None = None
        self.shapes: list[dict] = []
        self.cameras: list[dict] = []
        self.data: list[mujoco.MjData] = []

    def joint_names(self, file: str) -> list[str]:
        model = mujoco.MjModel.from_xml_path(file)
        return [model.joint(i).name for i in range(model.njnt)]

    def body_names(self, file: str) -> list[str]:
        model = mujoco.MjModel.from_xml_path(file)
        return [model.body(i).name for i in range(1, model.nbody)]

    def compile(self, count: int) -> None:
        spec = mujoco.MjSpec.from_file(self.arm_file)
        spec.option.timestep = self.timestep_s
        spec.option.gravity = self.gravity
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        spec.visual.quality.shadowsize = 0
        spec.visual.quality.offsamples = 0
        spec.visual.map.znear = 0.01
        spec.stat.extent = 1.0
        arm = [body for body in spec.bodies if body.name != "world"]
        for body in arm:
            body.gravcomp = float(self.arm_weightless)
            for geom in body.geoms:
                geom.contype = geom.conaffinity = 1
                if self.arm_friction is not None:
                    geom.friction[0] = self.arm_friction
        for joint in spec.joints:
            drive = self.drives[joint.name]
            # A drive damps, and the importer's own damping is replaced by it.
            joint.damping[:], joint.armature = 0.0, drive["armature"]
            actuator = spec.add_actuator(
                name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT
            )
            actuator.set_to_position(kp=drive["stiffness"], kv=drive["damping"])
            if drive["force"] > 0.0:
                actuator.forcerange, actuator.forcelimited = (-drive["force"], drive["force"]), True
        self._add_shapes(spec, [body.name for body in arm])
        for i, camera in enumerate(self.cameras):
            body = spec.body(camera["body"]) if camera["body"] else spec.worldbody
            body.add_camera(
                name=f"camera{i}", pos=camera["pos"], quat=camera["quat"], fovy=camera["fovy"]
            )
        spec.worldbody.add_light(
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=(0, 0, 2), dir=(-0.2, -0.3, -1),
            castshadow=False,
        )  # fmt: skip
        self.model = spec.compile()
        self.data = [mujoco.MjData(self.model) for _ in range(count)]
        self.rgba = [self.model.geom_rgba.copy() for _ in range(count)]
        self.renderer: mujoco.Renderer | None = None

    def _add_shapes(self, spec: mujoco.MjSpec, arm: list[str]) -> None:
        kept_apart = [(self.arm_bits, arm)]
        for shape in self.shapes:
            body = spec.worldbody.add_body(
                name=shape["name"], pos=shape["pos"], quat=shape["quat"],
                gravcomp=float(shape["weightless"]),
            )  # fmt: skip
            if not shape["fixed"]:
                body.add_freejoint(name=shape["name"])
            body.add_geom(
                name=shape["name"], type=SHAPES[shape["shape"]], size=shape["size"],
                mass=shape["mass"], rgba=(*shape["rgb"], 1.0), condim=4,
                friction=(shape["friction"], 0.02, 0.001),
            )  # fmt: skip
            kept_apart.append((shape["bits"], [shape["name"]]))
        for i, (bits, names) in enumerate(kept_apart):
            for k, (other_bits, other_names) in enumerate(kept_apart[i:], i):
                if not bits & other_bits:
                    continue
                for a in names:
                    for b in other_names:
                        if a < b or i != k:
                            spec.add_exclude(bodyname1=a, bodyname2=b)

    def step(self) -> None:
        for data in self.data:
            mujoco.mj_step(self.model, data)

    def joint(self, world: int, name: str) -> tuple[float, float]:
        joint = self.model.joint(name)
        return (
            self.data[world].qpos[joint.qposadr[0]],
            self.data[world].qvel[joint.dofadr[0]],
        )

    def set_joint(self, world: int, name: str, position: float, velocity: float) -> None:
        joint = self.model.joint(name)
        self.data[world].qpos[joint.qposadr[0]] = position
        self.data[world].qvel[joint.dofadr[0]] = velocity

    def target(self, world: int, name: str, position: float) -> None:
        self.data[world].ctrl[self.model.actuator(name).id] = position

    def root(self, world: int, name: str) -> np.ndarray:
        """Return position, quaternion wxyz, velocity and angular velocity in the world's frame."""
        body = self.model.body(name)
        data = self.data[world]
        mujoco.mj_kinematics(self.model, data)
        if not body.jntnum[0] or body.dofnum[0] != 6:
            return np.concatenate([data.xpos[body.id], data.xquat[body.id], np.zeros(6)])
        dof = body.dofadr[0]
        spin = data.xmat[body.id].reshape(3, 3) @ data.qvel[dof + 3 : dof + 6]
        return np.concatenate(
            [data.xpos[body.id], data.xquat[body.id], data.qvel[dof : dof + 3], spin]
        )

    def set_root(self, world: int, name: str, root: np.ndarray) -> None:
        """Take what `root` gives."""
        body, data = self.model.body(name), self.data[world]
        at, dof = self.model.jnt_qposadr[body.jntadr[0]], body.dofadr[0]
        data.qpos[at : at + 7] = root[:7]
        turned = np.empty(9)
        mujoco.mju_quat2Mat(turned, np.asarray(root[3:7], np.float64))
        data.qvel[dof : dof + 3] = root[7:10]
        data.qvel[dof + 3 : dof + 6] = turned.reshape(3, 3).T @ root[10:]

    def paint(self, world: int, name: str, rgb: tuple[float, ...]) -> None:
        self.rgba[world][self.model.geom(name).id, :3] = rgb

    def picture(self, world: int, camera: int, height: int, width: int) -> np.ndarray:
        if self.renderer is None:
            self.renderer = mujoco.Renderer(self.model, height, width)
        self.model.geom_rgba[:] = self.rgba[world]
        mujoco.mj_forward(self.model, self.data[world])
        self.renderer.update_scene(self.data[world], f"camera{camera}")
        return self.renderer.render()
