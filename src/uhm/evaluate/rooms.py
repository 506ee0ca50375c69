"""Evaluation in `rooms`: all episodes of all members at once, as arrays, in this process."""

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding
from jaxtyping import Float

from uhm.envs import rooms
from uhm.evaluate.policy import Act
from uhm.evaluate.records import Episode, brief, episode_seeds
from uhm.tasks import ROOMS, Task


def run(
    act: Act, tasks: Sequence[Task], seeds: Sequence[int], discounts: Sequence[float] | None, step: int, episodes: int
) -> tuple[list[Episode], Float[np.ndarray, "members episodes 2"]]:
    """The episodes that the Gymnasium environment would give with the same seeds, and their first observations."""
    pairs = list(zip(tasks, seeds, strict=True))
    xy = np.array([[start(t, *episode_seeds(s, step, t.index, e)) for e in range(episodes)] for t, s in pairs])
    goals = rooms.GOALS[[task.index - 1 for task in tasks], None]
    first, shape = xy.astype(np.float32), xy.shape[:2]
    success, returns, discounted, lengths = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape, int)
    discount = np.broadcast_to(np.reshape(discounts or 1.0, (-1, 1)), shape)
    running = np.ones(shape, bool)
    for count in range(ROOMS.episode_limit):
        actions = np.nan_to_num(np.asarray(act(xy.astype(np.float32), count), np.float64))
        solved = rooms.at_goal(xy, goals)
        success[running] = solved[running]
        returns[running] += solved[running] - 1.0
        discounted[running] += discount[running] ** count * (solved[running] - 1.0)
        lengths[running] += 1
        running &= ~solved
        if not running.any():
            break
        xy = rooms.move(xy, actions)
    records = []
    for m, task in enumerate(tasks):
        for e in range(episodes):
            result = float(success[m, e]), float(returns[m, e]), int(lengths[m, e])
            known = brief(float(discounted[m, e])) if discounts else None
            records.append(Episode(m, task.name, int(seeds[m]), step, e, *result, known))
    return records, first


def start(task: Task, in_global: int, in_env: int, in_actions: int) -> Float[np.ndarray, " 2"]:
    """The first position of an episode."""
    noise = seeding.np_random(in_env)[0].uniform(-rooms.START_NOISE, rooms.START_NOISE, 2)
    return np.array(rooms.TASKS[task.index - 1][0]) + noise
