"""A recorded data set of format 1 is read as it was; its recording is found done."""

import json

from sim import vec_env
from tests.migration.recorded import FORMAT_1, changed, columns, copied, lost
from training.data import demos
from vla.contracts import config as configs
from vla.data.reader import open_dataset


def test_columns_and_what_is_known_of_a_set_are_as_they_were():
    assert columns(FORMAT_1 / "data") == json.loads((FORMAT_1 / "data.json").read_text())


def test_recording_the_same_again_finds_it_done(tmp_path):
    data = copied(tmp_path, "data") / "data"
    stored = json.loads((data / "meta" / "recording.json").read_text())
    task = configs.from_json(None, stored["task"], "task", vec_env.TASKS)
    assert lost(stored["task"], configs.to_json(task)) == []
    assert changed(stored["task"], configs.to_json(task)) == []
    info = demos.record_demos(demos.DemosConfig(out=data, task=task, episodes=4, seed=3))
    assert info.num_frames == open_dataset(FORMAT_1 / "data").num_frames
    assert info.recording is not None
