"""The experience store: iterations read back as written; damage is reported, kills lose nothing."""

import dataclasses
import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr

from tests.training.rl.fake_rollouts import episode
from training.rl.experience import episode_store


def test_a_round_comes_back_as_it_was(tmp_path) -> None:
    kept = [episode(3, number=1), episode(1, success=True, number=2)]
    episode_store.write_iteration(tmp_path / "x", "round-0", kept)
    for a, b in zip(kept, episode_store.read_iteration(tmp_path / "x", "round-0"), strict=True):
        for field in dataclasses.fields(a):
            one, other = getattr(a, field.name), getattr(b, field.name)
            assert np.array_equal(one, other)
            assert type(one) is type(other)
    assert episode_store.iterations(tmp_path / "x") == ["round-0"]


def test_a_round_begun_and_not_finished_is_no_round(tmp_path) -> None:
    episode_store.write_iteration(tmp_path, "round-0", [episode(2)])
    shutil.copytree(tmp_path / "round-0", tmp_path / ".round-1.new-77")
    assert episode_store.iterations(tmp_path) == ["round-0"]
    assert episode_store.iterations(tmp_path / "nowhere") == []


def test_damage_is_told(tmp_path) -> None:
    episode_store.write_iteration(tmp_path, "round-0", [episode(2)])
    shutil.rmtree(tmp_path / "round-0" / "latents")
    with pytest.raises(ValueError, match="round-0: damaged experience .*delete it to resume"):
        episode_store.read_iteration(tmp_path, "round-0")
    with pytest.raises(ValueError, match="nothing to store, got 0 episodes"):
        episode_store.write_iteration(tmp_path, "round-1", [])


def test_a_store_of_before_is_read(tmp_path) -> None:
    kept = replace(episode(3), action_source=np.array([0, 1, 0], np.int8))
    episode_store.write_iteration(tmp_path, "round-0", [kept])
    group = zarr.open_group(tmp_path / "round-0", mode="a")
    group.create_array("helped", data=np.array([False, True, False]))
    group.create_array("at", data=kept.decision_index)
    del group["action_source"], group["decision_index"]
    group.attrs["format"] = 2
    (found,) = episode_store.read_iteration(tmp_path, "round-0")
    assert found.action_source.tolist() == [0, 1, 0]
    assert found.action_source.dtype == np.int8
    group.attrs["format"] = 1
    with pytest.raises(ValueError, match="format 1, expected 2 to 4"):
        episode_store.read_iteration(tmp_path, "round-0")


def test_the_newest_episodes_of_a_store_are_found(tmp_path) -> None:
    for number in range(3):
        pair = [episode(1, number=2 * number + k) for k in (0, 1)]
        episode_store.write_iteration(tmp_path, f"round-{number}", pair)
    for most, numbers in ((1, [5]), (3, [3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])):
        assert [e.number for e in episode_store.read_newest(tmp_path, most)] == numbers
    with pytest.raises(ValueError, match="no experience there"):
        episode_store.read_newest(tmp_path / "nowhere", 3)
