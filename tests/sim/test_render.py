"""Drawing: the right way up, only what changed, and one sentence without OpenGL."""

import mujoco
import numpy as np
import pytest

from sim.core import render
from sim.core.render import Camera, Renderer, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.vec_env import load_robot, load_task


@pytest.fixture
def world():
    world = MujocoWorld(compile_scene(load_task("cue_colour"), load_robot("so101")), vary=False)
    world.reset(0, 0)
    return world


def paint(world, geom, rgb):
    world.model.geom_rgba[world.model.geom(geom).id, :3] = rgb


def test_images_equal_those_of_mujocos_own_renderer(world):
    images = Camera(shared_renderer(world.scene), world).render()
    with mujoco.Renderer(world.model, 96, 96) as renderer:
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[int(flag)] = 0
        for view, camera in enumerate(world.robot.cameras):
            renderer.update_scene(world.data, camera.name)
            difference = np.abs(renderer.render().astype(int) - images[view])
            # The clear colour and haze differ; everything else must not, row for row.
            assert (difference.max(axis=-1) > 2).mean() < 0.02, camera.name


def test_the_lamp_is_left_of_the_arm_seen_from_the_arm_and_large_enough_for_video(world):
    paint(world, "lamp", (1.0, 0.0, 1.0))
    front = Camera(shared_renderer(world.scene), world).render()[0].astype(int)
    magenta = (front[..., 0] - front[..., 1] > 60) & (front[..., 2] - front[..., 1] > 60)
    rows, columns = np.nonzero(magenta)
    assert np.ptp(rows) + 1 >= 10
    assert np.ptp(columns) + 1 >= 10
    assert columns.mean() > 48  # the front camera looks back at the arm, so its left is our right
    assert rows.mean() < 48  # far from the camera is up


def test_an_unchanged_world_is_not_drawn_again_and_a_changed_colour_is(world):
    camera = Camera(shared_renderer(world.scene), world)
    first = camera.render().copy()
    assert not camera.needs_render()
    camera.images[:] = 0
    assert camera.render().max() == 0
    paint(world, "lamp", (0.9, 0.1, 0.1))
    assert (camera.render() != first).any()


def test_every_view_of_every_world_is_drawn_into_its_own_array(world):
    other = MujocoWorld(world.scene)
    other.reset(0, 1)
    renderer = shared_renderer(world.scene)
    arrays = [np.zeros(world.scene.image_shape, np.uint8) for _ in range(3)]
    renderer.draw([world, other, world], arrays)
    np.testing.assert_array_equal(arrays[0], arrays[2])
    assert (arrays[0] != arrays[1]).any()
    assert (arrays[0][0] != arrays[0][1]).any()


def test_without_opengl_the_message_says_what_to_install(monkeypatch):
    def fail():
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(render, "_new_context", fail)
    with pytest.raises(ValueError, match=r"libEGL\.so\.1.*apt-get install -y libegl1"):
        render.gl_context.__wrapped__()


def test_the_first_image_is_right_after_another_scene_was_drawn():
    mine, other = (compile_scene(load_task(name), load_robot(None)) for name in ("reach", "push"))
    worlds = [MujocoWorld(mine), MujocoWorld(other)]
    images = [np.zeros(mine.image_shape, np.uint8) for _ in range(2)]
    for world in worlds:
        world.reset(0, 0)
    renderers = [Renderer(mine), Renderer(other)]
    renderers[0].draw([worlds[0]], [images[0]])
    renderers[1].draw([worlds[1]], [np.zeros(other.image_shape, np.uint8)])
    renderers[0].draw([worlds[0]], [images[1]])
    np.testing.assert_array_equal(images[0], images[1])
