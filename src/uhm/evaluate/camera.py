"""The program that films episodes of a simulator for `uhm.evaluate.video`: a MuJoCo environment, or the user's own.

It sends an observation (`o`, then its numbers), reads an action, and so on; last comes one JSON object that tells the
file or the error. Whether this machine can draw at all shows with the first picture, before anything is sent.
"""

import importlib
import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from uhm.envs.own import Simulator
from uhm.errors import UhmError
from uhm.evaluate.video import save
from uhm.evaluate.worker import OwnSimulation, Simulation
from uhm.tasks import Environment


def simulation(setup: dict[str, Any]) -> Simulation:
    """The simulator, which has drawn one picture."""
    if setup["own"]:
        own = OwnSimulation(Simulator(**setup["what"]), render_mode="rgb_array")
        own.reset(setup["task"], setup["seeds"][0])
        picture(own.env.render())
        return own
    size = {"width": setup["size"], "height": setup["size"]}
    known = Simulation(Environment(**setup["what"]), render_mode="rgb_array", **size)
    plain(known.env)
    return known


def plain(env: Any) -> None:
    """Without shadows, reflections and smooth edges, which make a picture ten times slower in software."""
    mujoco: Any = importlib.import_module("mujoco")  # its names are made at run time
    env.model.vis.quality.offsamples = 0
    env.render()  # makes the renderer
    renderer = getattr(env, "custom_renderer", None) or env._renderer
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer.scene.flags[flag] = 0


def picture(drawn: Any) -> np.ndarray:
    """Red, green and blue in bytes; how opaque it is does not matter."""
    if not isinstance(drawn, np.ndarray) or drawn.dtype != np.uint8 or drawn.ndim != 3 or drawn.shape[2] not in (3, 4):
        about = f"{drawn.dtype} of shape {drawn.shape}" if isinstance(drawn, np.ndarray) else type(drawn).__name__
        raise UhmError(f"its render() gives no picture of bytes in three colours, but {about}")
    return drawn[:, :, :3]


def frames(filmed: Simulation, setup: dict[str, Any], answers: Any) -> Iterator[np.ndarray]:
    """Play the episodes, a picture per step."""
    for seeds in setup["seeds"]:
        observation = filmed.reset(setup["task"], seeds)
        yield picture(filmed.env.render())
        for length in itertools.count(1):
            answers.write(b"o" + observation.astype(np.float32).tobytes())
            answers.flush()
            action = sys.stdin.buffer.read(4 * setup["what"]["action_size"])
            observation, _, terminated, truncated, _ = filmed.env.step(np.frombuffer(action, np.float32).copy())
            yield picture(filmed.env.render())
            if terminated or truncated or length >= filmed.limit:
                break


def main() -> None:
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    setup = json.loads(sys.argv[1])
    result: dict[str, Any] = {"drew": False}
    try:
        filmed = simulation(setup)
        result["drew"] = True
        fps = filmed.env.metadata.get("render_fps") if setup["own"] else None
        result["path"] = str(save(frames(filmed, setup, answers), Path(setup["path"]), fps or setup["fps"]))
    except BaseException as error:
        # PyOpenGL's errors cannot always be written out.
        try:
            reason = " ".join(str(error).split())
        except Exception:
            reason = ""
        result["error"] = reason if isinstance(error, UhmError) else f"{type(error).__name__} {reason}".strip()
    answers.write(json.dumps(result).encode())
    answers.flush()
    os._exit(0)  # graphics libraries may crash while they clean up


if __name__ == "__main__":
    main()
