"""A recorded cue leaves nothing behind in the video once it is over."""

from pathlib import Path

import av
import numpy as np

from benchmarks.sim.leak_audit import random_actions
from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.tasks import cue_colour
from sim.vec_env import load_robot
from vla.data.video_writer import VideoWriter


def _film(cue: int, path: Path) -> tuple[np.ndarray, int]:
    """Return the decoded front view of an episode with this cue, and when the cue ended."""
    config = cue_colour.Config(delay_steps=(16, 16), distractors=2)
    world = MujocoWorld(compile_scene(config, load_robot(None)))
    camera = Camera(shared_renderer(world.scene), world)
    world.reset(0, 0)
    world.as_batch.episode.cue[:] = cue
    frames = []
    for action in random_actions(world, 0, 0):
        frames.append(camera.render()[0].copy())
        if world.steps == world.episode.schedule.go + 8:
            break
        world.step(action)
    video = VideoWriter(path, frames[0].shape, 10)
    video.write(frames, len(frames), "clip")
    video.close()
    with av.open(str(path)) as container:
        decoded = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    return np.stack(decoded), world.episode.schedule.cue_end


def test_two_frames_after_the_cue_a_video_is_the_same_to_the_bit_with_any_cue(
    tmp_path: Path,
) -> None:
    films = []
    for cue in range(4):
        film, cue_end = _film(cue, tmp_path / f"{cue}.mp4")
        films.append(film)
    during = np.stack([film[cue_end - 8] for film in films]).astype(int)
    assert np.ptp(during, axis=0).max() > 100  # the colours differ while they show
    # Only a frame predicted from the last lit one could keep a trace of it, and the next is whole.
    blank = np.stack([film[cue_end + 1 :] for film in films])
    assert blank.shape[1] > 20
    np.testing.assert_array_equal(blank[1:], np.broadcast_to(blank[0], blank[1:].shape))
