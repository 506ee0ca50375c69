"""The embedded default: geometry checked point by point, and the Gymnasium environment against its own maths."""

import numpy as np
import pytest

from uhm import envs, tasks
from uhm.envs import rooms


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ((-3.0, -3.0), False),  # a room
        ((0.0, 0.0), True),  # the middle of the cross
        ((0.0, 3.0), False),  # the door in the upper arm
        ((0.0, 4.5), True),  # the upper arm beside its door
        ((0.0, -3.0), True),  # the lower arm has none
        ((3.0, 0.0), False),  # the door in the right arm
        ((1.5, 0.0), True),  # the right arm beside its door
        ((-5.1, -3.0), True),  # outside
        ((-3.0, 5.1), True),
    ],
)
def test_blocked(point, expected):
    assert rooms.blocked(np.array(point)) == expected


def test_moves_stop_at_walls_along_one_axis_only():
    at_wall = np.array([-1.1, -4.0])
    np.testing.assert_allclose(rooms.move(at_wall, np.array([1.0, 0.4])), [-1.1, -3.6])
    np.testing.assert_allclose(rooms.move(np.array([-1.2, 3.0]), np.array([1.0, 0.0])), [-0.2, 3.0])
    np.testing.assert_allclose(rooms.move(np.array([-3.0, -3.0]), np.array([9.0, -9.0])), [-2.0, -4.0])


def test_nobody_walks_through_a_wall():
    """Random walks from one room: every change of room happens inside a door."""
    rng = np.random.default_rng(0)
    xy = np.full((500, 2), -3.0)
    for _ in range(300):
        moved = rooms.move(xy, rng.uniform(-1, 1, (500, 2)))
        assert not rooms.blocked(moved).any()
        changed = (rooms._room(moved) != rooms._room(xy)).nonzero()[0]
        assert (rooms._in_door(moved[changed]) | rooms._in_door(xy[changed])).all()
        xy = moved
    assert len(np.unique(rooms._room(xy))) == 4


def test_walkers_cover_rooms_goals_and_doors():
    data = rooms.walk(np.random.default_rng(0), 300, 101)
    assert data["terminals"].sum() == 300
    assert not rooms.blocked(data["observations"].astype(np.float64)).any()
    for goal in rooms.GOALS:
        assert rooms.at_goal(data["observations"], goal).mean() > 0.005
    visited = rooms._room(data["observations"].reshape(300, 101, 2))
    assert np.mean([len(set(path)) for path in visited]) > 2
    # The stored successor is the stored action's: the rows are a real trajectory.
    xy, a = data["observations"].reshape(300, 101, 2), data["actions"].reshape(300, 101, 2)
    np.testing.assert_allclose(rooms.move(xy[:, 0].astype(float), a[:, 0].astype(float)), xy[:, 1], atol=1e-5)


def test_environment_rewards_and_terminates_on_the_state_before_the_action():
    env = envs.make(tasks.task("rooms-task5"))
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    env.unwrapped.xy = rooms.GOALS[4].copy()  # type: ignore[attr-defined]
    _, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert (reward, terminated, info["success"]) == (0.0, True, 1.0)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(np.zeros(2, np.float32))
    assert (reward, terminated, info["success"]) == (-1.0, False, 0.0)


def test_episodes_are_cut_at_the_limit_and_seeds_repeat():
    env = envs.make(tasks.task("rooms-task1"))
    first, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(first, again)
    for step in range(1, 101):
        *_, terminated, truncated, _ = env.step(np.zeros(2, np.float32))
        assert not terminated
        assert truncated == (step == tasks.ROOMS.episode_limit)


def test_every_goal_can_be_reached_in_time():
    """A greedy walker along the doors needs well under 100 steps, so failure is the agent's and not the task's."""
    for start, goal in rooms.TASKS:
        xy, steps = np.array([start]), 0
        while not rooms.at_goal(xy, np.array([goal]))[0]:
            heading = rooms.waypoint(xy, np.array([goal])) - xy
            xy, steps = rooms.move(xy, heading / max(np.abs(heading).max(), 1e-6)), steps + 1
        assert steps < 40
