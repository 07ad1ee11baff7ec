"""Model card for the Hub: YAML metadata and Markdown from the facts of a run; reads no files."""

import json
import re
from pathlib import Path
from typing import Any

from vla.contracts.config import title
from vla.hub.facts import Facts, Result, settings

VERBS = {"distill": "vla train distill", "bc": "vla train"}
ONLINE_RL = "vla train rl"
DEFAULT_NAME = "OWNER/NAME"
PARTS = ("backbone", "memory", "head")
"""Parts of policies of type `vla`; baselines have none of them."""


def choose_license(facts: Facts, requested: str | None) -> str:
    """Return the license of the weights: `requested`, or that of the pretrained weights.

    Raises:
        ValueError: neither is known, or the name is not one of the Hub.
    """
    name = requested or facts.origin["pretrained"].get("licence")
    if not name:
        raise ValueError(
            f"{facts.folder}: the license is unknown, and no pretrained weights define one; add "
            "--license, such as --license apache-2.0"
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise ValueError(
            f"license: got {name!r}, expected a name that the Hub uses, such as apache-2.0, mit "
            "or cc-by-4.0"
        )
    return name


def write(facts: Facts, *, name: str, license_name: str, datasets: tuple[str, ...] = ()) -> str:
    """Return the card of a run; `name` is the model's on the Hub, "" if it is not known yet, and
    `datasets` the names of the training data there.
    """
    from huggingface_hub import EvalResult, ModelCardData

    hub_name = name or DEFAULT_NAME
    short = hub_name.split("/")[-1] if name else facts.folder.parent.name
    results = [
        EvalResult(
            task_type="robotics", task_name="robot control in simulation",
            dataset_type=title(r.task), dataset_name=title(r.task), dataset_split=f"seed {r.seed}",
            dataset_args={k: v for k, v in r.task.items() if k != "type"},
            metric_type="success_rate", metric_name="success rate", metric_value=round(r.rate, 6),
            metric_args={"episodes": r.episodes, "interval_95": [round(x, 6) for x in r.interval]},
        )
        for r in facts.results
    ]  # fmt: skip
    data = ModelCardData(
        license=license_name, library_name="mneme-vla", pipeline_tag="robotics",
        tags=_tags(facts), datasets=list(datasets) or None, model_name=short,
        eval_results=results or None,
    )  # fmt: skip
    parts = [
        f"# {short}", _what(facts), _tasks(facts), _data(facts, datasets), _results(facts),
        _training(facts), _pretrained(facts), _use(facts, hub_name), _limits(facts),
        f"## License\n\n`{license_name}`.",
    ]  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def _tags(facts: Facts) -> list[str]:
    policy = facts.policy
    parts = [f"{part}-{title(policy[part])}" for part in PARTS if part in policy]
    return ["robotics", "vision-language-action", "mneme-vla", facts.robot["name"],
            *(parts or [f"policy-{title(policy)}"])]  # fmt: skip


def _what(facts: Facts) -> str:
    policy = facts.policy
    rows = [
        ("robot", f"{facts.robot['name']}, {facts.robot['control_hz']:g} control steps per second"),
        ("parameters", f"{facts.parameters:,}"),
        ("policy", f"`{title(policy)}`"),
        *((part, f"`{title(policy[part])}`: {settings(policy[part])}")
          for part in PARTS if part in policy),
        ("actions", f"{policy['chunk_size']} per chunk, {policy['n_action_steps']} executed"),
        ("cameras", ", ".join(policy["cameras"])),
        ("updates", str(facts.origin["step"])),
    ]  # fmt: skip
    return (
        "A robot policy of mneme-vla. Input: camera images, joint positions and an instruction; "
        "output: chunks of joint position targets.\n\n" + _table(("", ""), rows)
    )


def _tasks(facts: Facts) -> str:
    instructions = "\n".join(f"- {text}" for text in facts.origin["instructions"])
    task = facts.origin["task"]
    return (
        f"## Task\n\n`{title(task)}` ({settings(task)}). Training instructions:\n\n{instructions}"
    )


def _data(facts: Facts, datasets: tuple[str, ...]) -> str:
    lines = ["## Data", ""]
    if facts.data:
        data = facts.data
        lines.append(
            f"`{data.name}`: {data.episodes} episodes, {data.frames:,} frames at {data.fps:g} "
            f"frames/s. SHA-256 of its tables: `{data.sha256}`."
        )
    else:
        lines.append("The data set is unknown.")
    demos = facts.config.get("demos")
    if isinstance(demos, dict):
        lines.append(f"Recording recipe of the run: {settings(demos)}.")
    lines += [f"On the Hub: [{name}](https://huggingface.co/datasets/{name})." for name in datasets]
    return "\n".join(lines)


def _results(facts: Facts) -> str:
    if not facts.results:
        return "## Results\n\nThese weights were not evaluated."
    rows = [_row(r) for r in facts.results]
    head = ("task", "settings", "episodes", "seed", "success", "95 % interval")
    return (
        "## Results\n\nIn simulation, with Wilson intervals over episodes; they do not cover the "
        "training seed.\n\n" + _table(head, rows)
    )


def _row(r: Result) -> tuple[str, ...]:
    low, high = r.interval
    return (
        f"`{title(r.task)}`", settings(r.task), str(r.episodes), str(r.seed), f"{r.rate:.1%}",
        f"{low:.1%} to {high:.1%}",
    )  # fmt: skip


def _training(facts: Facts) -> str:
    origin, config = facts.origin, facts.config
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines = ["## Training", "", f"Git revision `{origin['revision']}`; {versions}."]
    if config:
        verb = VERBS.get(str(config.get("algo", {}).get("type", "bc")), ONLINE_RL)
        lines += [
            f"Seed {config.get('seed', 0)}. The run's settings; each is a flag of `{verb}` "
            "(`policy.memory.slots` is `--policy.memory.slots`):", "",
            "```json", json.dumps(config, indent=1), "```",
        ]  # fmt: skip
    return "\n".join(lines)


def _pretrained(facts: Facts) -> str:
    source: dict[str, Any] = facts.origin["pretrained"]
    if not source:
        return "## Pretrained weights\n\nNone."
    rows = [(key, str(value if value is not None else "unknown")) for key, value in source.items()]
    return "## Pretrained weights\n\n" + _table(("", ""), rows)


def _use(facts: Facts, name: str) -> str:
    folder = Path("runs") / name.split("/")[-1]
    exportable = all(part in facts.policy for part in PARTS)
    served = [f"vla export {folder} --out {folder}_onnx", f"vla serve {folder}_onnx"]
    return "\n".join([
        "## How to use", "", "```", f"vla hub pull {name} --out {folder}",
        f"vla eval {folder} --episodes 200 --seed 1000", *(served if exportable else ()), "```",
        "", "The folder holds safetensors and JSON; nothing in it is run as code.",
    ])  # fmt: skip


def _limits(facts: Facts) -> str:
    lines = [
        "## Limits", "",
        f"- It controls {facts.robot['name']} with the channels, limits and rate in `policy.json`; "
        "other robots are refused.",
        "- The results above were measured in simulation on the named tasks. They say nothing "
        "about other tasks, other scenes or a real arm.",
        "- It contains no safety functions: on a real arm, use a safety layer in between.",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Any) -> str:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])
