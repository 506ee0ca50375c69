"""`rooms`: a point in a square with four rooms, small enough to learn on a laptop and to draw.

A cross of walls divides the square [-5, 5]^2; three of its arms have a door, so the rooms are a chain and every way is
the only one: between two equal ways a deterministic policy would stand still. An action in [-1, 1]^2 moves the point by
as much, and a move into a wall stops along that axis only. Reward and termination follow OGBench: -1 until the state
before the action is at the goal, 0 and termination there. The walls are two steps thick on purpose: value leaks through
thin ones. So is the size of the square: networks cannot tell places apart that differ by a hundredth.

All functions act on arrays of points, so thousands of walkers advance in one call.
"""

from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float

SIZE = 5.0  # half the side of the square
STEP = 1.0
WALL = 1.0  # half the thickness of the walls, which stand on both axes
DOOR = 0.8  # half the width of a door
UPRIGHT_DOORS = np.array([3.0])  # where the wall along the y axis is open
LEVEL_DOORS = np.array([-3.0, 3.0])  # where the wall along the x axis is open
GOAL_RADIUS = 0.8
START_NOISE = 0.5

# Start and goal of each task: four times through two doors, and once through one.
TASKS = (
    ((-4.0, -4.0), (4.0, 4.0)),
    ((4.0, -4.0), (-4.0, 4.0)),
    ((-4.0, 4.0), (4.0, -2.0)),
    ((4.0, 4.0), (-4.0, -2.0)),
    ((-4.0, -4.0), (-2.0, 4.0)),
)
GOALS = np.array([goal for _, goal in TASKS])


def blocked(xy: Float[np.ndarray, "*n 2"]) -> Bool[np.ndarray, "*n"]:
    """Whether a point is in a wall or outside the square."""
    x, y = xy[..., 0], xy[..., 1]
    upright = (np.abs(x) < WALL) & ~_at(y, UPRIGHT_DOORS)
    level = (np.abs(y) < WALL) & ~_at(x, LEVEL_DOORS)
    outside = np.any(np.abs(xy) > SIZE, axis=-1)
    return np.asarray(upright | level | outside)


def _at(position: Any, doors: np.ndarray) -> Any:
    return np.any(np.abs(position[..., None] - doors) < DOOR, axis=-1)


def move(xy: Float[np.ndarray, "*n 2"], action: Float[np.ndarray, "*n 2"]) -> Float[np.ndarray, "*n 2"]:
    """One step: each axis in turn, and not at all where it would end in a wall."""
    step = STEP * np.clip(action, -1.0, 1.0)
    for axis in (0, 1):
        moved = xy.copy()
        moved[..., axis] += step[..., axis]
        xy = np.where(blocked(moved)[..., None], xy, moved)
    return xy


def at_goal(xy: Float[np.ndarray, "*n 2"], goal: Float[np.ndarray, "*m 2"]) -> Bool[np.ndarray, "..."]:
    return np.asarray(np.linalg.norm(xy - goal, axis=-1) <= GOAL_RADIUS)


class Rooms(gymnasium.Env):
    """One task as a Gymnasium environment; `info["success"]` speaks of the state before the action, as in OGBench."""

    metadata = {"render_modes": []}  # noqa: RUF012  Gymnasium's own convention

    def __init__(self, task: int = 1):
        self.start, self.goal = (np.array(point) for point in TASKS[task - 1])
        self.observation_space = gymnasium.spaces.Box(-SIZE, SIZE, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.xy = self.start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.xy = self.start + self.np_random.uniform(-START_NOISE, START_NOISE, 2)
        return self.xy.astype(np.float32), {}

    def step(self, action):
        success = bool(at_goal(self.xy, self.goal))
        self.xy = move(self.xy, np.asarray(action, np.float64))
        return self.xy.astype(np.float32), float(success) - 1.0, success, False, {"success": float(success)}


def walk(rng: np.random.Generator, walkers: int, rows: int) -> dict[str, np.ndarray]:
    """`walkers` trajectories of `rows` rows by noisy, suboptimal walkers.

    A walker heads for a random point, mostly one of its own room and else by way of the doors, with heavy noise on its
    action and now and then a random action; on arrival it picks another.
    """
    xy = _free_points(rng, rng.integers(0, 2, (walkers, 2)))
    target = _next_target(rng, xy)
    observations, actions = np.empty((walkers, rows, 2)), np.empty((walkers, rows, 2))
    for t in range(rows):
        there = np.linalg.norm(xy - target, axis=-1) < STEP
        target = np.where(there[:, None], _next_target(rng, xy), target)
        heading = waypoint(xy, target) - xy
        direction = heading / np.maximum(np.linalg.norm(heading, axis=-1, keepdims=True), 1e-6)
        action = direction + rng.normal(0.0, 0.5, (walkers, 2))
        action = np.where(rng.random((walkers, 1)) < 0.1, rng.uniform(-1, 1, (walkers, 2)), action)
        action = np.clip(action, -1.0, 1.0)
        observations[:, t], actions[:, t] = xy, action
        xy = move(xy, action)
    terminals = np.zeros((walkers, rows), bool)
    terminals[:, -1] = True
    flat = observations.reshape(-1, 2).astype(np.float32)
    return {
        "observations": flat,
        "actions": actions.reshape(-1, 2).astype(np.float32),
        "terminals": terminals.reshape(-1),
        "qpos": flat,
    }


def _free_points(rng: np.random.Generator, room: np.ndarray) -> np.ndarray:
    """Uniform points in the given rooms, each a pair (right, top) of zeros and ones."""
    return np.where(room > 0, 1.0, -1.0) * rng.uniform(WALL, SIZE, room.shape)


def _next_target(rng: np.random.Generator, xy: np.ndarray) -> np.ndarray:
    """Two times out of three in the same room, so that corners are visited as well as the way between doors."""
    stay = rng.random((len(xy), 1)) < 2 / 3
    return _free_points(rng, np.where(stay, xy > 0, rng.integers(0, 2, xy.shape)))


def waypoint(xy: Float[np.ndarray, "n 2"], target: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    """Where to head: to the target in the same room, else into the middle of the next room on the way.

    A walker that is not in line with the door goes to the middle of its own room first, from where the door is ahead.
    """
    room, goal_room = _room(xy), _room(target)
    here, there = _MIDDLE[room], _MIDDLE[np.clip(room + np.sign(goal_room - room), 0, 3)]
    across = np.where(here[:, 0] == there[:, 0], 0, 1)  # the axis along which the door is as narrow as it is
    off = np.abs(np.take_along_axis(xy - here, across[:, None], 1)) > DOOR - 0.2
    through = np.where(off, here, there)
    return np.where((room == goal_room)[:, None] & ~_in_door(xy)[:, None], target, through)


# The middles of the rooms in the order of the chain, which begins lower left and ends lower right.
_MIDDLE = np.array([(-3.0, -3.0), (-3.0, 3.0), (3.0, 3.0), (3.0, -3.0)])


def _room(xy: np.ndarray) -> np.ndarray:
    """The number of the room (or of the half of a door) that a point is in, along the chain."""
    right, top = xy[..., 0] > 0, xy[..., 1] > 0
    return np.where(right, np.where(top, 2, 3), np.where(top, 1, 0))


def _in_door(xy: np.ndarray) -> np.ndarray:
    return np.any(np.abs(xy) < WALL, axis=-1)
