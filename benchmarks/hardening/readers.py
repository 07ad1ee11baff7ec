"""The readers that take files of strangers: how to make a small good input, and how to read it."""

import functools
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.hardening import other_formats, verbs
from benchmarks.reward_models import synthetic_dataset
from deploy.runtime import artefact
from deploy.server import wire
from deploy.server.server import Limits, Server
from reward_models.core import checkpoint as reward_model_checkpoint
from robot_bridge.recording.convert_bag import ConvertConfig, convert_bags
from training.rl.experience import episode_store
from training.rl.experience.episode import Episode
from vla.data.decode import FrameChoice, decode_views
from vla.data.import_command import ImportConfig, import_dataset
from vla.data.reader import open_dataset, read_columns
from vla.runtime import policy_loader

SMALL = "--policy.backbone.image-px 32 --policy.chunk-size 4 --policy.n-action-steps 2"
ANSWER_S = 2.0
"""How long a healthy server may take to answer a new client, in s."""


@dataclass(frozen=True)
class Reader:
    """A reader of files."""

    make: Callable[[Path], object]
    """Writes a good input into a folder."""
    read: Callable[[Path, Path], object]
    """Reads the input in a folder; may write to the second path."""
    share: int
    """Inputs for it among those of all, relatively."""
    rehash: bool = False
    """Whether a manifest names hashes of the files, which are made anew after damage."""


# --- good inputs -----------------------------------------------------------------------------


def _demos(folder: Path) -> Path:
    return verbs.make(folder.parent, "demos")


def _small_demos(folder: Path) -> None:
    shutil.copytree(_demos(folder), folder / "set")


def _run(folder: Path) -> Path:
    out = folder.parent / "run"
    if not out.exists():
        verbs.must(f"{verbs.TRAIN} {SMALL} --steps 1 --dataset {_demos(folder)} --out {out}")
    return out / "checkpoint"


def _checkpoint(folder: Path) -> None:
    shutil.copytree(_run(folder), folder / "checkpoint")
    for file in (folder / "checkpoint").glob("trainer*"):
        file.unlink()  # `--policy.path` and `vla eval` read none


def _export(folder: Path) -> None:
    verbs.must(f"export {_run(folder).parent} --out {folder / 'exported'}")


def _reward_model(folder: Path) -> None:
    synthetic_dataset.make_reward_model(folder / "reward_model")


def _manifest(folder: Path) -> None:
    _export(folder)
    exported = folder / "exported"
    for file in exported.iterdir():
        if file.name != artefact.MANIFEST:
            file.unlink()


def _experience(folder: Path) -> None:
    episodes = [_episode(number) for number in range(2)]
    for iteration in range(2):
        name = episode_store.iteration_name(iteration)
        episode_store.write_iteration(folder / "experience", name, episodes)


def _episode(number: int, t: int = 3) -> Episode:
    rng = np.random.default_rng(number)
    return Episode(
        images=rng.integers(0, 255, (t + 1, 2, 8, 8, 3), np.uint8),
        proprio=rng.random((t + 1, 2), np.float32), time_s=np.arange(t + 1) * 0.2,
        actions=rng.random((t, 2, 2), np.float32), step=2 * np.arange(t + 1),
        decision_index=np.arange(t), action_source=np.zeros(t, np.int8),
        latents=rng.random((t, 3, 4, 2), np.float32), log_prob=rng.random((t, 2), np.float32),
        progress=np.linspace(0, 0.5, t + 1, dtype=np.float32), reward=np.zeros(t, np.float32),
        terminated=False, success=False, task="push it", number=number, seed=3, version=1,
    )  # fmt: skip


def _frames(folder: Path) -> None:
    """Write a hello and two requests of one episode, as a client sends them; and the policy."""
    _export(folder.parent / "served")
    policy = policy_loader.open_policy(folder.parent / "served/exported", 1).policy
    hello = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "control"}
    (folder / "0-hello.frame").write_bytes(b"".join(wire.parts(hello)))
    robot, rng = policy.robot, np.random.default_rng(0)
    camera = robot.cameras[0]
    shape = (1, len(robot.cameras), camera.height_px, camera.width_px, 3)
    for k in range(2):
        say = {"do": "act", "sequence": k, "age_s": 0.0, "task": ["reach"]}
        arrays = {
            "time_s": np.array([k * policy.n_action_steps / robot.control_hz]),
            "noise": rng.standard_normal((1, *policy.noise_shape), np.float32),
            "proprio": np.array([robot.home], np.float32), "image_ok": np.ones(shape[:2], np.bool_),
            "images": rng.integers(0, 256, shape, np.uint8),
        }  # fmt: skip
        arrays |= {name: np.asarray(x) for name, x in policy.initial_state(1).tensors.items()}
        (folder / f"{k + 1}-act.frame").write_bytes(b"".join(wire.parts(say, arrays)))


# --- reading ---------------------------------------------------------------------------------


def _read_v3(folder: Path, out: Path) -> None:
    info = open_dataset(folder / "set")
    read_columns(info)
    first = FrameChoice(episode=np.zeros(1, np.int64), step=np.zeros(1, np.int64))
    decode_views(info, info.cameras, first, (info.cameras[0].height_px, info.cameras[0].width_px))


def _inspect(folder: Path, out: Path) -> None:
    from vla.data.inspection import command

    command.main([str(folder / "set"), "--out", str(out)])


def _import(folder: Path, out: Path, name: str) -> None:
    source = folder / name
    import_dataset(ImportConfig(source=source, out=out, task="reach", fps=10))


def _convert(folder: Path, out: Path) -> None:
    convert_bags(ConvertConfig(bags=(folder / "bags",), out=out, fps=10))


def _read_manifest(folder: Path, out: Path) -> None:
    artefact.kind_of(folder / "exported")
    artefact.read_manifest(folder / "exported", artefact.Manifest, "policy")


def _read_experience(folder: Path, out: Path) -> None:
    for name in episode_store.iterations(folder / "experience"):
        episode_store.read_iteration(folder / "experience", name)
    episode_store.read_newest(folder / "experience", 3)


@functools.cache
def _server(exported: Path) -> tuple[Server, tuple[str, int]]:
    """Serve a policy until this process ends."""
    policy = policy_loader.open_policy(exported, 1).policy
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(policy, listener, limits=Limits(max_clients=4))
    threading.Thread(target=server.serve, daemon=True).start()
    return server, listener.getsockname()


def _serve(folder: Path, out: Path) -> None:
    """Send the bytes to a server; then it must answer another client, and have had no fault.

    Raises:
        RuntimeError: it does not, or it had.
    """
    server, address = _server(out.parents[1] / "base/served/exported")
    before = server.counts.errors
    with socket.create_connection(address, timeout=ANSWER_S) as client:
        try:
            client.sendall(b"".join(p.read_bytes() for p in sorted(folder.rglob("*.frame"))))
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
        except OSError:  # it hung up on us, or waits for more
            pass
    hello = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "watch"}
    try:
        with socket.create_connection(address, timeout=ANSWER_S) as healthy:
            healthy.sendall(b"".join(wire.parts(hello)))
            said, _ = wire.FrameReader(healthy).read()
    except (OSError, wire.Closed) as error:
        raise RuntimeError(f"the server does not answer a good hello ({error})") from error
    if said.get("ok") is not True:
        raise RuntimeError(f"the server answers a good hello with {said}")
    if server.counts.errors > before:
        raise RuntimeError("a connection ended by a fault of the server")


READERS = {
    "v3": Reader(_small_demos, _read_v3, 20),
    "inspect": Reader(_small_demos, _inspect, 2),
    "v2": Reader(
        lambda folder: other_formats.lerobot_v2(_demos(folder), folder / "set"),
        functools.partial(_import, name="set"), 8,
    ),
    "hdf5": Reader(
        lambda folder: verbs.MAKERS["arm.hdf5"](folder, folder / "arm.hdf5"),
        functools.partial(_import, name="arm.hdf5"), 10,
    ),
    "rlds": Reader(
        lambda folder: other_formats.rlds(_demos(folder), folder / "arm/1.0.0"),
        functools.partial(_import, name="arm/1.0.0"), 8,
    ),
    "mcap": Reader(lambda folder: verbs.MAKERS["bags"](folder, folder / "bags"), _convert, 8),
    "checkpoint": Reader(
        _checkpoint,
        lambda folder, out: policy_loader.open_policy(folder / "checkpoint", 1, ("torch",)), 6,
    ),
    "artefact": Reader(
        _export,
        lambda folder, out: policy_loader.open_policy(folder / "exported", 1), 4, rehash=True,
    ),
    "reward model": Reader(
        _reward_model, lambda folder, out: reward_model_checkpoint.load(folder / "reward_model"), 6,
    ),
    "experience": Reader(_experience, _read_experience, 8),
    "manifest": Reader(_manifest, _read_manifest, 12),
    "frames": Reader(_frames, _serve, 8),
}  # fmt: skip
"""By name."""


def rehash(folder: Path) -> None:
    """Give the manifest in a folder the hashes that its files have now."""
    path = folder / "exported" / artefact.MANIFEST
    text = path.read_text()
    manifest = artefact.read_manifest(path.parent, artefact.Manifest, "policy")
    for name, expected in artefact.files(manifest).items():
        if (path.parent / name).is_file():
            text = text.replace(expected, artefact.sha256(path.parent / name))
    path.write_text(text)
