"""The truth by Monte Carlo: worlds that can be put into a state and stepped, many copies of it at once.

A world's states are its own (a position in `rooms`; in a maze what MuJoCo integrates, and beside it the observation,
part of which is older than the state by a fraction of a step); models see observations. A path ends as the models are
taught: the successor of a goal state is absorbing, and a path stays there.
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial import KDTree

from uhm import envs
from uhm.data import Dataset
from uhm.envs import rooms
from uhm.tasks import ROOMS, Task

_EPISODE = 400  # steps of the episodes that start states are taken from


@runtime_checkable
class World(Protocol):
    """What Monte Carlo needs; states are [*batch, P]."""

    def begin(self) -> np.ndarray:
        """States [k, P] in which episodes begin, that of the task itself first."""
        ...

    def observe(self, states: np.ndarray) -> np.ndarray: ...

    def solved(self, states: np.ndarray) -> np.ndarray: ...

    def step(self, states: np.ndarray, actions: np.ndarray, running: np.ndarray) -> np.ndarray:
        """The states after one step; those that do not run stay."""
        ...


class Rooms:
    """`rooms` with the goal of a task."""

    def __init__(self, goal: Float[np.ndarray, " 2"]):
        self.goal = goal

    def begin(self) -> Float[np.ndarray, "k 2"]:
        starts = np.unique(np.array([start for start, _ in rooms.TASKS]), axis=0)
        own = [start for start, goal in rooms.TASKS if np.array_equal(goal, self.goal)]
        starts = np.concatenate([np.array(own).reshape(-1, 2), starts])
        return starts[~rooms.at_goal(starts, self.goal)]

    def observe(self, states: Float[np.ndarray, "*b 2"]) -> Float[np.ndarray, "*b 2"]:
        return states.astype(np.float32)

    def solved(self, states: Float[np.ndarray, "*b 2"]) -> Bool[np.ndarray, "*b"]:
        return rooms.at_goal(states, self.goal)

    def step(
        self, states: Float[np.ndarray, "*b 2"], actions: Float[np.ndarray, "*b 2"], running: Bool[np.ndarray, "*b"]
    ) -> Float[np.ndarray, "*b 2"]:
        return np.where(running[..., None], rooms.move(states, actions), states)


class Maze:
    """One of OGBench's mazes: a single environment that is put into one state after the other."""

    def __init__(self, task: Task):
        self._mujoco: Any = importlib.import_module("mujoco")  # its names are made at run time
        self._env: Any = envs.make(task).unwrapped
        self._what = self._mujoco.mjtState.mjSTATE_INTEGRATION
        self._size = self._mujoco.mj_stateSize(self._env.model, self._what)
        own = task.index
        others = [other.index for other in task.environment.tasks if other.index != own]
        self._begin = np.stack([self._reset(index) for index in (own, *others)])
        self._reset(own)  # the goal is this task's again
        self.goal = np.array(self._env.cur_goal_xy, float)

    def _reset(self, index: int) -> np.ndarray:
        """The state in which a task begins, always the same."""
        np.random.seed(0)  # mazes draw from it
        self._env._reward_task_id = index
        self._env.action_space.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # OGBench's resets warn about number types
            self._env.reset(seed=0)
        return self._get()

    def _get(self) -> np.ndarray:
        state = np.empty(self._size)
        self._mujoco.mj_getState(self._env.model, self._env.data, state, self._what)
        return np.concatenate([state, self._env.get_ob()])

    def _set(self, state: np.ndarray) -> None:
        self._mujoco.mj_setState(self._env.model, self._env.data, state[: self._size], self._what)

    def begin(self) -> Float[np.ndarray, "k P"]:
        return self._begin

    def observe(self, states: Float[np.ndarray, "*b P"]) -> Float[np.ndarray, "*b S"]:
        return states[..., self._size :].astype(np.float32)

    def solved(self, states: Float[np.ndarray, "*b P"]) -> Bool[np.ndarray, "*b"]:
        found = np.zeros(states.shape[:-1], bool)
        for index in np.ndindex(found.shape):
            self._set(states[index])
            found[index] = self._env.compute_success()
        return found

    def step(
        self, states: Float[np.ndarray, "*b P"], actions: Float[np.ndarray, "*b A"], running: Bool[np.ndarray, "*b"]
    ) -> Float[np.ndarray, "*b P"]:
        after = states.copy()
        for index in zip(*np.nonzero(running), strict=True):
            self._set(states[index])
            self._env.step(np.asarray(actions[index], np.float64))
            after[index] = self._get()
        return after

    def walls(self) -> list[tuple[float, float, float]]:
        """The blocks: their lower left corners and their side."""
        side, env = float(self._env._maze_unit), self._env
        corners = [env.ij_to_xy(ij) for ij in zip(*np.nonzero(env.maze_map), strict=True)]
        return [(float(x) - side / 2, float(y) - side / 2, side) for x, y in corners]


def world(task: Task) -> Rooms | Maze:
    return Rooms(rooms.GOALS[task.index - 1]) if task.environment is ROOMS else Maze(task)


class Behaviour:
    """What the data do next after (s, a): the action stored one row after one of the rows that are most like it.

    This is the other half of behaviour mixing. Likeness means something where observations are a few numbers only.
    """

    LARGEST = 4  # observation size
    _ROWS, _LIKE = 200_000, 16

    def __init__(self, data: Dataset, beta: float):
        rows = np.asarray(data.starts)
        rows = np.random.default_rng(0).choice(rows, min(self._ROWS, len(rows)), replace=False)
        s, a = np.asarray(data.observations[rows]), np.asarray(data.actions[rows])
        self._next, self._scale = np.asarray(data.actions[rows + 1]), np.concatenate([s.std(0), a.std(0)]) + 1e-6
        self._tree, self._like = KDTree(np.concatenate([s, a], -1) / self._scale), min(self._LIKE, len(rows))
        self.beta = beta

    def mix(self, rng: np.random.Generator, policy: np.ndarray, s: np.ndarray, a: np.ndarray) -> np.ndarray:
        """The policy's actions after (s, a), and at a share of beta the data's."""
        like = np.asarray(self._tree.query(np.concatenate([s, a], -1) / self._scale, self._like)[1])
        like = like.reshape(*s.shape[:-1], self._like)
        one = rng.integers(0, self._like, (*like.shape[:-1], 1))
        stored = self._next[np.take_along_axis(like, one, -1)[..., 0]]
        return np.where(rng.random(policy.shape[:-1])[..., None] < self.beta, stored, policy)


def monte_carlo(
    world: World,
    act: Callable[..., Any],
    seed: int,
    states: np.ndarray,
    actions: Any,
    steps: int,
    behaviour: Behaviour | None = None,
) -> Float[np.ndarray, "steps *b S"]:
    """Observations after 1 .. `steps` steps from `states`: first `actions`, then the policy `act(key, observation)`,
    mixed with the data's behaviour if that is given."""
    running, found, a = np.ones(states.shape[:-1], bool), [], np.asarray(actions)
    s, rng = world.observe(states), np.random.default_rng(seed)
    for key in jax.random.split(jax.random.key(seed), steps):
        after = world.step(states, a, running)
        running = running & ~world.solved(states)
        states, before, s = after, s, world.observe(after)
        found.append(s)
        policy = np.nan_to_num(np.asarray(act(key, jnp.asarray(s))))
        a = policy if behaviour is None else behaviour.mix(rng, policy, before, a)
    return np.stack(found)


def visited(
    world: World, act: Callable[..., Any], seed: int, count: int, steps: int, place: Callable[[Any], Any]
) -> tuple[np.ndarray, Float[np.ndarray, "count S"]]:
    """`count` states, with their observations, that the policy comes by and that lie far from each other.

    `place(observations)` is where they lie. The first one is the start of the task. The last `steps` states before a
    goal are left out where there are others: there is little to come.
    """
    states = world.begin()
    pool, seen, ended = [states], [world.observe(states)], [world.solved(states)]
    for key in jax.random.split(jax.random.key(seed), _EPISODE):
        if ended[-1].all():
            break
        states = world.step(states, np.nan_to_num(np.asarray(act(key, jnp.asarray(seen[-1])))), ~ended[-1])
        pool.append(states)
        seen.append(world.observe(states))
        ended.append(ended[-1] | world.solved(states))
    end = np.stack(ended)
    late = np.concatenate([end[steps:], np.repeat(end[-1:], min(steps, len(end)), 0)])
    for skipped in (late, end, np.zeros_like(end)):
        if not skipped.all():
            break
    chosen = np.stack(pool)[~skipped], np.stack(seen)[~skipped]
    index = spread(np.asarray(place(chosen[1]), np.float64), count)
    return chosen[0][index], chosen[1][index]


def spread(points: Float[np.ndarray, "m d"], count: int) -> np.ndarray:
    """`count` of the points, the first one and then always the one that is farthest from those chosen."""
    chosen, distance = [0], np.linalg.norm(points - points[0], axis=-1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=-1))
    return np.array(chosen)
