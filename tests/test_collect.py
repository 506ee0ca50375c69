"""The episodes of generated data: what OGBench makes of them, its recipes, and that they depend on their seed alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ogbench
import pytest

from experts import write_expert
from uhm import tasks
from uhm.data import collect, collect_manipulation, expert, generate, load
from uhm.data.collect_mazes import Maze, cells
from uhm.data.generate_worker import episode_rng


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cube-single-play", "scene-play", "puzzle-3x3-play", "pointmaze-medium-navigate"])
def test_ogbench_loads_what_was_made(name: str, tmp_path: Path) -> None:
    environment = tasks.environment(name)
    train, _ = generate.make(environment, tmp_path, episodes=1, workers=1, rows=40, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{name}-v0.npz", f"{name}-v0-val.npz"])
    with np.load(train) as file:
        arrays = {key: file[key] for key in file.files}
    buttons = {"scene": 2, "puzzle": 9}.get(name.split("-")[0])
    types = {"observations": "f4", "actions": "f4", "terminals": "b1", "qpos": "f4", "qvel": "f4"}
    if buttons:
        types["button_states"] = "i8"
        assert arrays["button_states"].shape == (40, buttons)
    assert {key: value.dtype.str[1:] for key, value in arrays.items()} == types
    assert arrays["terminals"].tolist() == [False] * 39 + [True]
    # Row t of qpos is the state that row t of the observations was made from.
    size = 2 if name.startswith("point") else 6
    np.testing.assert_array_equal(arrays["observations"][:, :size], arrays["qpos"][:, :size])

    mine = load(environment, data_dir=tmp_path, placement="host")
    for index, task in enumerate(environment.tasks):
        loaded: Any = ogbench.make_env_and_datasets(task.ogbench_id, dataset_dir=str(tmp_path))
        env, data, val_data = loaded
        env.close()
        assert data["observations"].shape == (39, environment.observation_size)
        assert data["actions"].shape == (39, environment.action_size)
        np.testing.assert_array_equal(mine.rewards[index, :-1], data["rewards"])
        np.testing.assert_array_equal(mine.masks[index, :-1], data["masks"])
        np.testing.assert_array_equal(mine.observations[1:], data["next_observations"])
        assert not np.array_equal(data["observations"], val_data["observations"])


@pytest.mark.parametrize(
    "name", ["cube-double-noisy", "cube-triple-play", "cube-quadruple-play", "puzzle-4x4-noisy", "puzzle-4x6-play"]
)
def test_actions_replayed_give_the_observations(name: str) -> None:
    environment = tasks.environment(name)
    collector: Any = collect.recipe(environment).build(environment, 12, None)
    episode = collector.episode(episode_rng(0, 0, 0))
    assert episode["observations"].shape == (12, environment.observation_size)
    assert np.abs(episode["actions"]).max() <= 1
    collector._simulation.reset(episode_rng(0, 0, 0))
    for t in range(11):
        observation, *_ = collector._simulation.env.step(episode["actions"][t])
        np.testing.assert_allclose(observation, episode["observations"][t + 1], atol=0.02)


def test_an_episode_does_not_depend_on_the_one_before() -> None:
    # Scene's buttons lock joints in the model, which OGBench's own reset leaves as they are.
    environment = tasks.environment("scene-noisy")
    collector: Any = collect.recipe(environment).build(environment, 150, None)
    env = collector._simulation.env

    def after_reset() -> dict[str, Any]:
        """Everything simple that the environment and its model hold."""
        collector._simulation.reset(episode_rng(0, 0, 0))
        state = {"warm start": env.data.qacc_warmstart} | vars(env)
        state |= {f"model.{name}": getattr(env.model, name, None) for name in dir(env.model)}
        kinds = bool | int | float | str | np.ndarray
        return {key: np.array(value) for key, value in state.items() if isinstance(value, kinds)}

    before = after_reset()
    first, other, again = (collector.episode(episode_rng(0, 0, k)) for k in (0, 1, 0))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["observations"], other["observations"])
    after = after_reset()
    assert {"_target_button_states", "model.dof_damping"} < before.keys() == after.keys()
    assert not [key for key in before if not np.array_equal(before[key], after[key])]


class StillSimulation:
    """A robot arm that nothing moves, so that actions show the recipe and nothing else."""

    def __init__(self, gym_id: str, **options: Any):
        info = {"privileged/target_task": "cube", "prev_qpos": np.zeros(2), "prev_qvel": np.zeros(2)}
        self.stacking: list[float] = []
        self.env = SimpleNamespace(
            step=lambda action: (np.zeros(3), 0.0, False, False, info),
            set_new_target=lambda p_stack: (self.stacking.append(p_stack), (np.zeros(3), info))[1],
        )
        self.reset = lambda rng: (np.zeros(3), info)


def test_noisy_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    still = SimpleNamespace(reset=lambda *_: None, select_action=lambda *_: np.zeros(5), done=True)
    monkeypatch.setattr(collect_manipulation, "Simulation", StillSimulation)
    monkeypatch.setattr(collect_manipulation, "_oracles", lambda *_: {"cube": still})
    collector: Any = collect_manipulation.Manipulation("cube-quadruple", "noisy", 4000)
    # Random actions are uniform: six in ten of them are above 0.4, where noise of at most 0.1 does not reach.
    episodes = [collector.episode(np.random.default_rng(k))["actions"] for k in range(20)]
    shares = [np.mean(np.abs(actions[:, 0]) > 0.4) / 0.6 for actions in episodes]
    assert abs(np.mean(shares) - 0.1) < 0.01
    calm = [actions[np.abs(actions[:, :3]).max(1) < 0.4] for actions in episodes]
    scale = np.array([np.median(np.abs(actions), 0) for actions in calm])  # robust to what random actions are left
    ratio = scale[scale[:, 0] < 0.03] / scale[scale[:, 0] < 0.03][:, :1]  # small ones are not cut at 1
    np.testing.assert_allclose(ratio.mean(0), [1, 1, 1, 3, 10], rtol=0.15)
    assert scale[:, 0].max() < 0.1 * 0.75 and scale[:, 0].max() > 2 * scale[:, 0].min()
    per_episode = np.array(collector._simulation.stacking).reshape(20, 4000)
    assert np.all(per_episode == per_episode[:, :1])
    assert 0.1 <= per_episode.min() < 0.2 and 0.4 < per_episode.max() <= 0.5

    play: Any = collect_manipulation.Manipulation("cube-single", "play", 50)
    assert not play.episode(np.random.default_rng(0))["actions"].any()
    assert set(play._simulation.stacking) == {0.0}


@pytest.mark.parametrize(
    ("y", "z", "kept"), [(0.1, 0.02, True), (0.3, 0.02, False), (-0.31, 0.02, False), (-0.31, 0.07, True)]
)
def test_scene_episodes_with_a_lost_cube_are_made_again(
    y: float, z: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect_manipulation, "Simulation", StillSimulation)
    monkeypatch.setattr(collect_manipulation, "_oracles", lambda *_: {})
    collector: Any = collect_manipulation.Manipulation("scene", "play", 5)
    collector._simulation.env.model = SimpleNamespace(joint=lambda name: SimpleNamespace(qposadr=[1]))
    good = np.tile([0, 0.3, 0.1, 0.02], (5, 1))
    lost = good.copy()
    lost[3, 2:] = y, z
    attempts = iter([{"qpos": lost}, {"qpos": good}])
    collector._attempt = lambda rng: next(attempts)
    assert (collector.episode(np.random.default_rng(0))["qpos"] is lost) == kept


def test_maze_goals_are_not_in_corridors() -> None:
    maze = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    free, goals = cells(maze)
    assert free == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert goals == [(1, 1), (1, 3), (3, 1)]  # a bend and two dead ends


def test_the_point_walks_from_goal_to_goal() -> None:
    collector = Maze("pointmaze-medium", "navigate", 800, None)
    env = collector._simulation.env
    goals = []
    set_goal = env.set_goal
    env.set_goal = lambda **goal: (goals.append(goal["goal_xy"]), set_goal(**goal))
    episode = collector.episode(episode_rng(0, 0, 0))
    goals = goals[1:]  # the first two, the same, are of the reset
    positions = episode["observations"]
    assert len(goals) >= 3
    for goal in goals[:-1]:
        assert np.linalg.norm(positions - goal, axis=1).min() <= env._goal_tol + 0.3
    for (start, end), way in collector._way.items():
        fresh, _ = env.get_oracle_subgoal(env.ij_to_xy(start), env.ij_to_xy(end))
        np.testing.assert_array_equal(way, fresh)
    # Away from walls a step is a fifth of the action.
    steps = np.abs(np.diff(positions, axis=0) - 0.2 * episode["actions"][:-1]).max(1)
    assert np.mean(steps < 1e-3) > 0.8


def test_an_exploring_ant_keeps_a_direction_for_ten_steps(tmp_path: Path) -> None:
    policy = expert.load(write_expert(tmp_path / "e.npz"), 29, 8)
    seen: list[np.ndarray] = []
    collector = Maze("antmaze-medium", "explore", 25, lambda x: (seen.append(x), policy(x))[1])
    episode = collector.episode(episode_rng(0, 0, 0))
    directions = np.array(seen)[:, 27:]
    assert len(np.unique(directions, axis=0)) == 3
    assert all(len(np.unique(directions[k : k + 10], axis=0)) == 1 for k in (0, 10, 20))
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(np.array(seen)[:, :27], episode["observations"][:, 2:], rtol=1e-6)
