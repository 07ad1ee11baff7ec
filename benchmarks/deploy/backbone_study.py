"""Does every family of pretrained models load, learn, survive saving, and run without torch?

`python -m benchmarks.deploy.backbone_study` makes a small random model of each family and runs the
verbs that a user types: `vla model tiny`, `vla train`, `vla export`, `vla verify-export`. The
folder of the model is deleted before anything is loaded: the checkpoint must be enough.
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from deploy.export import recorded
from deploy.runtime import artefact as artefacts
from vla import checkpoint, cli
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.model_command import FAMILIES
from vla.policies.vla import VLAPolicy
from vla.utils import arguments, files

TOWERS = ("siglip", "dinov2")
"""Families of the backbone `vision_text`; the others are of `vlm`."""
ACTS = 5
"""Decisions that have to be the same after loading."""
BACKBONE = "--policy.backbone."
SMALL = ("image-px", "32", "pooled-tokens-per-side", "2", "bottleneck", "16", "token-width", "16",
         "pooled-width", "32", "lora-rank", "4")  # fmt: skip
"""Settings of a backbone that fit a small model, as names and values."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Take a small random model of every family from its folder to ONNX."""

    out: Path = Path("runs/backbone-study")
    """Folder of backbones.json; families that are in it are not repeated."""
    families: tuple[str, ...] = FAMILIES
    """Families."""
    finetune_mode: Literal["frozen", "lora", "full"] = "lora"
    """How the pretrained weights are fine-tuned."""
    updates: int = 20
    """Updates of training."""
    decisions: int = 200
    """Decisions in which the export is compared with the checkpoint."""

    def __post_init__(self) -> None:
        """Refuse unknown families and numbers out of range."""
        validate_min(self, updates=2, decisions=1)
        unknown = [name for name in self.families if name not in FAMILIES]
        if unknown or not self.families:
            raise ValueError(f"families: got {self.families}, expected some of {FAMILIES}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of one family."""

    finetune_mode: str
    """How it was fine-tuned."""
    loss: tuple[float, float] = (0.0, 0.0)
    """Of the first and the last update."""
    same: bool = False
    """Whether a checkpoint that is loaded, saved and loaded again acts the same to the bit."""
    parity: float = 0.0
    """Largest difference of an action of the export, as a share of its joint's range."""
    seconds: float = 0.0
    """Time of all steps."""
    wrong: str = ""
    """Error; empty if nothing failed."""


def take(family: str, place: Path, data: Path, args: StudyArgs) -> Row:
    """Run all steps for one family.

    Args:
        family: Its name.
        place: Output folder; emptied first.
        data: Demonstrations of `reach`.
        args: Settings of the study.
    """
    begin = time.perf_counter()
    shutil.rmtree(place, ignore_errors=True)
    model, run, onnx = place / "model", place / "run", place / "onnx"
    try:
        vla("model", "tiny", family, "--out", str(model))
        vla(*training(family, model, run, data, args))
        shutil.rmtree(model)
        same = survives(run, place / "again", data)
        vla("export", str(run), "--out", str(onnx))
        vla("verify-export", str(onnx), "--reference-checkpoint", str(run), "--dataset", str(data),
            "--episodes", "0",
            "--decisions", str(args.decisions), "--stages", "5")  # fmt: skip
    except ValueError as error:
        return Row(finetune_mode=args.finetune_mode, wrong=str(error), seconds=time.perf_counter() - begin)
    parity = (artefacts.read(onnx).manifest.parity or {})["found"]["action"]
    wrong = "" if same else "acts differently after saving and loading"
    return Row(
        finetune_mode=args.finetune_mode, loss=losses(run), same=same, parity=float(parity), wrong=wrong,
        seconds=time.perf_counter() - begin,
    )  # fmt: skip


def training(family: str, model: Path, run: Path, data: Path, args: StudyArgs) -> list[str]:
    """Return the command, as words after `vla`, that trains it."""
    kind = "vision_text" if family in TOWERS else "vlm"
    settings = ("type", kind, "model", str(model), "finetune-mode", args.finetune_mode, *SMALL)
    flags = [
        (BACKBONE + name, value) for name, value in zip(settings[::2], settings[1::2], strict=True)
    ]
    return [
        "train", "--recipe", "reach", "--dataset", str(data), "--out", str(run), "--steps",
        str(args.updates), "--algo.batch-size", "16", "--log-every", "1", "--threads", "1",
        "--eval.every", "0", "--eval.final-episodes", "0",
        *(word for flag in flags for word in flag),
    ]  # fmt: skip


def vla(*words: str) -> None:
    """Run a verb.

    Raises:
        ValueError: it failed; the last line of its output.
    """
    line = [sys.executable, "-m", "vla.cli", *words]
    done = subprocess.run(line, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [row for row in done.stderr.splitlines() if row.strip()] or ["no output"]
        raise ValueError(f"`vla {' '.join(words[:2])}` ended with {done.returncode}: {lines[-1]}")


def losses(run: Path) -> tuple[float, float]:
    """Return the loss of the first and of the last update of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    values = [float(row["loss"]) for row in rows if "loss" in row]
    return values[0], values[-1]


def survives(run: Path, place: Path, data: Path) -> bool:
    """Return whether a policy acts the same to the bit after saving and loading."""
    policy, origin = checkpoint.load(run)
    checkpoint.save(policy, origin, place, policy.state_dict())
    again, _ = checkpoint.load(place)
    return torch.equal(acted(policy, data), acted(again, data))


def acted(policy: VLAPolicy, data: Path) -> torch.Tensor:
    """Return the actions of a policy on the first recorded observations."""
    rng, state, actions = np.random.default_rng(0), policy.initial_state(1), []
    for obs in recorded.observations(recorded.load(data, policy), policy.robot.control_hz, ACTS):
        noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
        chunk, state = policy.act(obs, state, noise)
        actions.append(torch.as_tensor(chunk.values))
    return torch.cat(actions)


def sheet(rows: dict[str, Row]) -> Table:
    """Return the results as a table."""
    table = Table("family", "learns", "loss, first to last update", "saved and loaded: acts",
                  "ONNX, of a joint's range", "took", "")  # fmt: skip
    for family, row in rows.items():
        whole = not row.wrong
        table.add_row(
            family, row.finetune_mode, f"{row.loss[0]:.3f} to {row.loss[1]:.3f}" if whole else "",
            "the same to the bit" if row.same else "", f"{row.parity:.1e}" if whole else "",
            f"{row.seconds:.0f} s", row.wrong,
        )  # fmt: skip
    return table


def earlier(path: Path, args: StudyArgs) -> dict[str, Row]:
    """Return an earlier call's rows of the requested families that did not fail."""
    if not path.is_file():
        return {}
    try:
        rows = {n: configs.from_json(Row, r, n) for n, r in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: damaged ({error}); delete it to start again") from error
    return {
        name: row for name, row in rows.items()
        if name in args.families and row.finetune_mode == args.finetune_mode and not row.wrong
    }  # fmt: skip


def main(argv: list[str]) -> int:
    """Run every family, print and write; return 1 if one of them failed.

    Raises:
        ValueError: no demonstrations could be recorded.
    """
    args = arguments.read(StudyArgs, argv, "python -m benchmarks.deploy.backbone_study")
    path, data = args.out / "backbones.json", args.out / "data"
    rows = earlier(path, args)
    args.out.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        vla("demos", "reach", "--episodes", "6", "--workers", "1", "--out", str(data))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, transient=True) as bar:
        line = bar.add_task("families", total=len(args.families), completed=len(rows))
        for family in args.families:
            if family in rows:
                continue
            bar.update(line, description=family)
            rows[family] = take(family, args.out / family, data, args)
            files.write_json(path, {n: asdict(r) for n, r in rows.items()})
            bar.advance(line)
    Console(highlight=False, width=140).print(sheet({n: rows[n] for n in args.families}))
    return int(any(row.wrong for row in rows.values()))


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.deploy.backbone_study:main", sys.argv[1:]))
