"""The stand-ins refuse what the real packages refuse, and have nothing that was not recorded."""

import ast
import json
from pathlib import Path

import pytest

from tests.sim.isaac import stand

HERE = Path(__file__).parent
HOSTS = HERE.parents[2] / "sim" / "hosts"

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
"""
ARM = (
    "<mujoco><worldbody><body name='link'><joint name='j'/><geom size='0.1'/></body></worldbody>"
    "</mujoco>"
)


def refusal(folder, code, lab=2):
    """Return what code is refused with."""
    (folder / "arm.xml").write_text(ARM)
    head, _, last = code.rpartition("\n")
    wrapped = f"{head}\ntry:\n    {last}\nexcept Exception as e:\n    print(type(e).__name__, e)"
    return stand.run(folder, wrapped, lab)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import torch\nimport isaacgym", "ImportError PyTorch was imported before isaacgym"),
        (SET_UP + "gym.create_sim(0, 0, gymapi.SIM_PHYSX, params)", "a process holds one sim"),
        (SET_UP + "params.dtt = 1.0", "SimParams has no attribute 'dtt'"),
        (SET_UP + "gym.acquire_dof_state_tensor(sim)", "prepare_sim comes first"),
        (SET_UP + READY + "put(torch.tensor([1]))", "got torch.int64, expected torch.int32"),
        (SET_UP + READY + "put(torch.tensor([1, 1], dtype=torch.int32))", "one comes twice"),
        (SET_UP + READY + "put(torch.tensor([1], dtype=torch.int32))\n"
         "put(torch.tensor([1], dtype=torch.int32))", "written twice before simulate"),
        (SET_UP + READY + "gym.render_all_camera_sensors(sim)", "step_graphics comes first"),
        (SET_UP + READY + "put(torch.tensor([1], dtype=torch.int32))\ngym.step_graphics(sim)\n"
         "gym.render_all_camera_sensors(sim)", "only after simulate"),
    ],
)  # fmt: skip
def test_isaac_gym_refuses_wrong_use(code, said, tmp_path):
    assert said in refusal(tmp_path, code.replace("{folder!r}", repr(str(tmp_path))))


def test_isaac_gym_takes_a_quaternion_for_xyzw(tmp_path):
    (tmp_path / "arm.xml").write_text(ARM)
    code = (SET_UP + READY).replace("{folder!r}", repr(str(tmp_path)))
    code += """
import json
found = []
for quat in ([0.0, 0.0, 0.6, 0.8], [0.8, 0.0, 0.0, 0.6]):
    root[1, 3:7] = torch.tensor(quat)
    put(torch.tensor([1], dtype=torch.int32))
    gym.simulate(sim)
    found.append(sim.stage.data[0].qpos[-4:].tolist())
print(json.dumps({"found": found}))
"""
    right, wrong = stand.told(tmp_path, code)["found"]
    assert right == pytest.approx([0.8, 0.0, 0.0, 0.6], abs=1e-3)
    assert wrong == pytest.approx([0.6, 0.8, 0.0, 0.0], abs=1e-3)


LAUNCH = "from isaaclab.app import AppLauncher\nAppLauncher(headless=True, device='cpu')\n"
CONTEXT = (
    LAUNCH + "import isaaclab.sim as s\nimport torch\nfrom isaaclab import assets\n"
    "c = s.SimulationContext(s.SimulationCfg(dt=0.01, device='cpu', gravity=(0, 0, -9.81)))\n"
)


@pytest.mark.parametrize(
    ("lab", "code", "said"),
    [
        (2, "import isaaclab.sim", "No module named 'omni': start the AppLauncher first"),
        (2, LAUNCH + "AppLauncher(headless=True)", "a process holds one app"),
        (2, CONTEXT + "s.SimulationContext(c.cfg)", "a process holds one"),
        (3, CONTEXT + "s.MjcfFileCfg(asset_path='x', fix_base=True)", "'fix_base'"),
        (3, CONTEXT + "s.RigidBodyPropertiesCfg()", "no attribute 'RigidBodyPropertiesCfg'"),
        (3, CONTEXT + "assets.check_ids(torch.tensor([0]), torch.zeros(1))", "expected torch.int3"),
        (2, CONTEXT + "assets.check_ids(torch.tensor([0, 0]), torch.zeros(2))", "one comes twice"),
        (3, CONTEXT + "assets.RigidObject.write_root_pose_to_sim", "no attribute 'write_root_po"),
        (2, CONTEXT + "assets.RigidObject.write_root_pose_to_sim_index", "no attribute 'write_ro"),
    ],
)
def test_isaac_lab_refuses_wrong_use(lab, code, said, tmp_path):
    assert said in refusal(tmp_path, code, lab)


def test_isaac_lab_takes_quaternions_for_wxyz_before_3_and_for_xyzw_since(tmp_path):
    code = CONTEXT + "print(assets.to_wxyz([0.6, 0.0, 0.0, 0.8]))"
    assert stand.run(tmp_path, code, 2).split() == ["[0.6,", "0.0,", "0.0,", "0.8]"]
    assert stand.run(tmp_path, code, 3).split() == ["[0.8,", "0.6,", "0.0,", "0.0]"]


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


def uses(host, bases):
    """Return the attributes that a host takes of things with these names."""
    tree = ast.parse((HOSTS / f"{host}.py").read_text())
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
    assert len(list(HERE.glob("*.json"))) == 3


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
print(json.dumps(found))
"""


def test_the_methods_of_the_gym_that_stands_in_take_what_was_recorded(tmp_path):
    code = "from isaacgym import gymapi\nmodules = [gymapi]\n" + INSPECT
    found, known = stand.told(tmp_path, code), record("isaac_gym")
    methods = {name: taken for name, taken in found.items() if name.startswith("Gym.")}
    assert set(methods) == {name for name in known if name.startswith("Gym.")}
    for name, taken in methods.items():
        assert taken == known[name], name


@pytest.mark.parametrize("lab", [2, 3])
def test_the_lab_that_stands_in_takes_nothing_but_what_was_recorded(lab, tmp_path):
    code = (
        CONTEXT + "from isaaclab import actuators, scene, sensors\n"
        "modules = [s, assets, actuators, scene, sensors]\n" + INSPECT
    )
    found, known = stand.told(tmp_path, code, lab), record(f"isaac_lab_{lab}")
    checked = 0
    for name, taken in found.items():
        # Data are properties of the assets here, and cameras are sensors.
        name = "SensorBase.update" if name == "Camera.update" else name
        if name in known:
            checked += 1
            assert [p for p in known[name] if p in taken] == taken or set(taken) <= set(known[name])
    configurations = {name for name in found if name.endswith("Cfg")}
    assert configurations <= set(known)
    assert checked > 20
