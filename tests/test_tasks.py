"""The registry against OGBench itself, and the ways a task can be named."""

import warnings

import gymnasium
import ogbench  # noqa: F401  registers its environments with gymnasium
import pytest

from uhm import tasks
from uhm.errors import UhmError

OGBENCH_TASKS = [t for e in tasks.ENVIRONMENTS.values() if e.suite != "embedded" for t in e.tasks]


def test_the_paper_has_twenty_environments_and_a_hundred_tasks():
    assert [len(tasks.SUITES[s]) for s in tasks.PAPER_SUITES] == [10, 5, 5]
    assert len(tasks.resolve("paper")) == 100
    assert len({t.name for t in tasks.resolve("paper")}) == 100


@pytest.mark.parametrize("task", OGBENCH_TASKS, ids=lambda t: t.name)
def test_every_task_is_registered_with_gymnasium(task):
    assert gymnasium.spec(task.gym_id).max_episode_steps == task.environment.episode_limit


def _one_per_body():
    """Building all 23 environments takes a minute; sizes and default tasks are shared by those with the same body."""
    names = [
        "antmaze-large-navigate",
        "humanoidmaze-giant-navigate",
        "antsoccer-arena-navigate",
        "pointmaze-giant-navigate",
    ]
    names += ["cube-single-play", "cube-quadruple-play", "scene-noisy", "puzzle-3x3-play", "puzzle-4x6-play"]
    return [tasks.environment(name) for name in names]


@pytest.mark.parametrize("env", _one_per_body(), ids=lambda e: e.name)
def test_sizes_and_default_task_are_those_of_ogbench(env):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = gymnasium.make(f"{env.gym_name}-singletask-v0")
        observation, _ = made.reset()
        assert observation.shape == (env.observation_size,)
        assert made.action_space.shape == (env.action_size,)
        assert made.unwrapped._reward_task_id == env.default_task  # type: ignore[attr-defined]
        assert len(made.unwrapped.task_infos) == tasks.TASKS_PER_ENVIRONMENT  # type: ignore[attr-defined]
        made.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cube-double-play", [f"cube-double-play-task{i}" for i in range(1, 6)]),
        ("cube-double-play-v0", [f"cube-double-play-task{i}" for i in range(1, 6)]),
        ("cube-double-play-task2", ["cube-double-play-task2"]),
        ("cube-double-play-2", ["cube-double-play-task2"]),
        ("cube-double-play-singletask-task3-v0", ["cube-double-play-task3"]),
        ("puzzle-4x4-play-singletask-v0", ["puzzle-4x4-play-task4"]),
        ("rooms-task5", ["rooms-task5"]),
    ],
)
def test_names(name, expected):
    assert [t.name for t in tasks.resolve(name)] == expected


def test_unknown_names_answer_with_the_closest():
    with pytest.raises(UhmError, match="Did you mean cube-double-play"):
        tasks.resolve("cube-duoble-play")
    with pytest.raises(UhmError, match="task1 to task5, not task7"):
        tasks.resolve("scene-play-task7")
    with pytest.raises(UhmError, match="names 5 tasks"):
        tasks.task("scene-play")


def test_long_horizon_protocol():
    for env in tasks.SUITES["long-horizon"]:
        assert (env.steps, env.lambda_f, env.seeds, env.transitions) == (2_000_000, 0.9, 3, 10_000_000)
        assert env.sharded
    for env in (*tasks.SUITES["standard"], *tasks.SUITES["noisy"]):
        assert (env.steps, env.lambda_f, env.seeds) == (1_000_000, 0.8, 5)


def test_double_q_follows_the_domain():
    assert tasks.environment("antsoccer-arena-navigate").q_agg == "min"
    assert tasks.environment("scene-noisy").q_agg == "mean"
