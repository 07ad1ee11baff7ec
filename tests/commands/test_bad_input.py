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

from sim.experts.episode import record_episode
from sim.vec_env import load_robot
from tests.commands.lines import TRAIN, content
from tests.commands.wrong_words import WRONG_WORDS
from training.core.metrics import read_metrics
from vla import cli
from vla.data.writer import write_shard

ROWS = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"
INFO = "meta/info.json"


# --- wrong words ---------------------------------------------------------------------------------


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
        if value is None or not isinstance(rows[5], list):
            rows[5] = value
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


def huge_number(folder: Path) -> None:
    """Number an episode of one frame so that a table by number would need 24 GB."""
    put("episode_index", 3_000_000_000)(folder)
    edit(INFO, lambda info: info.update(total_episodes=info["total_episodes"] + 1))(folder)


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
    **{
        f"video path {pattern[:24]}": (
            edit(INFO, lambda i, pattern=pattern: i.update(video_path=pattern)),
            "video_path of meta/info.json is", "expected a name inside the data set made of",
        )
        for pattern in (
            "../secret.mp4", "/etc/passwd", "videos/../../x.mp4", "{nope}", "{0}", "{}",
            "{chunk_index:999999999d}", "{video_key.__class__.__mro__[1].__subclasses__}",
            "{video_key!r}", "{video_key", "x\0.mp4", "a" * 5000,
        )
    },
    "episode 3,000,000,000": (huge_number, "are not numbered 0 to"),
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
    refuse(f"{TRAIN} --steps 4 --dataset {copy} --out {tmp_path / 'run'}", str(copy), *words)
    assert content(copy) == before
    assert not (tmp_path / "run").exists()


def test_data_of_another_arm_is_refused(tmp_path, refuse) -> None:
    episodes = [record_episode("reach", 0, index, robot="panda") for index in range(2)]
    write_shard(tmp_path / "panda", load_robot("panda"), episodes, {})
    line = f"{TRAIN} --steps 4 --dataset {tmp_path / 'panda'} --out {tmp_path / 'run'}"
    refuse(
        line,
        "8 states and 8 actions",
        "the robot has 6 channels",
        "name the recorded robot with --robot",
    )


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
    "settings cut": (cut("config.json", 0.5), "train", "config.json: damaged", "to start again"),
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
        "train": f"{TRAIN} --steps 4 --dataset {data} --out {copy}",
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
