"""An exported policy on disk: ONNX graphs and a manifest that describes them; no torch here.

The manifest holds the hash of every file, which is checked before the file is used. Only the graphs
are executed, by a target of `deploy.targets`. An exported reward model is read the same way, with
a manifest of its own (`deploy.reward_model.artefact`).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tokenizers import Tokenizer

from deploy.runtime import external_data
from vla.contracts import config as configs
from vla.contracts import migrate
from vla.contracts.specs import RobotSpec
from vla.utils import tokenizer

FORMAT = 3
READABLE = (2, 3)
"""Formats that `vla.contracts.renames` knows the names of."""
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
STAGES = ("encode", "memory_update", "condition", "denoise")
"""Graphs of one decision, in order; the last runs once per denoising step."""
INPUTS = ("images", "proprio", "token_ids", "step_index", "is_first", "latent", "timestep",
          "prefix", "prefix_mask")  # fmt: skip
"""What `DeployedPolicy` gives the graphs, besides the state."""
DENOISE_FT = "denoise_ft"
"""Graph of the last denoising steps, where they have a network of their own."""
ACT = "act"
"""Graph of a whole decision, its denoising unrolled."""
NEW_STATE = "new_{}"
"""Name of the output that holds a tensor of the policy's state after the decision."""
MAX_LENGTH = 256
"""Longest axis of variable length: tokens of an instruction."""

Kind = Literal["policy", "reward_model"]
"""What was exported."""
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "nvfp4"]
CALIBRATED: tuple[Precision, ...] = ("int8", "fp8")
"""Precisions with ranges of activations, fitted on recorded observations."""
Dtype = Literal["float32", "int64", "uint8", "bool"]

M = TypeVar("M", bound="ExportManifest")
"""A class of manifests."""
_SOURCE = {"policy": "CHECKPOINT", "reward_model": "REWARD_MODEL"}


@dataclass(frozen=True, kw_only=True)
class Port:
    """One input or output of a graph."""

    name: str
    """Its name."""
    dtype: Dtype
    """Its type, as numpy names it."""
    shape: tuple[int | str, ...]
    """Its shape; a string names an axis of variable length."""
    onnx_name: str = ""
    """Name inside the ONNX file if it differs: of a port that was renamed since."""

    @property
    def tensor(self) -> str:
        """Name inside the ONNX file."""
        return self.onnx_name or self.name


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One ONNX file."""

    file: str
    """Name inside the folder."""
    sha256: str
    """SHA-256 of its bytes."""
    inputs: tuple[Port, ...]
    """Inputs."""
    outputs: tuple[Port, ...]
    """Outputs."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scaling between physical units and those of the graphs; one number per channel."""

    state_mean: tuple[float, ...]
    """Subtracted from proprioception."""
    state_std: tuple[float, ...]
    """Divisor of the difference."""
    action_center: tuple[float, ...]
    """Added to the scaled action."""
    action_scale: tuple[float, ...]
    """Factor of the action."""


@dataclass(frozen=True, kw_only=True)
class ExportManifest:
    """What the descriptions of exported policies and reward models share."""

    format: int
    """Format number."""
    batch: int
    """Rows of every graph."""
    graphs: dict[str, Graph]
    """Graphs by stage."""
    tokenizer: str
    """SHA-256 of the tokenizer's file."""
    versions: dict[str, str]
    """Versions of the packages that exported it."""
    parity: dict[str, Any] = field(default_factory=dict)
    """Result of `vla verify-export`; empty before."""

    def contradictions(self) -> Iterator[str]:
        """Yield a clause for each field that does not fit the others."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Manifest(ExportManifest):
    """Description of an exported policy: everything needed to drive an arm with the graphs."""

    kind: Literal["policy"] = "policy"
    """What was exported."""
    robot: RobotSpec
    """The arm."""
    views: tuple[int, ...]
    """Indices of the policy's cameras among the robot's."""
    chunk_size: int
    """Actions predicted per decision."""
    n_action_steps: int
    """Actions executed before the next decision: the period of memory writes."""
    max_prefix_len: int
    """Longest prefix that a chunk was trained to continue, in actions; 0 for none."""
    remembers: bool
    """Whether a decision depends on earlier ones."""
    state_shapes: dict[str, tuple[int, ...]]
    """Shape of one row of each tensor of the state, by name. It is an input of the graphs; the
    output `NEW_STATE` of its name is its next value."""
    path: Literal["diffusion", "flow"] = "diffusion"
    """How signal and noise are mixed along the denoising chain (see `deploy.runtime.chain`)."""
    alphas: tuple[float, ...]
    """Signal power of the noise schedule, by training timestep."""
    num_inference_steps: int
    """Denoising steps of a decision, unless the caller chooses another number."""
    ft_denoising_steps: int
    """How many of the last ones use graph `denoise_ft`."""
    scaling: Scaling
    """Units."""
    precision: Precision
    """Of convolutions and products with learned matrices; everything else, inputs and outputs
    included, is FP32."""
    task: dict[str, Any]
    """Configuration of the task that it was trained on."""
    instructions: tuple[str, ...]
    """Instructions that it was trained on."""
    step: int
    """Training updates."""
    revision: str
    """Git revision of the code that trained it."""
    pretrained: dict[str, Any] = field(default_factory=dict)
    """Name, revision, licence and hash of a pretrained backbone's weights; empty for none."""

    def contradictions(self) -> Iterator[str]:
        """Yield a clause for each field that does not fit the others."""
        channels, cameras = len(self.robot.channels), len(self.robot.cameras)
        if not 1 <= self.num_inference_steps <= len(self.alphas) or self.batch < 1:
            yield f"{self.num_inference_steps} steps of {len(self.alphas)}, batch {self.batch}"
        if any(not 0 <= view < cameras for view in self.views):
            yield f"views {self.views} of {cameras} cameras"
        for name, numbers in vars(self.scaling).items():
            if len(numbers) != channels:
                yield f"scaling.{name} has {len(numbers)} numbers for {channels}"
        for stage in STAGES:
            if stage not in self.graphs:
                yield f"lacks graph {stage!r}"
        outputs = {port.name: port.shape for port in self.graphs[STAGES[1]].outputs}
        for name, shape in self.state_shapes.items():
            if outputs.get(NEW_STATE.format(name)) != (self.batch, *shape):
                yield f"state_shapes.{name} is no output of graph {STAGES[1]!r} of that shape"
        yield from self._unconnected()

    def _unconnected(self) -> Iterator[str]:
        """Yield a clause for each input of a graph that nothing gives, and for a missing chunk."""
        given = at_once = {*INPUTS, *self.state_shapes}
        for name in (*STAGES, *sorted(self.graphs.keys() - {*STAGES})):
            for port in self.graphs[name].inputs:
                if port.name not in (at_once if name == ACT else given):
                    yield f"graph {name!r} takes {port.name!r}, which nothing gives"
            given = given | {port.name for port in self.graphs[name].outputs}
        for name in (STAGES[-1], DENOISE_FT, ACT):
            if name in self.graphs and all(
                port.name != "clean" for port in self.graphs[name].outputs
            ):
                yield f"graph {name!r} does not give 'clean'"


@dataclass(frozen=True, kw_only=True)
class ExportedGraphs:
    """Checked graphs of a policy or of a reward model, as a target opens them."""

    folder: Path
    """Their folder."""
    manifest: ExportManifest
    """Their description: `graphs` by name."""
    tokenizer: Tokenizer
    """Instructions to token ids."""

    def path(self, graph: str) -> Path:
        """Return the file of a graph."""
        return self.folder / self.manifest.graphs[graph].file

    def graph_bytes(self, graph: str) -> bytes:
        """Return the file of a graph: the very bytes whose hash the manifest holds.

        A target loads these and not the path: the file may be replaced at any time.

        Raises:
            ValueError: it is gone, was changed since it was opened, or keeps weights elsewhere.
        """
        path = self.path(graph)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(
                f"{path}: cannot be read ({error.strerror}); export again, and open it anew"
            ) from error
        if hashlib.sha256(data).hexdigest() != self.manifest.graphs[graph].sha256:
            raise ValueError(
                f"{path}: was changed since it was opened; open it anew, or export again"
            )
        if external_data.has_external_data(data):
            raise ValueError(
                f"{path}: keeps weights in another file, which no hash covers; expected all in one "
                "file: export again"
            )
        return data


@dataclass(frozen=True, kw_only=True)
class Artefact(ExportedGraphs):
    """An exported policy whose files were checked."""

    manifest: Manifest
    """Its description."""

    def check_origin(self, task: dict[str, Any], step: int) -> None:
        """Raise ValueError unless this was exported from a checkpoint of that task and update."""
        of = self.manifest
        if (task, step) != (of.task, of.step):
            raise ValueError(
                f"{self.folder}: exported after {of.step} updates on {of.task.get('type')}, "
                f"the checkpoint has {step} on {task.get('type')}; give the checkpoint that it was "
                "exported from, or export again"
            )


def kind_of(folder: Path) -> str:
    """Return a folder's `Kind`, "nothing" or "damaged"."""
    path = folder / MANIFEST
    if not path.is_file():
        return "nothing"
    try:
        return _kind(json.loads(path.read_text()))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return "damaged"


def read(folder: Path) -> Artefact:
    """Read an exported policy and check every file of it.

    Raises:
        ValueError: it is none, or a file is missing, damaged or was changed since the export.
    """
    manifest = read_manifest(folder, Manifest, "policy")
    return Artefact(folder=folder, manifest=manifest, tokenizer=read_files(folder, manifest))


def read_manifest(folder: Path, description: type[M], kind: Kind) -> M:
    """Return the manifest in the folder of an exported policy or reward model.

    Raises:
        ValueError: there is none, it is damaged, contradicts itself, or is of another kind.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(
            f"{folder}: no exported {prose(kind)} there (expected a folder with {MANIFEST}); give "
            f"what `vla export {_SOURCE[kind]} --out FOLDER` wrote"
        )
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); export again") from error
    got = _kind(content)
    if got in _SOURCE and got != kind:
        raise ValueError(
            f"{folder}: an exported {prose(got)}, expected an exported {prose(kind)}; give what "
            f"`vla export {_SOURCE[kind]} --out FOLDER` wrote"
        )
    if not isinstance(content, dict) or content.get("format") not in READABLE:
        version = content.get("format") if isinstance(content, dict) else content
        raise ValueError(f"{path}: format {version!r}, expected 2 or {FORMAT}; export again")
    try:
        if content["format"] == 2:
            content = {**content, "graphs": migrate.graphs(kind, content.get("graphs"))}
        content = {**migrate.manifest(content), "format": FORMAT}
        manifest: M = configs.from_json(description, content, str(path))
        for clause in manifest.contradictions():
            raise ValueError(clause)
    except ValueError as error:
        raise configs.of_file(path, error, "export again") from error
    return manifest


def read_files(folder: Path, manifest: ExportManifest) -> Tokenizer:
    """Check every file in a folder that its manifest names; return the tokenizer.

    Raises:
        ValueError: one is missing, damaged or was changed since the export.
    """
    for name, sha256 in files(manifest).items():
        if Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(
                f"{folder / MANIFEST}: file {name!r} is not inside the folder; export again"
            )
        _check_file(folder / name, sha256)
    return tokenizer.load(folder / TOKENIZER, "export again")


def write_manifest(folder: Path, manifest: ExportManifest) -> None:
    """Write the manifest of an exported policy or reward model; the file is replaced as a whole."""
    new = folder / f".{MANIFEST}.new"
    new.write_text(json.dumps(configs.to_json(manifest), indent=1) + "\n")
    new.replace(folder / MANIFEST)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):  # hashlib.file_digest came with Python 3.11
            digest.update(part)
    return digest.hexdigest()


def files(manifest: ExportManifest) -> dict[str, str]:
    """Return the SHA-256 of every file but the manifest, by name."""
    return {**{g.file: g.sha256 for g in manifest.graphs.values()}, TOKENIZER: manifest.tokenizer}


def prose(kind: str) -> str:
    """Return a kind as messages name it."""
    return kind.replace("_", " ")


def _kind(content: Any) -> str:
    """Return a manifest's kind; the oldest ones have none and are of policies."""
    kind = str(content.get("kind", "policy")) if isinstance(content, dict) else "damaged"
    return {"critic": "reward_model"}.get(kind, kind)


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: missing; copy the whole folder, or export again")
    got = sha256(path)
    if got != expected:
        raise ValueError(
            f"{path}: SHA-256 {got[:12]}..., the manifest says {expected[:12]}...; it was changed "
            "or damaged: export again"
        )
