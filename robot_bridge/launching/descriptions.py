"""Launch descriptions of the configurations in `robot_bridge.launching.graph`.

Only the launch files use it: it needs `launch` and `launch_ros`, which come with any ROS 2 and are
not on PyPI.
"""

import os
import sys
from typing import Any

from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
    Shutdown,
)
from launch.events import matches_action
from launch_ros.actions import LifecycleNode, Node
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from lifecycle_msgs.msg import Transition

from robot_bridge.launching import graph, launch_arguments, up
from robot_bridge.launching.graph import NodeSpec

PACKAGE = "mneme_vla"


def description(name: str) -> LaunchDescription:
    """Return the launch description of a configuration of `graph.CONFIGS`."""
    kind, _ = graph.CONFIGS[name]
    arguments = [
        DeclareLaunchArgument(
            argument.name, default_value=argument.default, description=argument.description,
            choices=list(argument.choices) or None,
        )
        for argument in launch_arguments.of(kind())
    ]  # fmt: skip
    discovery = up.discovery(dict(os.environ)).items()
    return LaunchDescription(
        [
            *(SetEnvironmentVariable(name, value) for name, value in discovery),
            *arguments,
            OpaqueFunction(function=entities, args=[name]),
        ]
    )


def entities(context: Any, name: str) -> list[Any]:
    """Return the launch entities of a configuration with the context's arguments.

    Raises:
        ValueError: an argument is missing or unknown, or arguments contradict each other.
    """
    kind, build = graph.CONFIGS[name]
    if any(word.endswith(f"{name}.launch.py") for word in sys.argv):  # not included by another
        launch_arguments.check_words(kind(), context.argv)
    settings = launch_arguments.read(kind(), dict(context.launch_configurations))
    return [entity for node in build(settings) for entity in _entities(node)]


def _shutdown(_: Any, context: Any) -> list[Any]:
    """Shut down because a vital process has ended, unless a shutdown has begun."""
    return [] if context.is_shutdown else [Shutdown(reason="a vital node ended")]


def _entities(node: NodeSpec) -> list[Any]:
    """Return a node and, if it has a lifecycle, the events that configure and activate it."""
    make = LifecycleNode if node.lifecycle else Node
    vital = {"on_exit": _shutdown} if node.vital else {}
    action = make(
        package=PACKAGE, executable=node.executable, name=node.name, namespace=node.namespace,
        ros_arguments=graph.ros_arguments(node), output="screen", respawn=node.respawn, **vital,
    )  # fmt: skip
    if not node.lifecycle:
        return [action]

    def change(transition: int) -> EmitEvent:
        return EmitEvent(
            event=ChangeState(
                lifecycle_node_matcher=matches_action(action), transition_id=transition
            )
        )

    configured = OnStateTransition(
        target_lifecycle_node=action, start_state="configuring", goal_state="inactive",
        entities=[change(Transition.TRANSITION_ACTIVATE)],
        handle_once=True,  # what a person does with the node later is theirs
    )  # fmt: skip
    return [action, RegisterEventHandler(configured), change(Transition.TRANSITION_CONFIGURE)]
