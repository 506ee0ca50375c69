"""What is where in an observation, as things with positions in metres, and what stands around them.

Mazes: the first two numbers are x and y; in soccer the ball's come at 15. Arms (OGBench's `compute_observation`): 12
numbers of joints, the gripper's position at 12, its yaw, opening and contact, then 9 numbers per cube that begin with
its position, 4 per button (its state as two, position, velocity), and position and velocity of drawer and window.
Positions are stored as (xyz - centre) * 10.
"""

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from uhm import envs
from uhm.envs import rooms
from uhm.tasks import ROOMS, Environment, Task

_CENTRE = (0.425, 0.0, 0.0)
_GRIPPER, _OBJECTS, _CUBE, _BUTTON = 12, 19, 9, 4
_BALL = 15


class Thing(NamedTuple):
    """`of(states)` are the positions of a thing: xy, xyz, or how far it slid."""

    name: str
    first: int
    size: int
    scale: float = 1.0
    centre: tuple[float, ...] = ()

    def of(self, states: Float[np.ndarray, "*b S"]) -> Float[np.ndarray, "*b d"]:
        stored = np.asarray(states)[..., self.first : self.first + self.size]
        return stored / self.scale + np.array(self.centre or (0.0,) * self.size)


class View(NamedTuple):
    """`things` move on the map, `slides` along a line; `buttons` are where button states begin; `unit` is a length."""

    things: tuple[Thing, ...]
    slides: tuple[Thing, ...] = ()
    buttons: tuple[int, ...] = ()
    unit: str = "m"
    unit_length: float = 1.0
    arm: bool = False

    def positions(self, states: Float[np.ndarray, "*b S"]) -> Float[np.ndarray, "*b d"]:
        """All that has a length, as one vector: what distances are measured in."""
        return np.concatenate([thing.of(states) for thing in (*self.things, *self.slides)], -1)

    def lit(self, states: Float[np.ndarray, "*b S"]) -> np.ndarray:
        """Which buttons are on [*b, buttons]: the second of the two numbers is the larger."""
        states = np.asarray(states)
        return np.stack([states[..., first + 1] > states[..., first] for first in self.buttons], -1)

    @property
    def names(self) -> list[str]:
        return [thing.name for thing in (*self.things, *self.slides)]


def view(environment: Environment) -> View:
    name = environment.gym_name
    if environment is ROOMS:
        return View((Thing("point", 0, 2),), unit="steps", unit_length=rooms.STEP)
    if environment.domain == "locomotion":
        body = Thing(name.split("maze")[0].split("soccer")[0], 0, 2)
        return View((body, Thing("ball", _BALL, 2)) if "soccer" in name else (body,))
    gripper = Thing("gripper", _GRIPPER, 3, 10.0, _CENTRE)
    if name.startswith("puzzle"):
        count = (environment.observation_size - _OBJECTS) // _BUTTON
        return View((gripper,), buttons=tuple(_OBJECTS + _BUTTON * i for i in range(count)), arm=True)
    scene = name.startswith("scene")
    cubes = 1 if scene else (environment.observation_size - _OBJECTS) // _CUBE
    label = "cube" if cubes == 1 else "cube {}"
    things = [Thing(label.format(i + 1), _OBJECTS + _CUBE * i, 3, 10.0, _CENTRE) for i in range(cubes)]
    if not scene:
        return View((gripper, *things), arm=True)
    after = _OBJECTS + _CUBE * cubes
    slides = (Thing("drawer", after + 2 * _BUTTON, 1, 18.0), Thing("window", after + 2 * _BUTTON + 2, 1, 15.0))
    return View((gripper, *things), slides, (after, after + _BUTTON), arm=True)


class Table(NamedTuple):
    """What an arm works on: buttons and goals in metres [k, 2], the space that the gripper stays in, first states."""

    buttons: np.ndarray
    goals: np.ndarray
    low: np.ndarray
    high: np.ndarray
    starts: np.ndarray


@functools.lru_cache(maxsize=4)
def table(task: Task, starts: int) -> Table:
    """Read off OGBench's own environment, which is not drawn; `starts` first observations of its episodes."""
    env: Any = envs.make(task).unwrapped
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OGBench's resets warn about number types
        for seed in range(max(starts, 1)):
            seen.append(env.reset(seed=seed)[0])
    sites = getattr(env, "_button_site_ids", [])
    low, high = env._workspace_bounds
    return Table(
        buttons=env._data.site_xpos[sites][:, :2].copy() if len(sites) else np.zeros((0, 2)),
        goals=env._data.mocap_pos[:, :2].copy(),
        low=low.copy(),
        high=high.copy(),
        starts=np.stack(seen).astype(np.float32),
    )
