"""Episodes in mazes: a point that walks by itself, or an ant that walks by an expert policy.

`navigate`: from a random cell to random goals, one after the other, along the shortest way. `explore`: a new random
direction every ten steps. The ant's expert knows its body and a direction to walk in, never where it is.
"""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from uhm.data.collect import Episode, Simulation, pack
from uhm.errors import UhmError

Policy = Callable[[np.ndarray], np.ndarray]
Cell = tuple[int, int]

_STEPS_PER_DIRECTION = 10


class Maze:
    """Collects `navigate` or `explore` episodes of one maze; without a policy the action is the direction itself."""

    def __init__(self, gym_name: str, kind: str, rows: int, policy: Policy | None):
        if kind not in ("navigate", "explore"):
            raise UhmError(f"{gym_name}-{kind} cannot be generated: mazes have navigate and explore data, not {kind}.")
        self._rows = rows
        self._explore = kind == "explore"
        self._policy = policy
        self._noise = 1.0 if self._explore else 0.5 if policy is None else 0.2
        self._simulation = Simulation(f"{gym_name}-v0", terminate_at_goal=False, max_episode_steps=rows)
        self._free, self._goals = cells(self._simulation.env.maze_map)
        self._way: dict[tuple[Cell, Cell], np.ndarray] = {}

    def episode(self, rng: np.random.Generator) -> Episode:
        env = self._simulation.env
        start, goal = self._free[rng.integers(len(self._free))], self._goals[rng.integers(len(self._goals))]
        observation, _ = self._simulation.reset(rng, {"task_info": {"init_ij": start, "goal_ij": goal}})

        rows: dict[str, list] = defaultdict(list)
        direction = np.zeros(2)
        for step in range(self._rows):
            if not self._explore:
                position = env.get_xy()
                direction = _unit(self._next_cell(position, env.cur_goal_xy) - position)
            elif step % _STEPS_PER_DIRECTION == 0:
                direction = _unit(rng.normal(size=2))
            action = direction if self._policy is None else self._policy(np.concatenate([observation[2:], direction]))
            action = np.clip(action + rng.normal(0, self._noise, action.shape), -1, 1)
            rows["observations"].append(observation)
            rows["actions"].append(action)
            observation, _, _, _, info = env.step(action)
            rows["qpos"].append(info["prev_qpos"])
            rows["qvel"].append(info["prev_qvel"])
            if info["success"] and not self._explore:
                # By position: given a cell, `set_goal` would put the drawn target at (nan, nan).
                goal = self._goals[rng.integers(len(self._goals))]
                env.set_goal(goal_xy=env.add_noise(env.ij_to_xy(goal)))
        return pack(rows)

    def _next_cell(self, position: np.ndarray, goal: tuple[float, float]) -> np.ndarray:
        """The middle of the next cell on the shortest way. OGBench searches the maze anew at every step."""
        env = self._simulation.env
        key = (env.xy_to_ij(position), env.xy_to_ij(goal))
        if key not in self._way:
            self._way[key], _ = env.get_oracle_subgoal(position, goal)
        return self._way[key]


def cells(maze_map: np.ndarray) -> tuple[list[Cell], list[Cell]]:
    """The free cells of a maze, and those of them that can be goals: all but the middles of straight corridors."""
    free = [(int(i), int(j)) for i, j in np.argwhere(maze_map == 0)]
    goals = []
    for i, j in free:
        vertical = (maze_map[i - 1, j], maze_map[i + 1, j])
        horizontal = (maze_map[i, j - 1], maze_map[i, j + 1])
        if (vertical, horizontal) not in (((0, 0), (1, 1)), ((1, 1), (0, 0))):
            goals.append((i, j))
    return free, goals


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / (np.linalg.norm(vector) + 1e-6)
