"""Launch descriptions of the uses in `robot_bridge.graph`, for the launch files alone.

It needs ROS 2's `launch` and `launch_ros`, which come with any ROS 2 and are not on PyPI.
"""

import os
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

from robot_bridge import graph, up, words
from robot_bridge.graph import NodeSpec

PACKAGE = "mneme_vla"


def description(use: str) -> LaunchDescription:
    """Return the launch description of a use, one of `graph.USES`; its settings are arguments."""
    kind, _ = graph.USES[use]
    arguments = [
        DeclareLaunchArgument(
            word.name, default_value=word.default, description=word.description,
            choices=list(word.choices) or None,
        )
        for word in words.of(kind())
    ]  # fmt: skip
    discovery = up.discovery(dict(os.environ)).items()
    return LaunchDescription(
        [
            *(SetEnvironmentVariable(name, value) for name, value in discovery),
            *arguments,
            OpaqueFunction(function=entities, args=[use]),
        ]
    )


def entities(context: Any, use: str) -> list[Any]:
    """Return what a use starts, once its arguments are known.

    Raises:
        ValueError: something in them is missing, unknown or does not go together.
    """
    kind, build = graph.USES[use]
    given = words.read(kind(), dict(context.launch_configurations))
    return [entity for node in build(given) for entity in _entities(node)]


def _everything_ends(_: Any, context: Any) -> list[Any]:
    """Shut down because a vital process is over, unless that is going on already."""
    return [] if context.is_shutdown else [Shutdown(reason="a vital node ended")]


def _entities(node: NodeSpec) -> list[Any]:
    """Return a node and, if it has a lifecycle, what configures and then activates it."""
    make = LifecycleNode if node.lifecycle else Node
    vital = {"on_exit": _everything_ends} if node.vital else {}
    action = make(
        package=PACKAGE, executable=node.executable, name=node.name, namespace=node.namespace,
        ros_arguments=graph.told(node), output="screen", respawn=node.respawn, **vital,
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
    )  # fmt: skip
    return [action, RegisterEventHandler(configured), change(Transition.TRANSITION_CONFIGURE)]
