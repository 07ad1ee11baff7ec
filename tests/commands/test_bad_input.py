"""What a user can get wrong: one sentence, an exit code, nothing lost.

`python -m pytest tests/commands -v` prints one line per case.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.episode import record_episode
from sim.vec_env import load_robot
from tests.commands.lines import TRAIN, content
from training.metrics import read_metrics
from vla import cli
from vla.data.writer import write_shard

ROWS = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"
INFO = "meta/info.json"


# --- wrong words ---------------------------------------------------------------------------------

WRONG_WORDS = {
    "verb": ("trian", "unknown verb 'trian': did you mean train?"),
    "bench": ("bench polcy", "unknown verb 'polcy': did you mean policy?"),
    "task": ("demos reech --out {new}", "unknown task 'reech': did you mean reach?"),
    "task to describe": ("tasks --describe reech", "unknown task 'reech': did you mean reach?"),
    "task to test on": ("eval {run} --task reech", "unknown task 'reech': did you mean reach?"),
    "robot of demos": ("demos reach --robot sO101 --out {new}", "unknown robot 'sO101': did you"),
    "robot of train": (TRAIN + " --robot pnda --out {new}", "unknown robot 'pnda': did you mean"),
    "robot of eval": ("eval {run} --robot pnda", "unknown robot 'pnda': did you mean panda?"),
    "recipe": ("train --recipe reech --out {new}", "unknown recipe 'reech': did you mean reach?"),
    "preset": ("train --preset smal --out {new}", "unknown preset 'smal': did you mean small"),
    "preset to size": ("bench preset hgue --out {new}", "unknown preset 'hgue'"),
    "preset of a recipe": ("bench preset --recipe reech --out {new}", "unknown recipe 'reech'"),
    "preset of no length": (
        "bench preset --decisions 0 --out {new}", "decisions: got 0, expected at least 1",
    ),
    "memory": ("train --policy.memory.type bnk --out {new}", "unknown memory 'bnk': did you mean"),
    "backbone": ("train --policy.backbone.type big --out {new}", "known names are tiny"),
    "policy": ("train --policy.type akt --out {new}", "unknown policy 'akt': did you mean act"),
    "pretrained backbone without a model": (
        "train --policy.backbone.type vlm --out {new}", "policy.backbone.model: got none",
    ),
    "family of models": ("model tiny qwen3 --out {new}", "'qwen3': did you mean qwen3_vl?"),
    "width of a model": ("model tiny dinov2 --width 40 --out {new}", "width: got 40", "of 64"),
    "pictures of a model": ("model tiny dinov2 --image-px 40 --out {new}", "got 40", "of 16"),
    "model over data": ("model tiny dinov2 --out {data}", "is there already", "choose another"),
    "no plug-in": ("train --policy.memroy.type bank --out {new}", "no field 'memroy'; known are"),
    "behaviour": ("demos reach --behaviour exprt --out {new}", "choose from expert, undo"),
    "behaviour elsewhere": ("demos reach --behaviour drop --out {new}", "'drop' is not one this"),
    "behaviour to learn": ("train --demos.behaviour exprt --out {new}", "choose from expert"),
    "flag of demos": ("demos reach --episods 3 --out {new}", "unrecognized options: --episods"),
    "flag of train": (TRAIN + " --steps 3", "missing from vla train --recipe reach: --out"),
    "flag of eval": ("eval {run} --episods 3", "perhaps you meant: --episodes"),
    "flag of report": ("report {run} --output x", "unrecognized options: --output"),
    "flag of bench": ("bench policy --chekpoint x", "--chekpoint"),
    "flag without value": ("demos reach --episodes --out {new}", "missing value for argument"),
    "flag with two": ("demos cue_colour --task.delay-steps 16 --out {new}", "Expected 2 values"),
    "no number": ("demos reach --episodes ten --out {new}", "error parsing --episodes", "'ten'"),
    "device": ("eval {run} --device tpu", "invalid choice 'tpu'", "cpu"),
    "no run": ("report {data}", "no run there (no config.json)"),
    "nowhere": ("report {new}", "no run there (no config.json)"),
    "no checkpoint": ("eval {data}", "no checkpoint there", "vla train --out"),
    "no data": (TRAIN + " --data {new}/x --out {new}", "does not exist; expected the directory"),
    "data is a run": (TRAIN + " --data {run} --out {new}", "has no meta/info.json"),
    "export of data": ("export {data} --out {new}", "no checkpoint there", "vla train --out"),
    "export over data": ("export {run} --out {data}", "is there and no exported policy", "--out"),
    "parity of a run": (
        "parity {run} --against {run} --data {data}", "no exported policy there", "vla export",
    ),
    "export of a name": ("export oracle --out {new}", "type 'oracle' is not exported", "pairwise"),
    "export of a critic in int8": (
        "export oracle --out {new} --precision int8", "unrecognized options: --precision",
    ),
    "export of no critics at once": ("export oracle --out {new} --batch 0", "batch: got 0"),
    "engines of a run": ("engines {run}", "no exported policy there", "vla export"),
    "engines by nobody": ("engines {run} --targets tensort", "unknown target 'tensort'"),
    "engines by torch": ("engines {run} --targets torch", "torch runs a checkpoint", "vla bench"),
    "engines 9": ("engines {run} --calls 9", "calls: got 9, expected at least 10"),
    "eval by TensorRT": ("eval {run} --targets tensorrt", "no exported policy", "vla export"),
    "eval by nobody": ("eval {run} --targets troch", "got targets troch", "torch-compile"),
    "eval twice": ("eval {run} --targets torch-compile torch torch", "got torch twice"),
    "eval against": ("eval {run} --against {run}", "got --against", "no exported policy"),
    "serve by TensorRT": ("serve {run} --targets tensorrt", "no exported policy", "vla export"),
    "parity by nobody": (
        "parity {run} --against {run} --data {data} --target tensort", "unknown target 'tensort'",
    ),
    "serve data": ("serve {data}", "no checkpoint there", "vla train --out"),
    "serve to all": ("serve {run} --at 0.0.0.0:7410", "can be reached from elsewhere", "token"),
    "serve nowhere": ("serve {run} --at 7410", "got '7410', expected unix:PATH or HOST:PORT"),
    "half of TLS": ("serve {run} --certificate a.pem", "TLS needs both"),
    "no token": ("serve {run} --token-file {new}", "no such file or folder"),
    "serve stale": ("serve {run} --limits.age-s 0", "age_s: got 0.0, expected more than 0"),
    "up nowhere": ("up amr", "unknown use 'amr': did you mean arm?"),
    "up without a policy": ("up arm", "policy: got nothing, expected a folder of `vla export`"),
    "up with no policy": ("up arm --policy {new}", "no exported policy there", "unix:PATH"),
    "up another robot": ("up arm --policy {run} --robot so11", "unknown robot 'so11': did you"),
    "up without limits": ("up arm --policy {run} --limits {new}", "no limits there"),
    "up with wrong limits": (
        "up arm --policy {run} --robot panda --limits launch/params/so101_limits.yaml",
        "unknown joint 'elbow_flex'; panda has joint1",
    ),
    "up too fast": ("up arm --policy {run} --speed 2", "speed: got 2.0, expected 0.01 to 1"),
    "up with words": ("up arm --policy {run} --speed fast", "error parsing --speed", "'fast'"),
    "up by nobody": ("up arm --policy {run} --output joints", "invalid choice 'joints'", "forward"),
    "up in spaces": ("up arm --policy {run} --namespace 1st", "namespace: got '1st', expected let"),
    "up to nobody": ("up arm --policy {run} --controller -", "controller: got '-', expected a"),
    "up another camera": ("up arm --policy {run} --cameras top", "so101 has no 'top'"),
    "up half the joints": ("up arm --policy {run} --joints gripper", "joints: got gripper"),
    "up another task": ("up sim_arm --task reech", "unknown task 'reech': did you mean reach?"),
    "up with no critic": ("up sim_arm --critic {new}", "no exported critic there"),
    "up unrecorded": ("up record", "out: got nothing, expected a folder for the recordings"),
    "up twice": ("up dual_arm --right.namespace left", "got namespace 'left' twice"),
    "up halfway": ("up dual_arm --left.policy {run}", "policy: got nothing, expected a folder"),
    "import nowhere": ("data import {new}/x --out {new}", "does not exist; name a data set"),
    "import of a run": ("data import {run} --out {new}", "of no format that is known (lerobot_v2"),
    "import of version 3": ("data import {data} --out {new}", "is a LeRobotDataset v3 already"),
    "import as": ("data import {data} --format rldz --out {new}", "did you mean rlds?"),
    "import as other": ("data import {data} --format rlds --out {new}", "is not of format 'rlds'"),
    "import in place": ("data import {data} --out {data}/x", "lies in the source, which is never"),
    "import 0": ("data import {data} --fps 0 --out {new}", "fps: got 0, expected at least 1"),
    "import flag": ("data import {data} --output {new}", "unrecognized options: --output"),
    "inspect nowhere": ("data inspect {new}", "does not exist; expected the directory"),
    "inspect a run": ("data inspect {run}", "has no meta/info.json"),
    "inspect for nobody": ("data inspect {data} --robot so11", "unknown robot 'so11': did you"),
    "card without a licence": ("hub card {run} --out {new}", "under which licence?", "--licence"),
    "card over a file": ("hub card {run} --out {data}/meta/info.json", "is there already"),
    "card of data": ("hub card {data} --out {new} --licence mit", "no checkpoint there"),
    "card for no name": ("hub card {run} --out {new} --licence mit --name me", "expected OWNER/"),
    "push of data": ("hub push {data} me/reach --licence mit", "no checkpoint there"),
    "push to no name": ("hub push {run} reach --licence mit", "got 'reach', expected OWNER/NAME"),
    "push without a licence": ("hub push {run} me/reach --yes", "under which licence?"),
    "push offline": ("hub push {run} me/reach --licence mit --yes", "HF_HUB_OFFLINE"),
    "pull of no name": ("hub pull reach --out {new}", "got 'reach', expected OWNER/NAME"),
    "pull of no revision": ("hub pull me/reach@ --out {new}", "got revision ''", "a branch"),
    "pull over a run": ("hub pull me/reach --out {run}", "is there already", "--out"),
    "pull offline": ("hub pull me/reach --out {new}", "HF_HUB_OFFLINE"),
    "eval of a name": ("eval nobody/reach", "no checkpoint there", "`vla hub pull nobody/reach"),
    "view of nothing": ("view {new}", "no checkpoint there", "vla train --out"),
    "view of no episode": ("view {data} --episodes 9 --out {new}.rrd", "got 9", "has 0 to 5"),
    "view of no episodes": ("view {run} --episodes 0 --out {new}.rrd", "episodes: got 0"),
    "view in a video": ("view {data} --out {new}.mp4", "expected a file *.rrd"),
    "view by no critic": ("view {run} --critic {new} --out {new}.rrd", "critic"),
    "practice shown to all": (
        "train rl --task reach --from {run} --demos {data} --out {new} "
        "--view rerun+http://10.0.0.7:9876/proxy", "unencrypted to another machine",
    ),
    "pack of data": ("lerobot pack {data} --out {new}", "no checkpoint there", "vla train --out"),
    "pack over data": ("lerobot pack {run} --out {data}", "is there already", "another --out"),
    "pack without a past": ("lerobot pack {run} --history 0 --out {new}", "history: got 0"),
    "unpack of data": ("lerobot unpack {data} --out {new}", "no policy of LeRobot there"),
    "unpack of a run": ("lerobot unpack {run} --out {new}", "expected 'mneme'"),
    # numbers
    "export 0": ("export {run} --out {new} --batch 0", "batch: got 0, expected at least 1"),
    "parity 0": (
        "parity {run} --against {run} --data {data} --decisions 0", "got 0, expected at least 1",
    ),
    "parity 37": (
        "parity {run} --against {run} --data {data} --episodes 37", "got 37", "38 or more, or 0",
    ),
    "calls 1": ("bench policy --checkpoint {run} --calls 1", "calls: got 1, expected at least 10"),
    "episodes 0": ("demos reach --episodes 0 --out {new}", "episodes: got 0, expected at least 1"),
    "distill nothing": (
        "train distill --from {new} --data {data} --out {new}", "no checkpoint there",
    ),
    "distill 1 to 1": (
        "train distill --from {run} --data {data} --algo.teacher-steps 1 --out {new}",
        "teacher_steps: got 1, expected at least 2",
    ),
    "bridge of nothing": ("bench bridge {new} --out {new}", "no exported policy there"),
    "safety word": ("safety fly", "invalid choice 'fly'"),
    "report of no bridge": ("report {run} --bridge {new} --out {new}", "no bridge.json"),
    "compare one": ("bench compare {run} --out {new}", "got 1, expected two or more"),
    "compare data": ("bench compare {run} {data} --out {new}", "no checkpoint there"),
    "export in 101 steps": ("export {run} --steps 101 --out {new}", "in [1, 100], got 101"),
    "fp16 calibrated": (
        "export {run} --precision fp16 --calibrate {data} --out {new}", "int8 needs recorded",
    ),
    "prefix 16": (
        TRAIN + " --data {data} --policy.head.prefix 16 --out {new}", "prefix: got 16",
        "less than the 16 actions",
    ),
    "realtime of nothing": ("bench realtime {new} --out {new}", "no checkpoint there"),
    "realtime, untrained": (
        "bench realtime {run} --modes trained --delays 3 --execute 8 --rates --out {new}",
        "takes 3 control steps", "at most 0 settled", "--policy.head.prefix 3",
    ),
    "realtime, too long": (
        "bench realtime {run} --modes skip --delays 9 --rates --out {new}", "more than half",
        "9 of a chunk's 16", "mode synchronous",
    ),
    "workers 0": ("demos reach --workers 0 --out {new}", "workers: got 0, expected at least 1"),
    "seed -1": ("demos reach --seed -1 --out {new}", "seed: got -1, expected at least 0"),
    "delay 5 3": ("demos cue_colour --task.delay-steps 5 3 --out {new}", "delay_steps: got 5 3"),
    "distractors 5": ("demos reach --task.distractors 5 --out {new}", "got 5, expected 0 or 1"),
    "eval of 0": ("eval {run} --episodes 0", "episodes: got 0, expected at least 1"),
    "videos -1": ("eval {run} --videos -1", "videos: got -1, expected at least 0"),
    "steps -4": ("train --steps -4 --out {new}", "steps: got -4, expected at least 1"),
    "save-every 0": ("train --save-every 0 --out {new}", "save_every: got 0, expected at least 1"),
    "batch 0": ("train --algo.batch 0 --out {new}", "batch: got 0, expected at least 1"),
    "lr nan": ("train --optimiser.lr nan --out {new}", "lr: got nan, expected at least 0"),
    "slots 2": (
        TRAIN + " --data {data} --policy.memory.type bank --policy.memory.slots 2 --out {new}",
        "memory.slots must be at least recent + 3 = 7, got 2",
    ),
    "cameras none": (TRAIN + " --data {data} --policy.cameras --out {new}", "has cameras", "front"),
    "camera": (TRAIN + " --data {data} --policy.cameras top --out {new}", "it has front, wrist"),
    "execute > chunk": (
        TRAIN + " --data {data} --policy.execute 99 --out {new}",
        "policy.execute must lie in [1, chunk = 16], got 99",
    ),
    "denoising 500": (TRAIN + " --data {data} --policy.head.steps 500 --out {new}", "got 500"),
    # what does not belong together
    "arm of a checkpoint": ("eval {run} --robot panda", "was trained for so101", "got panda"),
    "arm of a data set": (TRAIN + " --data {data} --robot panda --out {new}", "give its own with"),
    "other run": (TRAIN + " --steps 9 --data {data} --out {run}", "config.steps is 4 there, 9"),
    "other recording": ("demos reach --episodes 7 --out {data}", "recorded with episodes 6, not 7"),
    "demos over a run": ("demos reach --out {run}", "holds no data set; choose another --out"),
    "train over data": (TRAIN + " --data {data} --out {data}", "holds no run", "another --out"),
    # places
    "demos in a file": ("demos reach --out {run}/config.json/x", "not a directory"),
    "train in a file": (TRAIN + " --data {data} --out {run}/config.json", "another --out"),
    "eval in a file": ("eval {run} --out {run}/config.json", "file exists", "another path"),
    "report is a folder": ("report {run} --out {data}", "is a directory", "another path"),
    "vision nowhere": ("train --vision-from {new}x --out {new}", "no critic there"),
    "no such place": ("report {run} --out /proc/x.html", "no such file or folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words_are_answered_and_change_nothing(case, data, run, tmp_path, refuse) -> None:
    line, *words = WRONG_WORDS[case]
    before = content(data), content(run)
    refuse(line.format(new=tmp_path / "new", data=data, run=run), *words)
    assert (content(data), content(run)) == before
    assert list(tmp_path.iterdir()) == [], "a refused command left something behind"


# --- damaged data sets ---------------------------------------------------------------------------


def cut(name: str, share: float) -> Callable[[Path], None]:
    """Return a damage: only the first part of a file is there."""

    def damage(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(len(whole) * share)])

    return damage


def wipe(name: str) -> Callable[[Path], None]:
    """Return a damage: the middle of a file is zeros."""

    def damage(folder: Path) -> None:
        whole = bytearray((folder / name).read_bytes())
        middle = len(whole) // 2
        whole[middle : middle + 2000] = bytes(len(whole[middle : middle + 2000]))
        (folder / name).write_bytes(whole)

    return damage


def without(column: str, name: str = ROWS) -> Callable[[Path], None]:
    """Return a damage: a table has lost a column."""
    return lambda folder: pq.write_table(
        pq.read_table(folder / name).drop_columns([column]), folder / name
    )


def put(column: str, value: Any) -> Callable[[Path], None]:
    """Return a damage: row 5 of a column holds something else; a number goes into channel 1."""

    def damage(folder: Path) -> None:
        table = pq.read_table(folder / ROWS)
        place = table.schema.get_field_index(column)
        rows = table[column].to_pylist()
        if value is None:
            rows[5] = None
        else:
            rows[5][1] = value
        kind = table.schema.field(place)
        pq.write_table(table.set_column(place, kind, pa.array(rows, kind.type)), folder / ROWS)

    return damage


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a damage: a JSON file says something else."""

    def damage(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value))

    return damage


def half_copied(folder: Path) -> None:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    for file in files[len(files) // 2 :]:
        file.unlink()


def never_finalised(folder: Path) -> None:
    """Leave what a killed recorder leaves: rows without the footer that says where they are."""
    table = pq.read_table(folder / ROWS)
    writer = pq.ParquetWriter(folder / "open", table.schema)
    writer.write_table(table)
    shutil.copy(folder / "open", folder / ROWS)
    writer.close()


DAMAGED_DATA: dict[str, tuple[Any, ...]] = {
    "writer killed": (never_finalised, "file-000.parquet: cannot be read", "killed before"),
    "half copied": (half_copied, "copy the data set again"),
    "video cut": (cut(VIDEO, 0.5), "file-000.mp4: is truncated", "copy the data set again"),
    "video cut at its end": (cut(VIDEO, 0.98), "file-000.mp4: is truncated"),
    "video empty": (cut(VIDEO, 0), "file-000.mp4: is empty (0 bytes)"),
    "video rotten": (wipe(VIDEO), "file-000.mp4: cannot be decoded"),
    "video missing": (lambda d: (d / VIDEO).unlink(), "file-000.mp4: is missing"),
    "camera missing": (lambda d: shutil.rmtree(d / VIDEO.split("/chunk")[0]), "is missing"),
    "rows cut": (cut(ROWS, 0.5), "data/chunk-000/file-000.parquet: cannot be read"),
    "rows empty": (cut(ROWS, 0), "data/chunk-000/file-000.parquet: cannot be read"),
    "rows rotten": (wipe(ROWS), "data/chunk-000/file-000.parquet: cannot be read"),
    "episodes cut": (cut(EPISODES, 0.5), "meta/episodes/chunk-000/file-000.parquet: cannot be"),
    "instructions cut": (cut("meta/tasks.parquet", 0.5), "tasks.parquet: cannot be read"),
    "no instructions": (lambda d: (d / "meta/tasks.parquet").unlink(), "no meta/tasks.parquet"),
    "no action": (without("action"), "has no column 'action'"),
    "no state": (without("observation.state"), "has no column 'observation.state'"),
    "no task": (without("task_index"), "has no column 'task_index'"),
    "no lengths": (without("length", EPISODES), "meta/episodes", "has no column 'length'"),
    "NaN in actions": (put("action", float("nan")), "'action' of episode 0, frame 5", "is nan"),
    "NaN in states": (put("observation.state", float("nan")), "of episode 0, frame 5", "is nan"),
    "infinite action": (put("action", float("inf")), "'action' of episode 0, frame 5", "is inf"),
    "row without action": (put("action", None), "row 5 of 'action' holds no value"),
    "row without task": (put("task_index", None), "row 5 of 'task_index' holds no value"),
    "half the rate": (edit(INFO, lambda i: i.update(fps=5)), "has 10 frames/s but", "says 5"),
    "twice the rate": (edit(INFO, lambda i: i.update(fps=20)), "has 10 frames/s but", "says 20"),
    "rate 0": (edit(INFO, lambda i: i.update(fps=0)), "'fps' is 0, expected more than 0"),
    "rate in words": (edit(INFO, lambda i: i.update(fps="ten")), "'fps' is 'ten'"),
    "version 2": (edit(INFO, lambda i: i.update(codebase_version="v2.1")), "vla data import"),
    "description cut": (cut(INFO, 0.5), "info.json: damaged", "copy the data set again"),
    "description empty": (cut(INFO, 0), "info.json: damaged"),
    "no features": (edit(INFO, lambda i: i.pop("features")), "'features' is None"),
    "no shape": (edit(INFO, lambda i: i["features"]["action"].pop("shape")), "'action' has no"),
    "no video path": (edit(INFO, lambda i: i.pop("video_path")), "has no 'video_path'"),
    "one camera": (
        edit(INFO, lambda i: i["features"].pop("observation.images.wrist")),
        "no camera 'wrist'; it has front",
    ),
    "origin cut": (cut("meta/recording.json", 0.5), "recording.json: damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED_DATA)
def test_a_damaged_data_set_is_named_before_anything_is_written(
    case, data, tmp_path, refuse
) -> None:
    damage, *words = DAMAGED_DATA[case]
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    damage(copy)
    before = content(copy)
    refuse(f"{TRAIN} --steps 4 --data {copy} --out {tmp_path / 'run'}", str(copy), *words)
    assert content(copy) == before
    assert not (tmp_path / "run").exists()


def test_data_of_another_arm_is_refused(tmp_path, refuse) -> None:
    episodes = [record_episode("reach", 0, index, robot="panda") for index in range(2)]
    write_shard(tmp_path / "panda", load_robot("panda"), episodes, {})
    line = f"{TRAIN} --steps 4 --data {tmp_path / 'panda'} --out {tmp_path / 'run'}"
    refuse(line, "8 states and 8 actions", "the robot has 6 channels", "give its own with --robot")


# --- damaged runs --------------------------------------------------------------------------------

POLICY, WEIGHTS = "checkpoint/policy.json", "checkpoint/model.safetensors"
DAMAGED_RUN: dict[str, tuple[Any, ...]] = {
    "weights cut": (cut(WEIGHTS, 0.5), "eval", "model.safetensors: damaged weights"),
    "weights missing": (lambda r: (r / WEIGHTS).unlink(), "eval", "lacks model.safetensors"),
    "weights cut, go on": (cut(WEIGHTS, 0.5), "train", "cannot continue this run", "damaged weigh"),
    "tokenizer cut": (cut("checkpoint/tokenizer.json", 0.5), "eval", "damaged tokenizer"),
    "description cut": (cut(POLICY, 0.5), "eval", "policy.json: damaged", "restore the checkpoint"),
    "description a list": (
        lambda r: (r / POLICY).write_text("[]"), "eval", "policy.json: damaged, no JSON object",
    ),
    "no statistics": (
        edit(POLICY, lambda p: p.pop("statistics")), "eval", "statistics: expected an object",
        "restore the checkpoint",
    ),
    "later format": (edit(POLICY, lambda p: p.update(format=9)), "eval", "format 9, expected 1"),
    "other memory": (
        edit(POLICY, lambda p: p["policy"]["memory"].update(type="bnk")), "eval",
        "policy.json: policy.memory: unknown memory 'bnk'", "did you mean bank",
    ),
    "path for a memory": (
        edit(POLICY, lambda p: p["policy"]["memory"].update(type="../os")), "eval", "'../os'",
    ),
    "other shape": (
        edit(POLICY, lambda p: p["policy"]["backbone"].update(token_width=32)), "eval",
        "has shape (16, 64), the description expects (16, 32)",
    ),
    "other task": (
        edit(POLICY, lambda p: p["provenance"]["task"].update(type="reech")), "eval",
        "unknown task 'reech'",
    ),
    "trainer cut": (cut("checkpoint/trainer.safetensors", 0.5), "train", "cannot continue this"),
    "trainer missing": (lambda r: (r / "checkpoint/trainer.json").unlink(), "train", "trainer."),
    "settings cut": (cut("config.json", 0.5), "train", "config.json: damaged", "start afresh"),
    "settings a list": (lambda r: (r / "config.json").write_text("[]"), "train", "damaged"),
    "settings cut, report": (cut("config.json", 0.5), "report", "config.json: damaged"),
    "settings lost, report": (
        lambda r: (r / "config.json").write_text("{}"), "report", "a JSON object with task",
    ),
    "figures cut": (
        lambda r: (r / "evaluation.json").write_text('{"succ'), "report", "evaluation.json: damag",
    ),
    "figures lost": (
        lambda r: (r / "evaluation.json").write_text("{}"), "report", "object with task, seed, ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED_RUN)
def test_a_damaged_run_is_named_and_left_as_it_is(case, data, run, tmp_path, refuse) -> None:
    damage, verb, *words = DAMAGED_RUN[case]
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    damage(copy)
    before = content(copy)
    lines = {
        "eval": f"eval {copy} --episodes 1 --videos 0 --out {tmp_path / 'new'}",
        "train": f"{TRAIN} --steps 4 --data {data} --out {copy}",
        "report": f"report {copy}",
    }
    refuse(lines[verb], str(copy), *words)
    assert content(copy) == before


def test_rows_of_figures_that_a_power_cut_damaged_are_left_out(run, tmp_path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    rows = read_metrics(copy)
    with (copy / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "lo\n[1]\n{"loss": 2}\n\xff\xfe\0\0\0')
    assert read_metrics(copy) == rows
    assert cli.main(["report", str(copy)]) == 0
