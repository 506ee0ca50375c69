"""Relabelling: the rewards and masks of an environment's five tasks as functions of the stored simulator state.

Locomotion: r = success - 1. Manipulation: r = (sub-goals satisfied) - (sub-goals). The mask is 0 where the task is
solved. Both speak of the current row. The goals are read off OGBench's own environments, so they cannot drift from
what evaluation uses.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from uhm import envs
from uhm.envs import rooms
from uhm.tasks import ROOMS, Environment

# Where OGBench keeps objects in the arm's qpos: 14 joints, then 7 numbers per cube, one per button, drawer, window.
_ARM, _CUBE = 14, 7
_BALL = 15
_TOLERANCE = 0.04  # metres, for cubes, drawer and window

Columns = dict[str, np.ndarray]


class Goals(NamedTuple):
    """`solved(columns)` says which sub-goals each row satisfies, for every task; `fields` are the columns it reads."""

    fields: tuple[str, ...]
    solved: Callable[[Columns], Bool[np.ndarray, "tasks rows subgoals"]]

    def label(self, columns: Columns) -> tuple[Int[np.ndarray, "tasks rows"], Bool[np.ndarray, "tasks rows"]]:
        """Rewards and masks of every task."""
        solved = self.solved(columns)
        return (solved.sum(-1) - solved.shape[-1]).astype(np.int8), np.logical_not(solved.all(-1))


def goals(environment: Environment) -> Goals:
    """The goals of the five tasks of `environment`."""
    if environment is ROOMS:
        return Goals(("qpos",), lambda c: rooms.at_goal(c["qpos"][None], rooms.GOALS[:, None])[..., None])
    if environment.domain == "locomotion":
        return _reach(environment)
    if environment.gym_name.startswith("puzzle"):
        buttons = _read(environment, lambda env: env._target_button_states.copy())
        return Goals(("button_states",), lambda c: c["button_states"][None] == buttons[:, None])
    return _arrange(environment)


def _read(environment: Environment, goal: Callable[[Any], Any]) -> np.ndarray:
    """`goal` of each task, asked of one environment that is put through all of them."""
    env = envs.make(environment.tasks[0])
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # OGBench's resets warn about number types
        for task in environment.tasks:
            # Building an environment takes a second, switching its task does not.
            env.unwrapped._reward_task_id = task.index  # type: ignore[attr-defined]
            env.reset()
            found.append(np.asarray(goal(env.unwrapped)))
        env.close()
    return np.stack(found)


def _reach(environment: Environment) -> Goals:
    """Mazes: the body is near the goal; soccer: the ball is."""
    first = _BALL if environment.gym_name.startswith("antsoccer") else 0
    read = _read(environment, lambda env: (*env.cur_goal_xy, env._goal_tol))
    goal, radius = read[:, None, :2], read[:, None, 2]

    def solved(columns: Columns) -> Bool[np.ndarray, "tasks rows subgoals"]:
        return (np.linalg.norm(columns["qpos"][None, :, first : first + 2] - goal, axis=-1) <= radius)[..., None]

    return Goals(("qpos",), solved)


def _arrange(environment: Environment) -> Goals:
    """Cubes at their targets; in `scene` also both buttons, the drawer and the window."""
    targets = _read(environment, lambda env: env._data.mocap_pos.copy())
    cubes = targets.shape[1]

    def cubes_solved(columns: Columns) -> Bool[np.ndarray, "tasks rows cubes"]:
        qpos = columns["qpos"][:, _ARM : _ARM + cubes * _CUBE].reshape(-1, cubes, _CUBE)[..., :3]
        return np.linalg.norm(targets[:, None] - qpos, axis=-1) <= _TOLERANCE

    if not environment.gym_name.startswith("scene"):
        return Goals(("qpos",), cubes_solved)

    buttons = _read(environment, lambda env: env._target_button_states.copy())
    slides = _read(environment, lambda env: (env._target_drawer_pos, env._target_window_pos))
    first = _ARM + cubes * _CUBE + buttons.shape[1]

    def solved(columns: Columns) -> Bool[np.ndarray, "tasks rows subgoals"]:
        pressed = columns["button_states"][None] == buttons[:, None]
        slid = np.abs(columns["qpos"][None, :, first : first + 2] - slides[:, None]) <= _TOLERANCE
        return np.concatenate([cubes_solved(columns), pressed, slid], axis=-1)

    return Goals(("qpos", "button_states"), solved)
