"""A model card for the Hub: facts of a run as YAML front matter and Markdown; reads no files."""

import json
import re
from pathlib import Path
from typing import Any

from vla.hub.facts import Facts, Result, named, settings

VERBS = {"distill": "vla train distill", "bc": "vla train"}
PRACTICE = "vla train rl"
NAME_IF_NONE = "OWNER/NAME"
PARTS = ("backbone", "memory", "head")
"""Of our own policy; a baseline has none of them."""


def licence(facts: Facts, asked: str | None) -> str:
    """Return the licence that the weights are given under.

    Raises:
        ValueError: none is asked for and nothing tells which, or it is none of the Hub's form.
    """
    given = asked or facts.origin["pretrained"].get("licence")
    if not given:
        raise ValueError(
            f"{facts.folder}: under which licence? No pretrained weights tell; add --licence, such "
            "as --licence apache-2.0"
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", given):
        raise ValueError(
            f"licence: got {given!r}, expected a name that the Hub uses, such as apache-2.0, mit "
            "or cc-by-4.0"
        )
    return given


def write(facts: Facts, *, name: str, licence: str, datasets: tuple[str, ...] = ()) -> str:
    """Return the card.

    Args:
        facts: Of the run.
        name: The model's name on the Hub, "" if it is not known yet.
        licence: What `licence` returned.
        datasets: Names on the Hub of the data it learned from.
    """
    from huggingface_hub import EvalResult, ModelCardData

    own = name or NAME_IF_NONE
    short = own.split("/")[-1] if name else facts.folder.parent.name
    results = [
        EvalResult(
            task_type="robotics", task_name="robot control in simulation",
            dataset_type=named(r.task), dataset_name=named(r.task), dataset_split=f"seed {r.seed}",
            dataset_args={k: v for k, v in r.task.items() if k != "type"},
            metric_type="success_rate", metric_name="success rate", metric_value=round(r.rate, 6),
            metric_args={"episodes": r.episodes, "interval_95": [round(x, 6) for x in r.interval]},
        )
        for r in facts.results
    ]  # fmt: skip
    data = ModelCardData(
        license=licence, library_name="mneme-vla", pipeline_tag="robotics",
        tags=_tags(facts), datasets=list(datasets) or None, model_name=short,
        eval_results=results or None,
    )  # fmt: skip
    parts = [
        f"# {short}", _what(facts), _tasks(facts), _data(facts, datasets), _results(facts),
        _training(facts), _pretrained(facts), _use(facts, own), _limits(facts),
        f"## Licence\n\n`{licence}`.",
    ]  # fmt: skip
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def _tags(facts: Facts) -> list[str]:
    policy = facts.policy
    own = [f"{part}-{named(policy[part])}" for part in PARTS if part in policy]
    return ["robotics", "vision-language-action", "mneme-vla", facts.robot["name"],
            *(own or [f"policy-{named(policy)}"])]  # fmt: skip


def _what(facts: Facts) -> str:
    policy = facts.policy
    rows = [
        ("robot", f"{facts.robot['name']}, {facts.robot['control_hz']:g} control steps per second"),
        ("parameters", f"{facts.parameters:,}"),
        ("policy", f"`{named(policy)}`"),
        *((part, f"`{named(policy[part])}`: {settings(policy[part])}")
          for part in PARTS if part in policy),
        ("actions", f"chunks of {policy['chunk']}, of which {policy['execute']} are executed"),
        ("cameras", ", ".join(policy["cameras"])),
        ("updates", str(facts.origin["step"])),
    ]  # fmt: skip
    return (
        "A robot policy of mneme-vla: pictures, joint positions and an instruction in, chunks of "
        "joint position targets out.\n\n" + _table(("", ""), rows)
    )


def _tasks(facts: Facts) -> str:
    told = "\n".join(f"- {words}" for words in facts.origin["instructions"])
    task = facts.origin["task"]
    return f"## Task\n\n`{named(task)}` ({settings(task)}). Instructions it learned:\n\n{told}"


def _data(facts: Facts, datasets: tuple[str, ...]) -> str:
    lines = ["## Data", ""]
    if facts.data:
        data = facts.data
        lines.append(
            f"`{data.name}`: {data.episodes} episodes, {data.frames:,} frames at {data.fps:g} "
            f"frames/s. SHA-256 of its tables: `{data.sha256}`."
        )
    else:
        lines.append("The data set is not told.")
    demos = facts.config.get("demos")
    if isinstance(demos, dict):
        lines.append(f"Asked for by the run: {settings(demos)}.")
    lines += [f"On the Hub: [{one}](https://huggingface.co/datasets/{one})." for one in datasets]
    return "\n".join(lines)


def _results(facts: Facts) -> str:
    if not facts.results:
        return "## Results\n\nThese weights were not tested."
    rows = [_row(r) for r in facts.results]
    head = ("task", "settings", "episodes", "seed", "success", "95 % interval")
    return (
        "## Results\n\nIn simulation; the intervals are Wilson's and cover the episodes, not the "
        "training seed.\n\n" + _table(head, rows)
    )


def _row(r: Result) -> tuple[str, ...]:
    low, high = r.interval
    return (
        f"`{named(r.task)}`", settings(r.task), str(r.episodes), str(r.seed), f"{r.rate:.1%}",
        f"{low:.1%} to {high:.1%}",
    )  # fmt: skip


def _training(facts: Facts) -> str:
    origin, config = facts.origin, facts.config
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines = ["## Training", "", f"Git revision `{origin['revision']}`; {versions}."]
    if config:
        verb = VERBS.get(str(config.get("algo", {}).get("type", "bc")), PRACTICE)
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
    rows = [(key, str(value if value is not None else "not told")) for key, value in source.items()]
    return "## Pretrained weights\n\n" + _table(("", ""), rows)


def _use(facts: Facts, name: str) -> str:
    folder = Path("runs") / name.split("/")[-1]
    ours = all(part in facts.policy for part in PARTS)
    served = [f"vla export {folder} --out {folder}_onnx", f"vla serve {folder}_onnx"]
    return "\n".join([
        "## How to use", "", "```", f"vla hub pull {name} --out {folder}",
        f"vla eval {folder} --episodes 200 --seed 1000", *(served if ours else ()), "```",
        "", "The folder holds safetensors and JSON; nothing in it is run as code.",
    ])  # fmt: skip


def _limits(facts: Facts) -> str:
    lines = [
        "## Limits", "",
        f"- It drives {facts.robot['name']} with the channels, limits and rate that `policy.json` "
        "names; every other arm is refused.",
        "- What is told above was measured in simulation, on the tasks named. Nothing follows for "
        "other tasks, other scenes or a real arm.",
        "- It has no notion of safety: on a real arm let something that has stand between.",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Any) -> str:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])
