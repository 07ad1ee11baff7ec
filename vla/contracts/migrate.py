"""Reads what an older release wrote under the names of today.

Checkpoints, exported policies, runs, reward models and recorded experience carry a format number;
the tables of `vla.contracts.renames` say what an older one called things.
"""

import copy
from collections.abc import Mapping
from typing import Any

from vla.contracts import registry
from vla.contracts.renames import (
    AXES,
    CONFIGS,
    DSRL,
    DSRL_REMOVED,
    FLAGS,
    GRAPHS,
    LABELS,
    METRICS,
    NOISE_ACTOR,
    PLUGINS,
    PORTS,
    TOPICS,
    TRAINER,
    VALUES,
    as_flag,
)


class RemovedError(ValueError):
    """What is read needs a part of an earlier release that was removed."""


def graphs(kind: str, value: Any) -> Any:
    """Return the `graphs` of a manifest of format 2 under their new names.

    A renamed port keeps the name that it has inside the ONNX file as `onnx_name`.

    Args:
        kind: "policy" or "reward_model".
        value: Graphs by old name, as JSON; what is malformed is returned as it is.
    """

    def port(old: dict[str, Any]) -> dict[str, Any]:
        new = PORTS[kind].get(old["name"], old["name"])
        renamed = {**old, "name": new, "shape": [AXES.get(n, n) for n in old["shape"]]}
        return renamed if new == old["name"] else {**renamed, "onnx_name": old["name"]}

    try:
        return {
            GRAPHS.get(name, name): {
                **graph, **{side: [port(p) for p in graph[side]] for side in ("inputs", "outputs")},
            }
            for name, graph in value.items()
        }  # fmt: skip
    except (AttributeError, KeyError, TypeError):
        return value


def config(kind: type, value: Any) -> Any:
    """Return the JSON object of a configuration with new field names and values.

    Args:
        kind: The configuration's class.
        value: JSON object, of this or an earlier format; anything else is returned as it is.

    Raises:
        RemovedError: it is that of a policy with a noise actor.
    """
    if not isinstance(value, dict):
        return value
    renamed = copy.deepcopy(value)
    for base in kind.__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        for old, new in CONFIGS.get(name, {}).items():
            _move(renamed, old.split("."), new.split(".") if new else [])
        for path, replaced in VALUES.get(name, {}).items():
            *groups, field = path.split(".")
            group = _group(renamed, groups)
            stored = None if group is None else group.get(field)
            if group is not None and isinstance(stored, list):
                group[field] = [replaced.get(item, item) for item in stored]
            elif group is not None and isinstance(stored, (str, bool, int)):
                group[field] = replaced.get(stored, stored)
        if name == "vla.policies.vla.Config":
            _drop_noise_actor(renamed)
    return renamed


def _drop_noise_actor(policy: dict[str, Any]) -> None:
    """Drop the settings of a noise actor from those of a policy that has none."""
    for name in NOISE_ACTOR:
        settings = _group(policy, [name])
        if settings is None:
            continue
        if width := settings.get("width", 0):
            raise RemovedError(
                f"policy: got one with a noise actor (width {width}), expected one without: "
                f"{DSRL_REMOVED}"
            )
        del policy[name]


def _move(value: dict[str, Any], old: list[str], new: list[str]) -> None:
    """Move the field at path `old` to path `new`, unless something is there."""
    source = _group(value, old[:-1])
    if source is None or old[-1] not in source:
        return
    target = value
    for step in new[:-1]:
        target = target.setdefault(step, {})
    if new and new[-1] in target:
        return
    field = source.pop(old[-1])
    if new:
        target[new[-1]] = field
    if len(old) > 1 and not source:
        _group(value, old[:-2]).pop(old[-2])  # type: ignore[union-attr]


def _group(value: Any, path: list[str]) -> dict[str, Any] | None:
    """Return the object at a path, None where there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else None


def plugin(package: str | tuple[str, ...], name: str) -> str:
    """Return today's registry key of a plug-in of one of the folders.

    Raises:
        RemovedError: the plug-in was removed.
    """
    for folder in (package,) if isinstance(package, str) else package:
        if folder == "training.algos" and name in DSRL:
            known = ", ".join(registry.names(folder))
            raise RemovedError(f"algo: got {name!r}, expected one of {known}: {DSRL_REMOVED}")
        if name in PLUGINS.get(folder, {}):
            return PLUGINS[folder][name]
    return name


def tensors(values: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, Any]:
    """Return named tensors under their new names.

    Args:
        values: Tensors by name.
        parts: `WEIGHTS` or `TRAINER`.
    """
    return {_renamed(name, parts): value for name, value in values.items()}


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    for old in sorted(parts, key=len, reverse=True):
        name = f".{name}".replace(f".{old}", f".{parts[old]}", 1)[1:]
    return name


def trainer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of trainer.safetensors under their new names.

    Until format 2 the Q-functions of `ogpo` kept the state of their own Adam in buffers
    next to their weights; it is the state of a `torch.optim.Adam` now.
    """
    renamed = tensors(values, TRAINER)
    firsts = [n for n in renamed if n.startswith("weight.") and n.endswith(".mean_w1")]
    for name in firsts:
        place = name.removesuffix(".mean_w1")
        steps = renamed[f"{place}.steps"]
        owner = place.rsplit(".", 1)[-1]
        for i, part in enumerate(_PARTS):
            renamed[f"{place}.slow.{part}"] = renamed.pop(f"{place}.slow_{part}")
            mean, square = (
                renamed.pop(f"{place}.mean_{part}"),
                renamed.pop(f"{place}.square_{part}"),
            )
            if steps > 0:
                renamed[f"{owner}_adam.{i}.step"] = steps.float()
                renamed[f"{owner}_adam.{i}.exp_avg"] = mean
                renamed[f"{owner}_adam.{i}.exp_avg_sq"] = square
        del renamed[f"{place}.steps"]
        average = place.replace("weight.", "average.", 1)
        for part in _PARTS:
            renamed[f"{average}.slow.{part}"] = renamed.pop(f"{average}.slow_{part}")
            del renamed[f"{average}.mean_{part}"], renamed[f"{average}.square_{part}"]
        del renamed[f"{average}.steps"]
    return renamed


_PARTS = ("w1", "b1", "w2", "b2", "w3", "b3")


def online_rl_state(value: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an online RL algorithm in trainer.json under its new names."""
    renamed = copy.deepcopy(value)
    for old, new in _ONLINE_RL_STATE.items():
        _move(renamed, old.split("."), new.split("."))
    return {**renamed, "rollout_metrics": metrics(renamed["rollout_metrics"])}


_ONLINE_RL_STATE = {
    "rounds": "iterations", "figures": "rollout_metrics", "vitals": "diagnostics",
    "prepared": "targets", "start.demos": "start.dataset", "start.critic": "start.reward_model",
    "start.earlier": "start.prior_runs",
}  # fmt: skip


def manifest(value: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of an exported policy with the shapes of its state.

    Until format 2 every policy had slots: "memory" was [slots, tokens, width], and a policy without
    memory had one slot, always empty.
    """
    memory = value.get("memory")
    if value.get("format") != 2 or not isinstance(memory, list):
        return value
    slots, tokens, width = memory
    shapes = {
        "slot_tokens": [slots, tokens, width], "slot_time": [slots], "slot_count": [slots],
    }  # fmt: skip
    rest = {name: part for name, part in value.items() if name != "memory"}
    return {**rest, "remembers": slots > 1, "state_shapes": shapes}


def metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics under their new names."""
    return {METRICS.get(name, name): value for name, value in row.items()}


def labels(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a labelled data set's provenance with new keys."""
    return {LABELS.get(key, key): entry for key, entry in value.items()}


def flag(prog: str, words: list[str]) -> str | None:
    """Return a sentence if one of a command's words is a flag of an earlier release.

    Args:
        prog: The command, such as "vla train rl".
        words: Its arguments.
    """
    line = f"{prog.removeprefix('vla ')} "
    tables = [table for verb, table in FLAGS.items() if not verb or line.startswith(f"{verb} ")]
    renamed = {as_flag(old): new for table in tables for old, new in table.items()}
    for word in words:
        name = as_flag(word.partition("=")[0])
        while name.startswith("--"):  # the flag, then the groups that it is in
            new = renamed.get(name)
            if new and (name == as_flag(word.partition("=")[0]) or not new.startswith(name)):
                return f"{name} is now {new}"
            name = name.rpartition(".")[0]
    return None


def topics(name: str) -> tuple[str, ...]:
    """Return a topic's name followed by its names in earlier releases."""
    return name, *(old for old, new in TOPICS.items() if new == name)
