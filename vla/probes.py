"""Checks of parts of this machine; `vla doctor` runs each in a separate process.

A probe returns details in a few words, raises `Missing` for a missing part, and any other error for
a part that fails.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")
RCLPY_WAIT_S = 15.0


class Missing(Exception):
    """The part is not on this machine."""


def python() -> str:
    """Does the interpreter support the locked packages?"""
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info < (3, 14):
        raise RuntimeError(f"{version}, expected 3.11 to 3.13")
    return version


def cores() -> str:
    """How many cores may this process use?"""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}"


def memory() -> str:
    """Is there memory for two simulators and one training run?"""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES") / GIB
    free = page * os.sysconf("SC_AVPHYS_PAGES") / GIB
    if total < 3.5:
        raise RuntimeError(f"{total:.1f} GiB in all, expected at least 4")
    return f"{total:.1f} GiB, {free:.1f} GiB unused"


def disk() -> str:
    """Is there room for a data set, its videos and checkpoints?"""
    free = shutil.disk_usage(Path.cwd()).free / GIB
    if free < 2:
        raise RuntimeError(f"{free:.1f} GiB free here, expected at least 2")
    return f"{free:.1f} GiB free here"


SCENE = """
<mujoco>
  <visual><quality shadowsize="0" offsamples="0"/></visual>
  <worldbody>
    <light pos="0 0 2"/>
    <camera name="front" pos="0.9 0 0.7" xyaxes="0 1 0 -0.6 0 0.8"/>
    <geom type="box" size="0.5 0.5 0.02" rgba="0.6 0.5 0.4 1"/>
    <geom type="capsule" size="0.03" fromto="0 0 0 0.1 0 0.3" rgba="0.9 0.9 0.9 1"/>
    <geom type="sphere" size="0.04" pos="0.1 0.1 0.06" rgba="0.9 0.1 0.1 1"/>
  </worldbody>
</mujoco>
"""


def egl() -> str:
    """Does MuJoCo render without a display, and how many 96 px frames per second, shadows off?"""
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 96, 96) as renderer:
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.update_scene(data, "front")
        if int(renderer.render().max()) == 0:
            raise RuntimeError("every rendered pixel is black")
        frames, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < 1.0:
            renderer.update_scene(data, "front")
            renderer.render()
            frames += 1
        rate_hz = frames / (time.perf_counter() - start_s)
    return f"MuJoCo {mujoco.__version__}, {rate_hz:.0f} frames/s at 96 px, shadows off"


def torch() -> str:
    """Does PyTorch compute a gradient?"""
    torch = _import("torch")
    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()
    if float(weight.grad[0, 0]) != 16.0:  # each entry meets 8 rows and 8 columns of ones
        raise RuntimeError(f"wrong gradient {float(weight.grad[0, 0])}, expected 16")
    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def gpu() -> str:
    """Does PyTorch compute on an NVIDIA GPU?"""
    torch = _import("torch")
    if not torch.cuda.is_available():
        raise Missing("no NVIDIA GPU that PyTorch can use; training runs on the CPU")
    if float(torch.ones(4, 4, device="cuda").sum()) != 16.0:
        raise RuntimeError("wrong sum on the GPU")
    free, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {free / GIB:.0f} of {total / GIB:.0f} GiB free"


def lerobot() -> str:
    """Can LeRobot's data set class be imported, and how long does that take?"""
    start_s = time.perf_counter()
    _import("lerobot")
    importlib.import_module("lerobot.datasets.lerobot_dataset")
    version = importlib.metadata.version("lerobot")
    return f"{version}, data sets import in {time.perf_counter() - start_s:.1f} s"


def video() -> str:
    """Does a video in LeRobot's codec (AV1) survive encoding and decoding?"""
    _import("av")
    import av
    import numpy as np

    rows = np.linspace(0, 255, 96).astype(np.uint8)
    frames = [np.broadcast_to(np.roll(rows, 4 * i)[:, None, None], (96, 96, 3)) for i in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "probe.mp4")
        with av.open(path, "w") as container:
            stream = container.add_stream("libsvtav1", rate=30)
            stream.width = stream.height = 96
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        with av.open(path) as container:
            seen = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    if len(seen) != len(frames):
        raise RuntimeError(f"{len(frames)} frames encoded, {len(seen)} decoded")
    error = float(np.abs(np.stack(seen).astype(float) - np.stack(frames)).mean())
    if error > 12:
        raise RuntimeError(f"decoded frames differ from the encoded by {error:.0f} of 255")
    return f"PyAV {av.__version__}, AV1 round trip of {len(frames)} frames, mean error {error:.1f}"


def torchcodec() -> str:
    """Does the decoder that stock LeRobot prefers find FFmpeg's libraries? We decode with PyAV."""
    try:
        _import("torchcodec")
    except RuntimeError as error:
        words = "FFmpeg's libraries not found: give LeRobotDataset video_backend='pyav'"
        raise RuntimeError(words) from error
    return f"{importlib.metadata.version('torchcodec')}, with FFmpeg's libraries"


def transformers() -> str:
    """Are the packages of pretrained backbones there?"""
    for package in ("transformers", "peft"):
        _import(package)
    version = importlib.metadata.version
    return f"{version('transformers')}, with peft {version('peft')}"


def onnxruntime() -> str:
    """Which execution providers does ONNX Runtime offer?"""
    runtime = _import("onnxruntime")
    providers = [p.removesuffix("ExecutionProvider") for p in runtime.get_available_providers()]
    if "CPU" not in providers:
        raise RuntimeError(f"no CPU provider among {providers}")
    return f"{runtime.__version__}, providers {', '.join(providers)}"


def rerun() -> str:
    """Can recordings be made, and is there a viewer for them?"""
    rerun = _import("rerun")
    near = shutil.which("rerun", path=str(Path(sys.executable).parent))
    viewer = "a viewer" if near or shutil.which("rerun") else "no viewer"
    return f"{rerun.__version__}, {viewer}"


def tensorrt() -> str:
    """Can TensorRT make a builder?"""
    trt = _import("tensorrt")
    trt.Builder(trt.Logger(trt.Logger.ERROR))
    return str(trt.__version__)


def rclpy() -> str:
    """Does a ROS 2 message from another process arrive here over real DDS?"""
    _import("rclpy")
    if broken := broken_ports(SHARED_MEMORY):
        raise RuntimeError(
            f"{broken[0]} is empty: a process was killed while it made that port of Fast DDS, and "
            "every node that opens it waits for ever; remove the file"
        )
    import rclpy
    from sensor_msgs.msg import JointState

    topic = f"/doctor_{os.getpid()}"
    heard: list[JointState] = []
    code = f"from vla.probes import publish; publish({topic!r})"
    start_s = time.perf_counter()
    sender = subprocess.Popen([sys.executable, "-c", code])
    try:
        rclpy.init()
        receiver = rclpy.create_node("doctor_receiver")
        receiver.create_subscription(JointState, topic, heard.append, 1)
        while not heard and time.perf_counter() - start_s < RCLPY_WAIT_S:
            rclpy.spin_once(receiver, timeout_sec=0.05)
        took_s = time.perf_counter() - start_s
        receiver.destroy_node()
        rclpy.shutdown()
    finally:
        sender.kill()
        sender.wait()
    if not heard or list(heard[0].position) != [0.5]:
        raise RuntimeError(f"no message from another process in {took_s:.0f} s")
    version = importlib.metadata.version("rclpy")
    return f"rclpy {version}, heard another process after {took_s:.1f} s"


def broken_ports(folder: Path) -> list[Path]:
    """Return ports of Fast DDS's shared memory that were never completed."""
    ports = (path for path in sorted(folder.glob("fastdds_port*")) if path.name[12:].isdigit())
    return [path for path in ports if path.stat().st_size == 0]


def publish(topic: str) -> None:
    """Publish joint states at 20 Hz for the receiver of `rclpy`, which ends this process."""
    import rclpy
    from sensor_msgs.msg import JointState

    rclpy.init()
    node = rclpy.create_node("doctor_sender")
    publisher = node.create_publisher(JointState, topic, 1)
    end_s = time.perf_counter() + RCLPY_WAIT_S
    while time.perf_counter() < end_s:
        publisher.publish(JointState(name=["probe"], position=[0.5]))
        time.sleep(0.05)


def _import(package: str) -> Any:
    if importlib.util.find_spec(package) is None:
        raise Missing(f"package {package} is not installed")
    return importlib.import_module(package)


def main(target: str) -> None:
    """Run one probe and print {"status", "detail"} as the last line of standard output."""
    module, function = target.split(":")
    try:
        result = {"status": "works", "detail": getattr(importlib.import_module(module), function)()}
    except Missing as error:
        result = {"status": "missing", "detail": str(error)}
    except Exception as error:  # noqa: BLE001 - any error of a library is the finding
        words = " ".join(str(error).split())[:300]
        result = {"status": "broken", "detail": f"{type(error).__name__}: {words}"}
    print("\n" + json.dumps(result), flush=True)
