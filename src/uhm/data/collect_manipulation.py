"""Episodes of the robot arm (cube, scene, puzzle), acted by OGBench's scripted oracles.

`play`: an oracle plans a whole motion, with smooth noise in the plan, and follows it. `noisy`: an oracle reacts to
the state, its actions are disturbed by an amount drawn per episode, and some are replaced by random ones. In both, a
new random target follows whenever the oracle has finished with the last.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from uhm.data.collect import Episode, Simulation, pack
from uhm.errors import UhmError

# How often a cube is put on another rather than on the table, drawn per episode from this range.
_STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
}
_STACKING_ELSEWHERE = (0.5, 0.5)

_LARGEST_NOISE = 0.1
_NOISE_PER_DIMENSION = np.array([1.0, 1.0, 1.0, 3.0, 10.0])  # x, y, z, yaw, gripper
_ACTION_SIZE = 5


class Manipulation:
    """Collects `play` or `noisy` episodes of one environment."""

    def __init__(self, gym_name: str, kind: str, rows: int):
        if kind not in ("play", "noisy"):
            raise UhmError(f"{gym_name}-{kind} cannot be generated: the arm has play and noisy data, not {kind}.")
        self._rows = rows
        self._family = gym_name.split("-")[0]
        self._noisy = kind == "noisy"
        self._random_actions = 0.0 if not self._noisy else 0.2 if self._family == "puzzle" else 0.1
        self._stacking = _STACKING.get(gym_name, _STACKING_ELSEWHERE)
        self._simulation = Simulation(
            f"{gym_name}-v0", terminate_at_goal=False, mode="data_collection", max_episode_steps=rows
        )
        self._oracles = _oracles(self._simulation.env, self._family, self._noisy)

    def episode(self, rng: np.random.Generator) -> Episode:
        while True:
            episode = self._attempt(rng)
            if self._family != "scene" or self._cube_in_place(episode["qpos"]):
                return episode

    def _attempt(self, rng: np.random.Generator) -> Episode:
        env = self._simulation.env
        observation, info = self._simulation.reset(rng)
        stacking = rng.uniform(*self._stacking)
        noise = rng.uniform(0, _LARGEST_NOISE) * _NOISE_PER_DIMENSION
        oracle = self._oracles[info["privileged/target_task"]]
        oracle.reset(observation, info)

        rows: dict[str, list] = defaultdict(list)
        for _ in range(self._rows):
            if self._noisy and rng.random() < self._random_actions:
                action = rng.uniform(-1, 1, _ACTION_SIZE)
            else:
                action = np.asarray(oracle.select_action(observation, info))
                if self._noisy:
                    action = action + rng.normal(0, noise)
            action = np.clip(action, -1, 1)
            rows["observations"].append(observation)
            rows["actions"].append(action)
            observation, _, _, _, info = env.step(action)
            rows["qpos"].append(info["prev_qpos"])
            rows["qvel"].append(info["prev_qvel"])
            if "prev_button_states" in info:
                rows["button_states"].append(info["prev_button_states"])
            if oracle.done:
                # `info` stays that of the step, as in OGBench's own sets: a reacting oracle sees the new target only
                # after the next one.
                new_observation, new_info = env.set_new_target(p_stack=stacking)
                oracle = self._oracles[new_info["privileged/target_task"]]
                oracle.reset(new_observation, new_info)
        return pack(rows)

    def _cube_in_place(self, qpos: np.ndarray) -> bool:
        """Whether the scene's cube stayed where it can be seen: not thrown behind the window or beside the drawer."""
        start = self._simulation.env.model.joint("object_joint_0").qposadr[0]
        y, z = qpos[:, start + 1], qpos[:, start + 2]
        beside_drawer = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
        return not (np.any(y >= 0.29) or np.any(beside_drawer))


def _oracles(env: Any, family: str, noisy: bool) -> dict[str, Any]:
    """The oracle for each kind of target that the environment names."""
    if noisy:
        from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle as Button
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle as Cube
        from ogbench.manipspace.oracles.markov.drawer_markov import DrawerMarkovOracle as Drawer
        from ogbench.manipspace.oracles.markov.window_markov import WindowMarkovOracle as Window

        settings: dict[str, Any] = {"env": env, "min_norm": 0.4}
        # OGBench asks for 100 steps here, and its oracle goes back to 200 at the first reset; so it does here.
        scene_cube = {"max_step": 100}
    else:
        from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle as Button
        from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle as Cube
        from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle as Drawer
        from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle as Window

        settings = {"env": env, "noise": 0.1, "noise_smoothing": 0.5}
        scene_cube = {}
    if family == "cube":
        return {"cube": Cube(**settings)}
    if family == "puzzle":
        return {"button": Button(gripper_always_closed=True, **settings)}
    return {
        "cube": Cube(**scene_cube, **settings),
        "button": Button(**settings),
        "drawer": Drawer(**settings),
        "window": Window(**settings),
    }
