"""The stand-ins refuse what the real packages refuse, and have nothing that was not recorded."""

import ast
import json
from pathlib import Path

import pytest

from tests.sim.isaac import stand

HERE = Path(__file__).parent
ADAPTERS = HERE.parents[2] / "sim" / "adapters"

SET_UP = """
from isaacgym import gymapi, gymtorch
import torch
gym = gymapi.acquire_gym()
params = gymapi.SimParams()
params.up_axis, params.gravity = gymapi.UP_AXIS_Z, gymapi.Vec3(0, 0, -9.81)
sim = gym.create_sim(0, 0, gymapi.SIM_PHYSX, params)
options = gymapi.AssetOptions()
options.fix_base_link = True
arm = gym.load_asset(sim, {folder!r}, "arm.xml", options)
box = gym.create_box(sim, 0.1, 0.1, 0.1, gymapi.AssetOptions())
env = gym.create_env(sim, gymapi.Vec3(), gymapi.Vec3(), 1)
props = gym.get_asset_dof_properties(arm)
a = gym.create_actor(env, arm, gymapi.Transform(), "arm", 0, 1, 0)
gym.set_actor_dof_properties(env, a, props)
gym.create_actor(env, box, gymapi.Transform(), "box", 0, 2, 0)
"""
READY = """
gym.prepare_sim(sim)
root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(sim))
gym.refresh_actor_root_state_tensor(sim)
def put(ids):
    gym.set_actor_root_state_tensor_indexed(
        sim, gymtorch.unwrap_tensor(root), gymtorch.unwrap_tensor(ids), len(ids))
one = torch.tensor([1], dtype=torch.int32)
def turned(quat):
    root[1, 3:7] = torch.tensor(quat)
    put(one)
    gym.simulate(sim)
    return [round(part, 1) + 0.0 for part in sim.stage.data[0].qpos[-4:].tolist()]
"""
ARM = (
    "<mujoco><worldbody><body name='link'><joint name='j'/><geom size='0.1'/></body></worldbody>"
    "</mujoco>"
)


INSPECT = """
import dataclasses, inspect, json
found = {}
for module in modules:
    for name, what in vars(module).items():
        if name.startswith("_") or getattr(what, "__module__", module.__name__) == "typing":
            continue
        if dataclasses.is_dataclass(what):
            found[name] = [f.name for f in dataclasses.fields(what)]
        elif inspect.isclass(what) and what.__module__ == module.__name__:
            for method, f in inspect.getmembers(what, inspect.isfunction):
                if not method.startswith("_"):
                    found[name + "." + method] = list(inspect.signature(f).parameters)[1:]
found"""

GYM = [
    (SET_UP + "gym.create_sim(0, 0, gymapi.SIM_PHYSX, params)", "a process holds one sim"),
    (SET_UP + "setattr(params, 'dtt', 1.0)", "SimParams has no attribute 'dtt'"),
    (SET_UP + "gym.acquire_dof_state_tensor(sim)", "prepare_sim comes first"),
    (SET_UP + READY + "put(torch.tensor([1]))", "got torch.int64, expected torch.int32"),
    (SET_UP + READY + "put(torch.tensor([1, 1], dtype=torch.int32))", "one comes twice"),
    (SET_UP + READY + "put(one)\nput(one)", "written twice before simulate"),
    (SET_UP + READY + "gym.render_all_camera_sensors(sim)", "step_graphics comes first"),
    (SET_UP + READY + "put(one)\ngym.step_graphics(sim)\ngym.render_all_camera_sensors(sim)",
     "only after simulate"),
    (SET_UP + READY + "turned([0.0, 0.0, 0.6, 0.8])", "[0.8, 0.0, 0.0, 0.6]"),
    (SET_UP + READY + "turned([0.8, 0.0, 0.0, 0.6])", "[0.6, 0.8, 0.0, 0.0]"),
]  # fmt: skip
LAUNCH = "from isaaclab.app import AppLauncher\nAppLauncher(headless=True, device='cpu')\n"
CONTEXT = (
    LAUNCH + "import isaaclab.sim as s\nimport torch\nfrom isaaclab import assets\n"
    "c = s.SimulationContext(s.SimulationCfg(dt=0.01, device='cpu', gravity=(0, 0, -9.81)))\n"
)
LAB = [
    # Torch is there already in that process.
    (2, "__import__('isaacgym.gymapi')", "PyTorch was imported before isaacgym modules"),
    (2, "__import__('isaaclab.sim')", "No module named 'omni': start the AppLauncher first"),
    (2, LAUNCH + "AppLauncher(headless=True)", "a process holds one app"),
    (2, CONTEXT + "s.SimulationContext(c.cfg)", "a process holds one"),
    (3, CONTEXT + "s.MjcfFileCfg(asset_path='x', fix_base=True)", "'fix_base'"),
    (3, CONTEXT + "s.RigidBodyPropertiesCfg()", "no attribute 'RigidBodyPropertiesCfg'"),
    (2, CONTEXT + "assets.check_ids(torch.zeros(1).int(), [0])", "expected torch.int64"),
    (3, CONTEXT + "assets.check_ids(torch.tensor([0]), [0])", "expected torch.int32"),
    (2, CONTEXT + "assets.check_ids(torch.tensor([0, 0]), [0, 0])", "one comes twice"),
    (3, CONTEXT + "assets.RigidObject.write_root_pose_to_sim", "no attribute 'write_root_pose"),
    (2, CONTEXT + "assets.RigidObject.write_root_pose_to_sim_index", "no attribute 'write_root"),
    # The same four numbers are another turn in the other release.
    (2, CONTEXT + "assets.to_wxyz([0.6, 0.0, 0.0, 0.8])", "[0.6, 0.0, 0.0, 0.8]"),
    (3, CONTEXT + "assets.to_wxyz([0.6, 0.0, 0.0, 0.8])", "[0.8, 0.6, 0.0, 0.0]"),
]  # fmt: skip


@pytest.fixture(scope="module")
def of_gym(tmp_path_factory):
    """Return what the stand-in for Isaac Gym answers to `GYM`, and its methods."""
    folder = tmp_path_factory.mktemp("gym")
    (folder / "arm.xml").write_text(ARM)
    codes = [code.replace("{folder!r}", repr(str(folder))) for code, _ in GYM]
    codes.append("from isaacgym import gymapi\nmodules = [gymapi]\n" + INSPECT)
    return stand.answers(folder, "import isaacgym.gymapi, torch", codes)


@pytest.fixture(scope="module")
def of_lab(tmp_path_factory):
    """Return release -> what the stand-in for Isaac Lab answers to `LAB`, and its methods."""
    folder, found = tmp_path_factory.mktemp("lab"), {}
    for release in (2, 3):
        codes = [code for lab, code, _ in LAB if lab == release]
        codes.append(
            CONTEXT + "from isaaclab import actuators, scene, sensors\n"
            "modules = [s, assets, actuators, scene, sensors]\n" + INSPECT
        )
        found[release] = stand.answers(folder, "import mujoco, torch", codes, release)
    return found


@pytest.mark.parametrize(("i", "said"), list(enumerate(said for _, said in GYM)))
def test_isaac_gym_refuses_wrong_use_and_reads_quaternions_as_xyzw(i, said, of_gym):
    assert said in of_gym[i]


@pytest.mark.parametrize(("i", "said"), list(enumerate(said for _, _, said in LAB)))
def test_isaac_lab_refuses_wrong_use_of_either_release(i, said, of_lab):
    release = LAB[i][0]
    assert said in of_lab[release][sum(lab == release for lab, _, _ in LAB[:i])]


# --- the record -----------------------------------------------------------------------------------


def record(name):
    symbols = json.loads((HERE / f"{name}.json").read_text())["symbols"]
    return {symbol["name"]: symbol["parameters"] for symbol in symbols}


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def uses(adapter, bases):
    """Return the attributes that an adapter takes of things with these names."""
    tree = ast.parse((ADAPTERS / f"{adapter}.py").read_text())
    return {
        (bases[dotted(node.value)], node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node.value) in bases
    }


def test_every_symbol_says_where_it_was_read():
    for file in HERE.glob("*.json"):
        content = json.loads(file.read_text())
        assert content["release"]
        assert content["read_in"]
        assert all(symbol["module"] and symbol["file"] for symbol in content["symbols"])
    assert len(list(HERE.glob("*.json"))) == 4


def test_the_host_of_isaac_gym_uses_nothing_but_what_was_recorded():
    known = record("isaac_gym")
    bases = {
        "gym": "Gym", "self._gym": "Gym", "gymapi": "", "gymtorch": "", "params": "SimParams",
        "params.physx": "PhysXParams", "shape": "RigidShapeProperties", "pose": "Transform",
    }  # fmt: skip
    found = uses("isaac_gym", bases)
    assert len(found) > 50
    for owner, name in found:
        fields = known.get(owner, [])
        assert name in fields or (f"{owner}.{name}" if owner and not fields else name) in known, (
            owner, name
        )  # fmt: skip


def test_the_host_of_isaac_lab_uses_nothing_but_what_was_recorded():
    known = set(record("isaac_lab_2")) | set(record("isaac_lab_3"))
    bases = {
        "sim_utils": "", "self._sim_utils": "", "utils": "", "assets": "", "actuators": "",
        "scene": "", "sensors": "", "self._sim": "SimulationContext.",
        "self._scene": "InteractiveScene.", "asset": "*", "self._arm_asset": "*", "data": "*",
        "camera": "*", "camera.data": "*", "self._arm_asset.data": "*",
    }  # fmt: skip
    found = uses("isaac_lab", bases)
    assert len(found) > 40
    last = {name.rsplit(".", 1)[-1] for name in known}
    for owner, name in found:
        assert (name in last) if owner == "*" else (owner + name in known), (owner, name)


def test_the_methods_of_the_gym_that_stands_in_take_what_was_recorded(of_gym):
    found, known = json.loads(of_gym[-1]), record("isaac_gym")
    methods = {name: taken for name, taken in found.items() if name.startswith("Gym.")}
    assert set(methods) == {name for name in known if name.startswith("Gym.")}
    for name, taken in methods.items():
        assert taken == known[name], name


@pytest.mark.parametrize("release", [2, 3])
def test_the_lab_that_stands_in_takes_nothing_but_what_was_recorded(release, of_lab):
    found, known = json.loads(of_lab[release][-1]), record(f"isaac_lab_{release}")
    # Cameras are sensors; data are properties of the assets here.
    checked = {"SensorBase.update" if name == "Camera.update" else name: taken
               for name, taken in found.items()}  # fmt: skip
    checked = {name: taken for name, taken in checked.items() if name in known}
    assert len(checked) > 20
    for name, taken in checked.items():
        assert set(taken) <= set(known[name]), name
    assert {name for name in found if name.endswith("Cfg")} <= set(known)
