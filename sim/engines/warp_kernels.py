"""What our mujoco_warp engine computes on its device itself: writes, watch over worlds, pixels.

`no_type_check`: the annotations are Warp's own, and its compiler is what reads them.
"""

from typing import no_type_check

from sim.engines.warp_start import wp

wp.set_module_options({"enable_backward": False})

LARGEST = wp.constant(1.0e6)
"""Beyond this, in m, rad or per second, a state counts as lost. MuJoCo says 1e10, which takes a
world that explodes in 32-bit numbers long to reach."""


@wp.kernel
@no_type_check
def put_rows(rows: wp.array[int], source: wp.array2d[float], out: wp.array2d[float]) -> None:
    """Write row i of `source` (n, k) to row `rows[i]` of `out` (e, k)."""
    i, j = wp.tid()
    out[rows[i], j] = source[i, j]


@wp.kernel
@no_type_check
def take_rows(rows: wp.array[int], source: wp.array2d[float], out: wp.array2d[float]) -> None:
    """Write row `rows[i]` of `source` (e, k) to row i of `out` (n, k)."""
    i, j = wp.tid()
    out[i, j] = source[rows[i], j]


@wp.kernel
@no_type_check
def hold_still(active: wp.array[bool], saved: wp.array2d[float], out: wp.array2d[float]) -> None:
    """Put back what was saved in worlds that are not active."""
    world, j = wp.tid()
    if not active[world]:
        out[world, j] = saved[world, j]


@wp.kernel
@no_type_check
def place_fixed_geoms(
    geoms: wp.array[int],
    geom_bodyid: wp.array[int],
    geom_pos: wp.array2d[wp.vec3],
    geom_quat: wp.array2d[wp.quat],
    xpos: wp.array2d[wp.vec3],
    xmat: wp.array2d[wp.mat33],
    geom_xpos: wp.array2d[wp.vec3],
    geom_xmat: wp.array2d[wp.mat33],
) -> None:
    """Move geoms that are fixed to the world with their bodies: mujoco_warp places them once."""
    world, i = wp.tid()
    geom = geoms[i]
    body = geom_bodyid[geom]
    turn = xmat[world, body]
    geom_xpos[world, geom] = xpos[world, body] + turn @ geom_pos[0, geom]
    q = geom_quat[0, geom]  # wxyz, which Warp would read as xyzw
    geom_xmat[world, geom] = turn @ wp.quat_to_matrix(wp.quat(q[1], q[2], q[3], q[0]))


@wp.kernel
@no_type_check
def count_contacts(
    nacon: wp.array[int],
    capacity: int,
    worlds: wp.array[int],
    counts: wp.array[int],
) -> None:
    """Count each world's contacts; `counts` begins at 0."""
    i = wp.tid()
    if i < wp.min(nacon[0], capacity):
        wp.atomic_add(counts, worlds[i], 1)


@wp.kernel
@no_type_check
def find_full(  # noqa: PLR0913
    active: wp.array[bool],
    nefc: wp.array[int],
    njmax: int,
    nacon: wp.array[int],
    ncollision: wp.array[int],
    capacity: int,
    counts: wp.array[int],
    share: int,
    fault: wp.array[bool],
) -> None:
    """Mark active worlds in which there was no room for contacts or constraints."""
    world = wp.tid()
    if not active[world]:
        return
    # Room for contacts is shared: when it overflows, whose contacts are missing is not known.
    if nacon[0] > capacity or ncollision[0] > capacity:
        fault[world] = True
    if nefc[world] > njmax or counts[world] > share:
        fault[world] = True


@wp.kernel
@no_type_check
def find_lost(
    active: wp.array[bool],
    nominal: wp.array2d[float],
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    warmstart: wp.array2d[float],
    fault: wp.array[bool],
) -> None:
    """Mark active worlds whose state is lost, and put them where they can harm no other."""
    world = wp.tid()
    if not active[world]:
        return
    lost = wp.int32(0)  # a variable, where a bare number were a constant to Warp
    for j in range(qpos.shape[1]):
        if not wp.abs(qpos[world, j]) < LARGEST:
            lost += 1
    for j in range(qvel.shape[1]):
        if not wp.abs(qvel[world, j]) < LARGEST:
            lost += 1
    if lost > 0:
        fault[world] = True
        for j in range(qpos.shape[1]):
            qpos[world, j] = nominal[0, j]
        for j in range(qvel.shape[1]):
            qvel[world, j] = 0.0
            warmstart[world, j] = 0.0


@wp.kernel
@no_type_check
def aim_rays(
    cameras: wp.array[int],
    half_height: wp.array[float],
    width: int,
    height: int,
    cam_xpos: wp.array2d[wp.vec3],
    cam_xmat: wp.array2d[wp.mat33],
    origin: wp.array2d[wp.vec3],
    direction: wp.array2d[wp.vec3],
) -> None:
    """Write one ray per pixel: views one after the other, rows from the top."""
    world, pixel = wp.tid()
    view = pixel // (width * height)
    column = pixel % width
    row = (pixel // width) % height
    tall = half_height[view]
    wide = tall * float(width) / float(height)
    x = wide * (2.0 * (float(column) + 0.5) / float(width) - 1.0)
    y = tall * (1.0 - 2.0 * (float(row) + 0.5) / float(height))
    camera = cameras[view]
    turn = cam_xmat[world, camera]
    origin[world, pixel] = cam_xpos[world, camera]
    direction[world, pixel] = turn @ wp.normalize(wp.vec3(x, y, -1.0))


@wp.kernel
@no_type_check
def shade(  # noqa: PLR0913
    cameras: wp.array[int],
    pixels_of_view: int,
    geom: wp.array2d[int],
    normal: wp.array2d[wp.vec3],
    rgba: wp.array2d[wp.vec4],
    cam_xmat: wp.array2d[wp.mat33],
    light_dir: wp.array2d[wp.vec3],
    light_diffuse: wp.array2d[wp.vec3],
    ambient: wp.vec3,
    headlight: wp.vec3,
    out: wp.array3d[wp.uint8],
) -> None:
    """Colour each pixel as OpenGL lights a matt surface: light from the camera and from afar."""
    world, pixel = wp.tid()
    hit = geom[world, pixel]
    light = wp.vec3(0.0)
    base = wp.vec3(0.0)
    if hit >= 0:
        colour = rgba[world, hit]
        base = wp.vec3(colour[0], colour[1], colour[2])
        n = wp.normalize(normal[world, pixel])
        turn = cam_xmat[world, cameras[pixel // pixels_of_view]]
        back = wp.vec3(turn[0, 2], turn[1, 2], turn[2, 2])
        light = ambient + headlight * wp.max(0.0, wp.dot(n, back))
        for i in range(light_dir.shape[1]):
            toward = -wp.normalize(light_dir[world, i])
            light += light_diffuse[world, i] * wp.max(0.0, wp.dot(n, toward))
    for channel in range(3):
        level = wp.clamp(base[channel] * light[channel], 0.0, 1.0)
        out[world, pixel, channel] = wp.uint8(level * 255.0 + 0.5)
