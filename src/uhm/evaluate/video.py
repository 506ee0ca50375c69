"""Films of episodes: MuJoCo's pictures where the machine can draw them, those of a simulator of the user's own, and for
`rooms` a map that needs no graphics.

MuJoCo chooses its graphics library when it is first imported, and a wrong choice may end the process. So a film is
made by a program of its own, `uhm.evaluate.camera`, with EGL and else with OSMesa; this process only says how to act.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Float, UInt8

from uhm.envs import rooms
from uhm.envs.own import Simulator, python_path
from uhm.errors import UhmError, writing
from uhm.evaluate.records import episode_seeds
from uhm.evaluate.rooms import start
from uhm.tasks import ROOMS, Task

ActSingle = Callable[[Float[np.ndarray, " S"]], Any]
Frame = UInt8[np.ndarray, "height width 3"]

BACKENDS = ("egl", "osmesa")
SIZE = 320
_CAMERA: tuple[str, ...] = ("-m", "uhm.evaluate.camera")
_GROUND, _WALL, _GOAL, _TRAIL, _POINT = (
    np.array(colour, float)
    for colour in ((248, 246, 240), (72, 84, 102), (122, 186, 120), (236, 178, 160), (214, 72, 62))
)


def record_video(
    task: Task,
    act_single: ActSingle,
    path: Path,
    episodes: int = 1,
    seed: int = 0,
    fps: int = 30,
    simulator: Simulator | None = None,
) -> Path:
    """Film some episodes of `act_single(observation) -> action` and return the file.

    What learned from logs is filmed in a `simulator` of the user's own. The film is an mp4 where `imageio_ffmpeg` is
    installed, and else a GIF: the file's name says which.
    """
    path = path.expanduser().resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if task.environment is ROOMS:
            return save(_draw_rooms(task, act_single, episodes, seed), path, fps)
        return _film(task, simulator, act_single, path, episodes, seed, fps)


def save(frames: Iterable[Frame], path: Path, fps: int) -> Path:
    """Write frames as they come: mp4 if there is an encoder, else GIF."""
    try:
        ffmpeg = importlib.import_module("imageio_ffmpeg")
    except ImportError:
        return _save_gif(frames, path.with_suffix(".gif"), fps)
    path, encoder = path.with_suffix(".mp4"), None
    try:
        for frame in frames:
            encoder = encoder or _encoder(ffmpeg.get_ffmpeg_exe(), path, frame.shape, fps)
            assert encoder.stdin
            encoder.stdin.write(np.ascontiguousarray(frame).tobytes())
    finally:
        if encoder is not None:
            encoder.communicate()
    if encoder is None or encoder.returncode:
        raise UhmError(f"cannot write {path}: the encoder failed.")
    return path


def _encoder(ffmpeg: str, path: Path, shape: tuple[int, ...], fps: int) -> "subprocess.Popen[bytes]":
    """An ffmpeg that takes raw frames. Not through `imageio_ffmpeg`, which forks: JAX warns of that, with reason."""
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{shape[1]}x{shape[0]}", "-r", str(fps), "-i", "-"]
    # Players want an even number of pixels and this colour format.
    target = ["-an", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-c:v", "libx264", str(path)]
    command = [ffmpeg, "-y", "-loglevel", "error", *source, *target]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _save_gif(frames: Iterable[Frame], path: Path, fps: int) -> Path:
    from PIL import Image

    images = (Image.fromarray(frame) for frame in frames)
    # A GIF counts in hundredths of a second, and viewers slow down what is shorter than two.
    duration = max(20, 10 * round(100 / fps))
    next(images).save(path, save_all=True, append_images=images, duration=duration, loop=0)
    return path


def _film(
    task: Task, simulator: Simulator | None, act_single: ActSingle, path: Path, episodes: int, seed: int, fps: int
) -> Path:
    what = simulator or task.environment
    setup = {"what": dataclasses.asdict(what), "own": simulator is not None}
    setup |= {"task": task.index, "path": str(path), "fps": fps}
    setup |= {"seeds": [episode_seeds(seed, 0, task.index, e) for e in range(episodes)], "size": SIZE}
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    failed = {}
    for backend in dict.fromkeys([chosen, *BACKENDS] if chosen in BACKENDS else BACKENDS):
        with tempfile.TemporaryDirectory(prefix="uhm-video-") as folder, _camera(setup, backend, folder) as camera:
            answer = _direct(camera, act_single, what.observation_size)
        if "path" in answer:
            return Path(answer["path"])
        if answer.get("drew"):
            raise UhmError(f"the film of {what.name} failed: {answer['error']}.")
        failed[backend] = answer["error"]
    if simulator is not None:
        tried = "; ".join(dict.fromkeys(failed.values()))
        raise UhmError(f"{simulator.name} cannot be drawn here, so there is no video: {tried}.")
    tried = "; ".join(f"{backend}: {error}" for backend, error in failed.items())
    raise UhmError(f"MuJoCo cannot draw here, so there is no video ({tried}): install libegl1 or libosmesa6.")


def _direct(camera: subprocess.Popen[bytes], act_single: ActSingle, observation_size: int) -> dict[str, Any]:
    """Answer the camera's observations with actions until it says how it went."""
    assert camera.stdin and camera.stdout
    width = 4 * observation_size
    while kind := camera.stdout.read(1):
        if kind == b"{":
            return json.loads(kind + camera.stdout.read())
        observation = np.frombuffer(_exactly(camera.stdout, width), np.float32)
        action = np.clip(np.nan_to_num(np.asarray(act_single(observation), np.float32)), -1.0, 1.0)
        with contextlib.suppress(BrokenPipeError):
            camera.stdin.write(action.tobytes())
            camera.stdin.flush()
    return {"error": f"the process died (exit status {camera.wait()})"}


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """A pipe may hand out less than what was asked for."""
    data = stream.read(size)
    return data if len(data) == size else data + bytes(size - len(data))


@contextlib.contextmanager
def _camera(setup: dict[str, Any], backend: str, folder: str) -> Iterator[subprocess.Popen[bytes]]:
    own = {
        "PYTHONPATH": python_path(),
        "PYTHONWARNINGS": "ignore",
        "MUJOCO_GL": backend,
        "PYOPENGL_PLATFORM": backend,
        "TMPDIR": folder,
    }
    camera = subprocess.Popen(
        [sys.executable, "-P", *_CAMERA, json.dumps(setup)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=None if setup["own"] else folder,  # as in `uhm.evaluate.pool`
        env=os.environ | own,
        start_new_session=True,
    )
    try:
        yield camera
    finally:
        camera.kill()
        with contextlib.suppress(BrokenPipeError):
            camera.communicate()


def _draw_rooms(task: Task, act_single: ActSingle, episodes: int, seed: int) -> Iterator[Frame]:
    """The square from above: walls, the goal, the point and where it has been."""
    centres = ((np.arange(SIZE) + 0.5) / SIZE * 2 - 1) * rooms.SIZE
    grid = np.stack(np.meshgrid(centres, centres[::-1]), -1)
    goal = rooms.GOALS[task.index - 1]
    ground = np.where(rooms.blocked(grid)[..., None], _WALL, _GROUND)
    ground = _blend(ground, grid, goal, rooms.GOAL_RADIUS, _GOAL)
    for episode in range(episodes):
        xy, picture = start(task, *episode_seeds(seed, 0, task.index, episode)), ground
        for _ in range(ROOMS.episode_limit):
            yield _blend(picture, grid, xy, 0.22, _POINT).round().astype(np.uint8)
            if rooms.at_goal(xy, goal):
                break
            picture = _blend(picture, grid, xy, 0.08, _TRAIL)
            action = np.nan_to_num(np.asarray(act_single(xy.astype(np.float32)), np.float64))
            xy = rooms.move(xy, action)


def _blend(picture: np.ndarray, grid: np.ndarray, xy: np.ndarray, radius: float, colour: np.ndarray) -> np.ndarray:
    """A disc with a soft edge."""
    pixels = SIZE / (2 * rooms.SIZE)
    cover = np.clip((radius - np.linalg.norm(grid - xy, axis=-1)) * pixels + 0.5, 0, 1)[..., None]
    return picture * (1 - cover) + colour * cover
