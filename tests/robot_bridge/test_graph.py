"""What runs together: one description, and every wrong setting named before anything starts."""

import ast
import dataclasses
from pathlib import Path

import pytest
import yaml

from robot_bridge.launching import graph, launch_arguments, package_files
from robot_bridge.launching.graph import Arm, DualArm, Record, SimArm
from robot_bridge.motion import limits
from vla.contracts import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def policy(tmp_path):
    folder = tmp_path / "policy"
    folder.mkdir()
    return str(folder)


def names(nodes):
    return [node.path for node in nodes]


def test_an_arm_has_a_safety_node_and_a_policy_node_with_a_lifecycle(policy):
    safety, decides = graph.arm(Arm(policy=policy))
    assert names((safety, decides)) == ["/safety_node", "/policy_node"]
    assert (safety.vital, safety.lifecycle, decides.vital, decides.lifecycle) == (
        True, False, False, True,
    )  # fmt: skip
    assert safety.parameters["limits"] == str(package_files.params() / "so101_limits.yaml")
    assert decides.parameters["policy"] == policy
    assert decides.parameters["cameras"] == ("front", "wrist")
    assert not any(node.respawn for node in (safety, decides))


def test_what_is_left_empty_is_left_to_the_node(policy):
    for node in graph.arm(Arm(policy=policy)):
        assert not {"instruction", "targets", "joints", "token_file"} & set(node.parameters)


def test_a_reward_model_adds_a_monitor_and_recording_a_recorder(policy, tmp_path):
    watched, alone = Arm(policy=policy, reward_model=policy, instruction="go"), Arm(policy=policy)
    safety, _, monitor = graph.arm(watched)
    assert names([monitor]) == ["/monitor"]
    assert monitor.parameters["instruction"] == "go"  # which the policy begins with, too
    assert safety.parameters["monitored"] is True  # who shall be watched does not move unwatched
    assert graph.arm(alone)[0].parameters["monitored"] is False
    nodes = graph.record(Record(out=str(tmp_path / "out")))
    assert names(nodes) == ["/safety_node", "/recorder"]
    assert nodes[1].parameters["folder"] == str(tmp_path / "out")


def test_a_collision_stage_that_a_parameter_file_asks_for_is_not_turned_off(policy):
    assert graph.arm(Arm(policy=policy, collision=True))[0].parameters["collision"] is True
    assert "collision" not in graph.arm(Arm(policy=policy))[0].parameters


def test_a_simulated_arm_runs_on_its_clock_and_ends_everything_when_it_ends(policy):
    nodes = graph.sim_arm(SimArm(policy=policy, task="push", seed=7, episode=3))
    assert names(nodes) == ["/sim_arm", "/safety_node", "/policy_node"]
    assert nodes[0].vital
    told = nodes[0].parameters
    assert (told["task"], told["seed"], told["episode"]) == ("push", 7, 3)
    # The simulation makes the clock, the others hear it.
    assert told["publish_clock"] is True
    assert "use_sim_time" not in told
    assert all(node.parameters["use_sim_time"] is True for node in nodes[1:])


def test_two_arms_are_two_namespaces(policy):
    left = Arm(policy=policy, namespace="left")
    nodes = graph.dual_arm(DualArm(left=left, right=dataclasses.replace(left, namespace="/right/")))
    assert names(nodes) == [
        "/left/safety_node", "/left/policy_node", "/right/safety_node", "/right/policy_node",
    ]  # fmt: skip
    assert graph.name_arguments("policy_node", nodes[3].namespace)[-1] == "__ns:=/right"


def test_another_controller_is_a_remapping_of_the_safety_node_alone(policy):
    safety, decides = graph.arm(
        Arm(policy=policy, controller_type="forward", controller="my_controller/commands")
    )
    assert safety.remappings == (("forward_command_controller/commands", "my_controller/commands"),)
    assert safety.parameters["controller_type"] == "forward"
    assert decides.remappings == ()


def test_arguments_keep_the_type_of_every_value(policy):
    use = Arm(
        policy=policy,
        instruction='say "no": 1.0 \\ é',
        max_velocity_scaling_factor=0.1,
        cameras=("wrist",),
    )
    safety, decides = (graph.ros_arguments(node) for node in graph.arm(use))

    def value(told, name):
        word = next(word for word in told if word.startswith(f"{name}:="))
        return yaml.safe_load(word.split(":=", 1)[1])

    assert value(decides, "instruction") == 'say "no": 1.0 \\ é'
    assert value(decides, "cameras") == ["wrist"]
    assert value(safety, "max_velocity_scaling_factor") == 0.1
    assert value(safety, "use_sim_time") is False
    assert safety[:2] == ["--enclave", "/safety_node"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": ""}, "policy: got nothing, expected a folder of `vla export`, unix:PATH or"),
        ({"policy": "/nowhere"}, "/nowhere: no exported policy there; give a folder"),
        ({"robot": "so11"}, "unknown robot 'so11': did you mean so101?"),
        (
            {"max_velocity_scaling_factor": 0.0},
            "max_velocity_scaling_factor: got 0.0, expected 0.01 to 1",
        ),
        ({"max_velocity_scaling_factor": float("nan")}, "max_velocity_scaling_factor: got nan"),
        ({"joints": ("gripper",)}, "joints: got gripper, expected those of so101 in another order"),
        ({"cameras": ("top",)}, "cameras: so101 has no 'top'; it has front, wrist"),
        ({"limits": "/no.yaml"}, "/no.yaml: no limits there"),
        ({"params": "/no.yaml"}, "/no.yaml: no file there"),
        ({"namespace": "left arm"}, "namespace: got 'left arm', expected letters, digits"),
        ({"controller": "-p a:=1"}, "controller: got '-p a:=1', expected a topic such as joint_tr"),
        ({"reward_model": "/nowhere"}, "/nowhere: no exported reward model there"),
        ({"token_file": "/nowhere"}, "/nowhere: no file there"),
    ],
)
def test_a_wrong_setting_is_named(settings, said, policy):
    with pytest.raises(ValueError, match="got|no |unknown") as error:
        graph.arm(Arm(**{"policy": policy, **settings}))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: graph.sim_arm(SimArm(task="reech")), "unknown task 'reech': did you mean reach?"),
        (lambda: graph.record(Record()), "out: got nothing, expected a folder"),
        (
            lambda: graph.dual_arm(DualArm(left=Arm(), right=Arm(namespace="/"))),
            "left and right: got namespace '' twice",
        ),
    ],
)
def test_a_wrong_use_is_named(build, said):
    with pytest.raises(ValueError, match=said.split(":", maxsplit=1)[0]) as error:
        build()
    assert said in str(error.value)


@pytest.mark.parametrize("where", ["unix:/tmp/policy", "127.0.0.1:7410", "robot.local:7410"])
def test_a_policy_may_be_at_an_address(where):
    assert graph.arm(Arm(policy=where))[1].parameters["policy"] == where


SETTINGS = {
    "safety_node": {"safety/settings.py": "Settings", "safety/gate_config.py": "GateConfig"},
    "policy_node": {"policy/settings.py": "Settings"},
    "twist_teleop": {"nodes/twist_teleop.py": "Settings"},
    "sim_arm": {"sim_arm/settings.py": "Settings"},
    "recorder": {"nodes/recorder.py": "Settings"},
    "monitor": {"nodes/monitor.py": "Settings"},
}
"""Classes of the settings by file; the later ones are bases of the first."""
ANYWAY = {"use_sim_time": "bool", "seed": "int", "episode": "int"}
"""What a node has beside its settings."""


@pytest.mark.parametrize("name", SETTINGS)
def test_a_node_knows_every_parameter_it_is_given(name, policy):
    """ROS leaves out what a node does not know, without a word."""
    kinds = {}
    for file, kind in SETTINGS[name].items():
        body = ast.parse((ROOT / "robot_bridge" / file).read_text()).body
        (settings,) = (n for n in body if isinstance(n, ast.ClassDef) and n.name == kind)
        fields = [field for field in settings.body if isinstance(field, ast.AnnAssign)]
        kinds |= {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
    joints = registry.load("vla.robots", "so101").SPEC.names[::-1]
    full = {
        "policy": policy, "reward_model": policy, "instruction": "go", "targets": ("onnxruntime",),
        "token_file": __file__, "authority": __file__, "joints": joints, "collision": True,
        "twist": True,
    }  # fmt: skip
    nodes = graph.sim_arm(SimArm(**full)) + graph.record(Record(out="x", **full))
    for node in (node for node in nodes if node.name == name):
        for parameter, value in node.parameters.items():
            expected = {**ANYWAY, **kinds}[parameter]
            assert type(value).__name__ == expected.split("[")[0], parameter


# --- files that come with the package ------------------------------------------------------------


@pytest.mark.parametrize("robot", registry.names("vla.robots"))
def test_every_robot_has_limits_and_they_allow_what_its_spec_allows(robot):
    spec = registry.load("vla.robots", robot).SPEC
    file = package_files.params() / f"{robot}_limits.yaml"
    assert "# Source" in file.read_text()
    found, stated = limits.read(file, spec), limits.of_spec(spec)
    assert found.acceleration.tolist() == stated.acceleration.tolist()
    assert found.jerk.tolist() == stated.jerk.tolist()


@pytest.mark.parametrize("robot", registry.names("vla.robots"))
def test_the_parameters_of_a_robot_belong_to_nodes_in_any_namespace(robot):
    found = yaml.safe_load((package_files.params() / f"{robot}.yaml").read_text())
    known = {f"/**/{node.name}" for node in graph.record(Record(robot=robot, out="x"))}
    known |= {"/**/policy_node", "/**/monitor"}
    assert set(found) <= known
    for told in found.values():
        assert list(told) == ["ros__parameters"]


# --- settings as launch arguments ----------------------------------------------------------------


@pytest.mark.parametrize("use", graph.CONFIGS)
def test_every_setting_is_a_described_launch_argument(use):
    kind, _ = graph.CONFIGS[use]
    found = list(launch_arguments.of(kind()))
    assert len({word.name for word in found}) == len(found)
    assert all(word.description.endswith(".") for word in found)
    assert launch_arguments.read(kind(), {word.name: word.default for word in found}) == kind()


def test_launch_arguments_become_settings_of_their_type():
    given = {
        "left_cameras": "front, wrist",
        "left_max_velocity_scaling_factor": "0.1",
        "right_use_sim_time": "true",
    }
    use = launch_arguments.read(DualArm(), given)
    assert use.left.cameras == ("front", "wrist")
    assert use.left.max_velocity_scaling_factor == 0.1
    assert (use.left.use_sim_time, use.right.use_sim_time) == (False, True)
    assert use.right.namespace == "right"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"max_velocity_scaling_factor": "fast"},
            "max_velocity_scaling_factor: got 'fast', expected a number",
        ),
        ({"seed": "1.5"}, "seed: got '1.5', expected a whole number"),
        ({"use_sim_time": "yes"}, "use_sim_time: got 'yes', expected true or false"),
    ],
)
def test_a_wrong_launch_argument_is_named(given, said):
    with pytest.raises(ValueError, match="got") as error:
        launch_arguments.read(SimArm(), given)
    assert str(error.value) == said


def test_a_description_of_nodes_imports_neither_ros_nor_launch():
    for module in ("graph", "package_files", "launch_arguments"):
        tree = ast.parse((ROOT / "robot_bridge" / "launching" / f"{module}.py").read_text())
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names] if isinstance(node, ast.Import)
                else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
        }  # fmt: skip
        assert not imported & {"rclpy", "launch", "launch_ros", "torch"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["spead:=0.1"], "unknown launch argument 'spead': see --show-args"),
        (["max_velocity_scaling:=0.1"], "did you mean max_velocity_scaling_factor"),
        (["left_robot:=panda"], "unknown launch argument 'left_robot'"),
    ],
)
def test_a_word_that_is_no_launch_argument_is_refused(words, said):
    with pytest.raises(ValueError, match=said):
        launch_arguments.check_words(Arm(), words)
    launch_arguments.check_words(Arm(), ["robot:=panda", "--noninteractive"])
