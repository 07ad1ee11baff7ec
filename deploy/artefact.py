"""An exported policy on disk: ONNX graphs and a manifest that says what they are; no torch here.

Every file is hashed in the manifest and checked before it is used. Nothing in the folder is run but
the graphs, by an engine of `deploy.targets`. What is exported of a critic is read alike, with a
manifest of its own (`deploy.critic.artefact`).
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from tokenizers import Tokenizer

from vla.contracts import config as configs
from vla.contracts.specs import RobotSpec

FORMAT = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
STAGES = ("encode", "memory", "refine", "denoise")
"""Graphs of one decision, in order; the last runs once per denoising step."""
LATE = "denoise_late"
"""Graph of the last denoising steps, where they have a network of their own."""
WHOLE = "decide"
"""Graph of a whole decision, its denoising unrolled."""
LONGEST = 256
"""Most tokens of an instruction; the axis of no port is longer where it may differ."""

Kind = Literal["policy", "critic"]
"""What a folder was exported of."""
Precision = Literal["fp32", "fp16", "bf16", "int8"]
Dtype = Literal["float32", "int64", "uint8", "bool"]

M = TypeVar("M")
"""A class of manifests."""
_SOURCE = {"policy": "CHECKPOINT", "critic": "CRITIC"}


@dataclass(frozen=True, kw_only=True)
class Port:
    """One input or output of a graph."""

    name: str
    """Its name."""
    dtype: Dtype
    """What numpy calls its type."""
    shape: tuple[int | str, ...]
    """Its shape; a word names an axis that may differ from call to call."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One ONNX file."""

    file: str
    """Name inside the folder."""
    sha256: str
    """Of its bytes."""
    inputs: tuple[Port, ...]
    """What it takes."""
    outputs: tuple[Port, ...]
    """What it gives."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Between physical units and those of the graphs; one number per channel."""

    state_mean: tuple[float, ...]
    """Subtracted from what is measured."""
    state_std: tuple[float, ...]
    """What that is divided by."""
    action_center: tuple[float, ...]
    """Added to the action."""
    action_scale: tuple[float, ...]
    """What that is multiplied by before."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that is needed to drive an arm with the graphs."""

    kind: Literal["policy"] = "policy"
    """What was exported."""
    format: int
    """Version of this description."""
    robot: RobotSpec
    """The arm."""
    views: tuple[int, ...]
    """Cameras that the policy looks through, as places among the robot's."""
    chunk: int
    """Actions predicted per decision."""
    execute: int
    """Actions executed before the next decision: the period of memory writes."""
    prefix: int
    """Most settled actions that a chunk was trained to go on from; 0 for none."""
    memory: tuple[int, int, int]
    """Slots, tokens in each, numbers in a token."""
    path: Literal["diffusion", "flow"] = "diffusion"
    """How signal and noise go together on the way of a chain (see `deploy.chain`)."""
    alphas: tuple[float, ...]
    """Signal power of the noise schedule, by training timestep."""
    steps: int
    """Denoising steps of a decision, unless the caller says otherwise."""
    late: int
    """How many of them, the last ones, `denoise_late` does."""
    scaling: Scaling
    """Units."""
    batch: int
    """Rows of every graph."""
    precision: Precision
    """Of convolutions and products with learned matrices; what is between them, and what goes in
    and out, is FP32."""
    graphs: dict[str, Graph]
    """Graphs by stage."""
    tokenizer: str
    """SHA-256 of the tokenizer's file."""
    task: dict[str, Any]
    """Task that it was trained on."""
    instructions: tuple[str, ...]
    """Instructions that it was trained on."""
    step: int
    """Updates it was trained for."""
    revision: str
    """Git revision of the code that trained it."""
    versions: dict[str, str]
    """Versions of what exported it."""
    pretrained: dict[str, Any] = field(default_factory=dict)
    """Name, revision, licence and hash of a pretrained backbone's weights; empty for none."""
    parity: dict[str, Any] = field(default_factory=dict)
    """What `vla parity` found; empty before."""


@dataclass(frozen=True, kw_only=True)
class Artefact:
    """An exported policy that was checked."""

    folder: Path
    """Where it is."""
    manifest: Manifest
    """What it is."""
    tokenizer: Tokenizer
    """Instructions to token ids."""

    def check_origin(self, task: dict[str, Any], step: int) -> None:
        """Raise ValueError unless this was exported from a checkpoint of that task and update."""
        mine = self.manifest
        if (task, step) != (mine.task, mine.step):
            raise ValueError(
                f"{self.folder}: exported after {mine.step} updates on {mine.task.get('type')}, "
                f"the checkpoint has {step} on {task.get('type')}; give the checkpoint that it was "
                "exported from, or export again"
            )

    def path(self, graph: str) -> Path:
        """Return the file of a graph."""
        return self.folder / self.manifest.graphs[graph].file


@runtime_checkable
class Exported(Protocol):
    """What an engine opens: graphs that were checked, of a policy or of a critic."""

    @property
    def manifest(self) -> Any:
        """What they are: `graphs` by name."""
        ...

    def path(self, graph: str) -> Path:
        """Return the file of a graph."""
        ...


def is_artefact(folder: Path, kind: Kind = "policy") -> bool:
    """Whether a folder is what `vla export` wrote of a policy, or of a critic.

    One whose manifest is damaged passes for either: exporting again is what mends it.
    """
    return kind_of(folder) in (kind, "damaged")


def kind_of(folder: Path) -> str:
    """Return what a folder was exported of, "nothing" or "damaged"."""
    path = folder / MANIFEST
    if not path.is_file():
        return "nothing"
    try:
        return _kind(json.loads(path.read_text()))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return "damaged"


def read(folder: Path) -> Artefact:
    """Read an exported policy and check every file of it.

    Raises:
        ValueError: it is not one, or a file is missing, damaged, or another than was exported.
    """
    manifest = read_manifest(folder, Manifest, "policy")
    _check(manifest, folder / MANIFEST)
    return Artefact(folder=folder, manifest=manifest, tokenizer=read_files(folder, manifest))


def read_manifest(folder: Path, description: type[M], kind: Kind) -> M:
    """Return the manifest of what was exported of a policy or a critic, as JSON allows it.

    Args:
        folder: Where it is.
        description: Its class.
        kind: What is expected there.

    Raises:
        ValueError: there is none, it is damaged, or of something else.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder}: no exported {kind} there (expected a folder with {MANIFEST}); give what "
            f"`vla export {_SOURCE[kind]} --out FOLDER` wrote"
        )
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); export again") from error
    got = _kind(found)
    if got in _SOURCE and got != kind:
        raise ValueError(
            f"{folder}: an exported {got}, expected an exported {kind}; give what "
            f"`vla export {_SOURCE[kind]} --out FOLDER` wrote"
        )
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        version = found.get("format") if isinstance(found, dict) else found
        raise ValueError(f"{path}: format {version!r}, expected {FORMAT}; export again")
    try:
        manifest: M = configs.from_json(description, found, str(path))
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise ValueError(f"{where}{error}; export again") from error
    return manifest


def read_files(folder: Path, manifest: Any) -> Tokenizer:
    """Check every file that a manifest names; return the tokenizer.

    Args:
        folder: Where they are.
        manifest: Of a policy or a critic: its `graphs` and `tokenizer`.

    Raises:
        ValueError: one is missing, damaged, or another than was exported.
    """
    for name, sha256 in files(manifest).items():
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(
                f"{folder / MANIFEST}: file {name!r} is not inside the folder; export again"
            )
        _check_file(folder / name, sha256)
    return _tokenizer(folder / TOKENIZER)


def write_manifest(folder: Path, manifest: Any) -> None:
    """Describe what was exported into a folder, of a policy or a critic."""
    fresh = folder / f".{MANIFEST}.new"
    fresh.write_text(json.dumps(configs.to_json(manifest), indent=1) + "\n")
    fresh.replace(folder / MANIFEST)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):  # hashlib.file_digest came with Python 3.11
            digest.update(part)
    return digest.hexdigest()


def files(manifest: Any) -> dict[str, str]:
    """Return the SHA-256 of every file but the manifest, by name."""
    return {**{g.file: g.sha256 for g in manifest.graphs.values()}, TOKENIZER: manifest.tokenizer}


def _kind(found: Any) -> str:
    """Return what a manifest says it is of; those before there were critics do not say."""
    return str(found.get("kind", "policy")) if isinstance(found, dict) else "damaged"


def _check(manifest: Manifest, path: Path) -> None:
    """Raise ValueError unless the parts of a description fit each other."""
    channels, scaling = len(manifest.robot.channels), manifest.scaling
    wrong = None
    for name in ("state_mean", "state_std", "action_center", "action_scale"):
        if len(getattr(scaling, name)) != channels:
            wrong = f"scaling.{name} has {len(getattr(scaling, name))} numbers for {channels}"
    missing = [name for name in STAGES if name not in manifest.graphs]
    if missing:
        wrong = f"lacks graph {missing[0]!r}"
    if not 1 <= manifest.steps <= len(manifest.alphas) or manifest.batch < 1:
        wrong = f"{manifest.steps} steps of {len(manifest.alphas)}, batch {manifest.batch}"
    if any(not 0 <= view < len(manifest.robot.cameras) for view in manifest.views):
        wrong = f"views {manifest.views} of {len(manifest.robot.cameras)} cameras"
    if wrong:
        raise ValueError(f"{path}: {wrong}; export again")


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: missing; copy the whole folder, or export again")
    got = sha256(path)
    if got != expected:
        raise ValueError(
            f"{path}: SHA-256 {got[:12]}..., the manifest says {expected[:12]}...; it was changed "
            "or damaged: export again"
        )


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a damaged file
        raise ValueError(f"{path}: damaged tokenizer ({error}); export again") from error
