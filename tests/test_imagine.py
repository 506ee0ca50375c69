"""The parts of imagination: distances, models rolled out and jumped, Monte Carlo, and what is where in observations."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm import envs, tasks
from uhm.agents.horizon_model import HorizonModel
from uhm.data.dataset import make_dataset
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.imagine import models, rows, simulators
from uhm.imagine.distance import energy_distance, energy_score, pick
from uhm.imagine.dream import check_n
from uhm.imagine.views import table, view

HALT = 3.0  # where the toy model says that it has ended


class Shift(HorizonModel):
    """A model that knows: n steps of the same action."""

    def __init__(self):
        self.field = None  # pyright: ignore[reportAttributeAccessIssue]
        self.mean, self.std, self.scale = jnp.zeros(0), jnp.zeros(0), jnp.zeros((1, 0))
        self.delta, self.steps, self.ode, self.flag_std = True, 1, "", 1.0

    def sample(self, key, s, a, n=1, threshold=0.5):
        after = s + jnp.asarray(n)[..., None] * a
        return after, after[..., 0] >= HALT


def test_energy_distance_by_hand():
    x, y = jnp.array([[0.0], [2.0]]), jnp.array([[1.0], [3.0]])
    # 2 * (1 + 3 + 1 + 1) / 4 - 2 - 2
    assert float(energy_distance(x, y)) == pytest.approx(-1.0)


def test_energy_distance_against_loops_and_without_bias():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 7, 3)).astype(np.float32), rng.normal(size=(2, 5, 3)).astype(np.float32) + 1
    for k in range(2):
        cross = np.mean([np.linalg.norm(p - q) for p in x[k] for q in y[k]])
        own = [np.mean([np.linalg.norm(p - q) for p, q in itertools.permutations(z, 2)]) for z in (x[k], y[k])]
        found = energy_distance(jnp.asarray(x), jnp.asarray(y))[k]
        assert float(found) == pytest.approx(2 * cross - sum(own), abs=1e-5)
    same = rng.normal(size=(2, 400, 8, 2)).astype(np.float32)  # mean of many small samples of one law
    assert abs(float(energy_distance(jnp.asarray(same[0]), jnp.asarray(same[1])).mean())) < 0.03


def test_the_energy_score_by_hand_and_as_half_a_distance():
    x, y = jnp.array([[[0.0], [4.0]]]), jnp.array([[1.0]])
    assert energy_score(x, y).tolist() == [(1.0 + 3.0) / 2 - 4.0 / 2]
    # Over many outcomes of one law it is half the energy distance to that law, and what the law's own draws differ by.
    rng = np.random.default_rng(0)
    draws, outcomes = jnp.asarray(rng.normal(size=(30, 2))), jnp.asarray(rng.normal(size=(40, 2)) + 1)
    score = energy_score(jnp.broadcast_to(draws, (40, 30, 2)), outcomes).mean()
    own = np.mean([np.linalg.norm(p - q) for p, q in itertools.permutations(np.asarray(outcomes), 2)])
    assert float(score) == pytest.approx(float(energy_distance(draws, outcomes)) / 2 + own / 2, abs=1e-5)


def test_pick():
    states = np.arange(3 * 2 * 2).reshape(3, 2, 2, 1)
    assert np.asarray(pick(states, np.array([[1, 3], [2, 2]])))[..., 0].tolist() == [[0, 9], [6, 7]]


def test_jump_asks_for_each_n():
    s, a = jnp.zeros((4, 2)), jnp.ones((4, 2))
    found = models.jump(Shift(), jax.random.key(0), s, a, jnp.array([1, 3, 8]))
    assert found.shape == (3, 4, 2)
    assert np.asarray(found[:, 0, 0]).tolist() == [1, 3, 8]


def test_roll_follows_the_policy_and_stays_where_it_ended():
    s, a = jnp.array([[0.0, 0.0], [-5.0, 0.0]]), jnp.array([[1.0, 0.5], [1.0, 0.5]])
    found = models.roll(Shift(), lambda key, s: jnp.array([1.0, 0.0]) + 0 * s, jax.random.key(0), s, a, 5)
    # The first action is the given one; the first path has ended with x = 3.
    assert np.asarray(found[:, 0]).tolist() == [[1, 0.5], [2, 0.5], [3, 0.5], [3, 0.5], [3, 0.5]]
    assert np.asarray(found[:, 1, 0]).tolist() == [-4, -3, -2, -1, 0]


def steady(key, s):
    return jnp.broadcast_to(jnp.array([0.9, 0.4]), s.shape)


def test_monte_carlo_in_rooms_is_the_environment_and_ends_one_step_after_the_goal():
    env = rooms.Rooms(1)
    env.xy = np.array([2.0, 2.6])
    states = np.repeat(env.xy[None], 3, 0)
    action = np.array([0.3, 0.9])
    found = simulators.monte_carlo(simulators.Rooms(env.goal), steady, 0, states, np.tile(action, (3, 1)), 6)
    over = False
    for t in range(6):
        if not over:
            _, _, over, _, _ = env.step(action)
        assert np.allclose(found[t], env.xy)
        action = np.array([0.9, 0.4])
    assert over
    assert rooms.at_goal(found[:, 0], env.goal).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("name", ["pointmaze-medium-navigate-task2", "antmaze-large-navigate-task1"])
def test_monte_carlo_in_a_maze_is_the_environment(name):
    task = tasks.task(name)
    maze = simulators.Maze(task)
    other, env = maze.begin()[1], envs.make(task).unwrapped
    assert task.index == 2 or not np.allclose(maze.observe(other)[:2], maze.observe(maze.begin()[0])[:2])
    np.random.seed(0)
    env.action_space.seed(0)
    observation = env.reset(seed=0)[0]
    assert np.allclose(maze.observe(maze.begin()[0]), observation, atol=1e-6)
    assert np.allclose(maze.goal, env.cur_goal_xy)  # pyright: ignore[reportAttributeAccessIssue]
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (6, env.action_space.shape[0]))  # pyright: ignore[reportOptionalSubscript]
    plays = iter(actions[1:])

    def act(key, s):
        return np.tile(next(plays, actions[0]), (2, 1))

    # Two copies, one of which is somewhere else: they must not touch each other.
    found = simulators.monte_carlo(maze, act, 0, np.stack([maze.begin()[0], other]), np.tile(actions[0], (2, 1)), 6)
    for t in range(6):
        observation = env.step(actions[t])[0]
        assert np.allclose(found[t, 0], observation, atol=1e-5)
    blocked = {(x, y) for x, y, _ in maze.walls()}
    side = maze.walls()[0][2]
    assert (observation[:2] // side * side).tolist() not in [list(corner) for corner in blocked]
    assert len(blocked) == env.maze_map.sum()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_maze_knows_when_it_is_solved():
    maze = simulators.Maze(tasks.task("pointmaze-medium-navigate-task1"))
    there = maze.begin()[0]
    maze._set(there)
    maze._env.set_xy(maze.goal + 0.5)
    states = np.stack([there, maze._get()])
    assert maze.solved(states).tolist() == [False, True]
    found = simulators.monte_carlo(maze, lambda key, s: np.ones((2, 2)), 0, states, -np.ones((2, 2)), 4)
    assert np.allclose(found[0, 1], found[3, 1])  # one step after the goal, and no further
    assert not np.allclose(found[0, 1], maze.observe(states)[1])
    assert not np.allclose(found[0, 0], found[3, 0])


def test_starts_are_spread_and_begin_with_the_task():
    world = simulators.Rooms(rooms.GOALS[0])
    states, seen = simulators.visited(world, steady, 0, 5, 3, lambda s: s)
    assert states[0].tolist() == [-4, -4]
    assert np.allclose(states, seen)
    assert not world.solved(states).any()
    assert len(np.unique(states.round(3), axis=0)) == 5
    line = np.array([[0.0], [1.0], [10.0], [6.0]])
    assert simulators.spread(line, 3).tolist() == [0, 2, 3]


def dataset(trajectories=3, length=20, size=2, actions=None):
    """Rows whose first number counts them."""
    total = trajectories * length
    observations = np.zeros((total, size), np.float32)
    observations[:, 0] = np.arange(total)
    terminals = np.arange(total) % length == length - 1
    actions = np.zeros((total, 2), np.float32) if actions is None else actions
    flat = np.zeros((1, total))
    return make_dataset(observations, actions, terminals, flat, flat == 0, ("mine",))


def test_behaviour_is_what_the_data_do_next():
    # After action +0.5 the data take -0.5 and the other way round, wherever they are.
    actions = np.where(np.arange(60) % 2, 0.5, -0.5)[:, None].repeat(2, 1).astype(np.float32)
    data, rng = dataset(actions=actions), np.random.default_rng(0)
    s, a = np.full((4000, 2), 30.0), np.full((4000, 2), 0.5)
    policy = np.full((4000, 2), 0.1)
    always = simulators.Behaviour(data, 1.0)
    assert np.mean(always.mix(rng, policy, s, a)[:, 0] < 0) > 0.9
    assert np.array_equal(simulators.Behaviour(data, 0.0).mix(rng, policy, s, a), policy)
    share = np.mean(simulators.Behaviour(data, 0.3).mix(rng, policy, s, a)[:, 0] != 0.1)
    assert share == pytest.approx(0.3, abs=0.03)


def test_futures_of_the_data_stay_in_their_trajectory():
    data = dataset()
    chosen = rows.candidates(data, 5, np.random.default_rng(0), 1000)
    assert sorted(chosen) == [row for row in range(60) if row % 20 < 15]
    found = rows.futures_of(data, chosen, 5)
    assert found.shape == (5, 45, 2)
    for n in range(1, 6):
        assert np.array_equal(found[n - 1, :, 0], chosen + n)
    with pytest.raises(UhmError, match="no trajectory of the data goes on for 20 steps"):
        rows.candidates(data, 20, np.random.default_rng(0), 10)


def test_eventful_rows():
    """A cube that moves at one row only, in the second trajectory, and a little in the third."""
    data = dataset(size=28)
    observations = np.array(data.observations)
    observations[27:40, 19:22] += 5.0
    observations[51:60, 19:22] += 1.0
    data = eqx.tree_at(lambda d: d.observations, data, observations)
    found = rows.eventful(data, view(tasks.environment("cube-single-play")), 3, 4, 0)
    assert 24 <= found[0] <= 26
    assert 48 <= found[1] <= 50
    assert found[2] < 20
    assert len(set(found)) == 4


ARMS = ("cube-double-play", "scene-play", "puzzle-3x3-play")


@pytest.mark.parametrize("name", ARMS)
def test_things_are_where_the_environment_says(name):
    environment = tasks.environment(name)
    env, seen = envs.make(environment.tasks[1]).unwrapped, view(environment)
    observation = env.reset(seed=3)[0]
    info = env.compute_ob_info()  # pyright: ignore[reportAttributeAccessIssue]
    names = {"gripper": "proprio/effector_pos", "drawer": "privileged/drawer_pos", "window": "privileged/window_pos"}
    names |= {"cube": "privileged/block_0_pos", "cube 1": "privileged/block_0_pos", "cube 2": "privileged/block_1_pos"}
    things = (*seen.things, *seen.slides)
    assert [thing.name for thing in things] == seen.names
    assert len(things) == {"cube": 3, "scen": 4, "puzz": 1}[name[:4]]
    for thing in things:
        assert np.allclose(thing.of(observation), info[names[thing.name]], atol=1e-5)
    if seen.buttons:
        states = env._cur_button_states  # pyright: ignore[reportAttributeAccessIssue]
        assert seen.lit(observation).tolist() == (states == 1).tolist()
    expected = np.concatenate([info[names[n]] for n in seen.names])
    assert np.allclose(seen.positions(observation), expected, atol=1e-5)


def test_the_table_of_a_puzzle():
    found = table(tasks.task("puzzle-3x3-play-task1"), 2)
    assert found.buttons.shape == (9, 2)
    assert np.allclose(found.buttons.mean(0), (0.425, 0.0), atol=1e-3)
    assert np.allclose(np.diff(np.unique(found.buttons[:, 1].round(3))), 0.1)
    assert found.starts.shape == (2, 55)


def test_a_ball_is_no_ant():
    env = envs.make(tasks.task("antsoccer-arena-navigate-task1")).unwrapped
    observation = env.reset(seed=0)[0]
    ant, ball = view(tasks.environment("antsoccer-arena-navigate")).things
    positions = env.get_agent_ball_xy()  # pyright: ignore[reportAttributeAccessIssue]
    assert np.allclose(ant.of(observation), positions[0])
    assert np.allclose(ball.of(observation), positions[1])


def test_horizons_asked_for():
    assert check_n(None) == ()
    assert check_n([4, 1, 4]) == (1, 4)
    for bad in (0, -1, True):
        with pytest.raises(UhmError, match="must be a whole number of at least 1"):
            check_n([bad])
