"""Fitted Q evaluation: against values from linear equations, against returns in the logs, and by hand."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm import nets, population
from uhm.agents import Agent, spec_of
from uhm.data.dataset import make_dataset
from uhm.data.sampling import Transitions
from uhm.evaluate import fitted
from uhm.population import Member

PLACES, GAMMA = 5, 0.9
RIGHT = np.minimum(np.arange(PLACES) + 1, PLACES - 1)
LEFT = np.maximum(np.arange(PLACES) - 1, 0)
REWARDS = np.array([[0.0, -1.0], [2.0, 0.5], [-1.0, 0.0], [0.3, -2.0], [1.0, 4.0]])  # left and right of every place
CONFIG = fitted.Config(hidden=(32,), batch_size=64)


def step(place, right):
    """The line of places: what comes next, the reward, and whether the task goes on. It ends in the last place."""
    return (RIGHT if right else LEFT)[place], REWARDS[place, int(right)], place != PLACES - 1


def walk(go_right, trajectories, length, seed=0):
    """Logs of places as one-hot rows in two tasks, of which the second pays a thousand times as much.

    A trajectory goes on from the first place after the task has ended, as OGBench's do.
    """
    rng, rows = np.random.default_rng(seed), []
    for _ in range(trajectories):
        place = rng.integers(PLACES)
        for count in range(length):
            right = rng.random() < go_right[place]
            following, reward, goes_on = step(place, right)
            rows.append((place, 1.0 if right else -1.0, reward, goes_on, count == length - 1))
            place = following if goes_on else 0
    places, actions, rewards, masks, ends = (np.array(column) for column in zip(*rows, strict=True))
    observations, actions = np.eye(PLACES, dtype=np.float32)[places], actions.astype(np.float32)[:, None]
    paid = np.stack([rewards, 1000 * rewards]).astype(np.float32)
    return make_dataset(observations, actions, ends, paid, np.stack([masks, masks]), ("line", "rich"))


def exact(go_right):
    """Q of a policy that goes right with these probabilities, by solving its linear equations: [places, 2]."""
    size = 2 * PLACES
    P, r = np.zeros((size, size)), np.zeros(size)
    for place in range(PLACES):
        for right in (0, 1):
            following, r[2 * place + right], goes_on = step(place, right)
            P[2 * place + right, 2 * following] = goes_on * (1 - go_right[following])
            P[2 * place + right, 2 * following + 1] = goes_on * go_right[following]
    return np.linalg.solve(np.eye(size) - GAMMA * P, r).reshape(PLACES, 2)


def value(go_right, data):
    """The same as V, the mean over the places where trajectories begin."""
    places = np.asarray(data.observations)[fitted.first_rows(data)].argmax(-1)
    q = exact(go_right)
    return float(((1 - go_right) * q[:, 0] + go_right * q[:, 1])[places].mean())


def draw(state, observations, key):
    """A policy whose state is how likely it goes right in each place."""
    return 2.0 * jax.random.bernoulli(key, observations @ state["right"])[..., None] - 1.0


def _none(*_: Any) -> Any:
    raise AssertionError


WALKER = Agent(_none, _none, _none, draw)  # type: ignore[arg-type]


def fit_of(policies, columns, data, discount=GAMMA, **settings):
    """`hidden` is a part of the state that no action depends on."""
    states = {"right": jnp.asarray(policies, jnp.float32), "hidden": jnp.zeros((len(policies), 1000))}
    members = [Member(data.names[column], column, 0) for column in columns]
    settings = {"config": CONFIG, "learning_rate": 3e-3, "ema_rate": 0.05, **settings}
    return fitted.fit_of(
        WALKER, states, spec_of(data, 1), members, data.to_device(), [discount] * len(members), **settings
    )


def estimated(fit, steps):
    pop = population.init(fit.agent, fit.members, fit.hyper)
    pop, _ = population.advance(fit.agent, pop, fit.hyper, fit.data, steps)
    return np.asarray(fit.estimates(pop, fit.hyper, fit.starts)), pop


RANDOM = np.full(PLACES, 0.5)
POLICIES = np.array([[1.0, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0.5, 0.5, 0.5, 0.5, 0.5], [1, 1, 1, 1, 1]])
COLUMNS = [0, 0, 0, 1]


@pytest.fixture(scope="module")
def logs():
    return walk(RANDOM, 60, 20)


@pytest.fixture(scope="module")
def learned(logs):
    fit = fit_of(POLICIES, COLUMNS, logs)
    return fit, *estimated(fit, 2000)


def test_values_are_those_of_the_linear_equations(learned, logs):
    """Of policies that did not write the logs, two of them settled and one random; rewards 1000 times as large too."""
    _, estimates, pop = learned
    true = np.array([value(policy, logs) for policy in POLICIES]) * np.array([1, 1, 1, 1000])
    assert np.abs(np.subtract.outer(true[:3], true[:3]))[np.triu_indices(3, 1)].min() > 0.1  # policies that differ
    np.testing.assert_allclose(estimates[[0, 1, 3]], np.repeat(true[[0, 1, 3], None], 3, 1), rtol=0.01)
    np.testing.assert_allclose(estimates[2], true[2], rtol=0.1)  # whose targets are drawn: it goes up and down
    assert (fitted.spread(estimates) > 0).all()
    assert np.asarray(pop.alive).all()


def test_a_member_is_judged_as_if_alone(learned, logs):
    _, estimates, _ = learned
    alone, _ = estimated(fit_of(POLICIES[1:3], COLUMNS[1:3], logs), 2000)
    np.testing.assert_allclose(alone, estimates[1:3], rtol=1e-3)
    assert np.abs(estimates[1] - estimates[2]).min() > 0.1


def test_the_behaviours_own_policy_is_worth_what_the_logs_got():
    """All of it, for every trajectory is as long as the task."""
    policy = np.ones(PLACES)
    logs = walk(policy, 40, 12)
    got = fitted.stored(logs, 0, GAMMA)
    assert (got.trajectories, got.cut) == (40, 0)
    assert got.mean == pytest.approx(value(policy, logs), rel=1e-6)
    estimates, _ = estimated(fit_of(policy[None], [0], logs), 1000)
    np.testing.assert_allclose(estimates, got.mean, rtol=0.01)


def test_how_far_policies_act_from_the_logs(learned, logs):
    """One that always goes right is 2 apart wherever the logs went left; a random one half of the time."""
    fit, _, pop = learned
    actions = np.asarray(logs.actions)[np.asarray(logs.starts)]
    apart = np.asarray(fit.apart(pop, fit.hyper))
    assert apart[0] == pytest.approx(2 * np.sqrt((actions < 0).mean()), rel=1e-5)
    assert apart[2] == pytest.approx(np.sqrt(2), rel=0.05)


def test_a_fit_draws_other_batches_than_training(learned):
    fit, *_ = learned
    members = [Member(name, column, 0) for name, column in (("line", 0), ("rich", 1))]
    ours, theirs = ({jax.random.key_data(one.key).tobytes() for one in each} for each in (fit.members, members))
    assert len(ours) == len(theirs) == 2
    assert not ours & theirs


def test_a_policy_that_is_no_number_spoils_only_its_own(logs):
    policies = np.array([np.full(PLACES, np.nan), POLICIES[0]])
    act = lambda state, observations, key: observations @ state["right"][:, None]  # noqa: E731
    states, members = {"right": jnp.asarray(policies, jnp.float32)}, [Member("line", 0, seed) for seed in (0, 1)]
    agent = WALKER._replace(act=act)
    fit = fitted.fit_of(agent, states, spec_of(logs, 1), members, logs.to_device(), [GAMMA] * 2, CONFIG)
    estimates, pop = estimated(fit, 20)
    assert np.asarray(pop.alive).tolist() == [False, True]
    assert np.isfinite(estimates[1]).all()


# ------------------------------------------------------------------------------------------------------------ by hand

# Two trajectories; in the first the task ends in the second row and the rewards go on, the second is cut.
BY_HAND = make_dataset(
    np.arange(7, dtype=np.float32)[:, None],
    np.zeros((7, 1), np.float32),
    np.array([0, 0, 0, 1, 0, 0, 1], bool),
    np.array([[1.0, 2.0, 8.0, 64.0, 4.0, -8.0, 64.0]]),
    np.array([[1, 0, 1, 1, 1, 1, 1]], bool),
    ("t",),
)


def test_returns_and_their_size_by_hand():
    """gamma 1/2: 8, 2 (nothing after the end), 1 + 2/2; -8, 4 - 8/2. The last rows have no step."""
    np.testing.assert_array_equal(fitted.returns(BY_HAND, 0, 0.5), [2, 2, 8, 0, 0, -8, 0])
    assert fitted.first_rows(BY_HAND).tolist() == [0, 4]
    assert fitted.unit(BY_HAND, 0, 0.5) == pytest.approx(math.sqrt((4 + 4 + 64 + 0 + 64) / 5))
    # Of 2 and 0 the mean is 1, the standard deviation sqrt(2) and so the standard error 1.
    assert fitted.stored(BY_HAND, 0, 0.5) == pytest.approx((1.0, 1.0, 2, 1))
    silent = eqx.tree_at(lambda d: d.rewards, BY_HAND, np.zeros((1, 7), np.int8))
    assert fitted.unit(silent, 0, 0.5) == 1.0


def linear(weights):
    """Critics Q_e(s, a) = w_e . (s, a)."""
    critic = nets.Critic(1, 1, jax.random.key(0), hidden=(), members=len(weights))
    return eqx.tree_at(lambda c: c.ensemble.layers[0].weight, critic, jnp.asarray(weights, jnp.float32)[..., None])


def test_targets_by_hand():
    """Each critic bootstraps from itself, at the policy's action; s' of 7 is 2 in the scale of the data."""
    one, three = np.array([1.0], np.float32), np.array([3.0], np.float32)
    spec = spec_of(BY_HAND, 1)._replace(observation_mean=one, observation_std=three)
    policy = WALKER._replace(act=lambda state, observations, key: state * observations / 7)
    rows, rewards, masks = jnp.full((2, 1), 7.0), jnp.full(2, 10.0), jnp.array([1.0, 0.0])
    batch = Transitions(rows, rows, rewards, masks, rows, rows)
    critic = linear([[1.0, 0.0], [2.0, 6.0]])  # at (2, 1/2): 2 and 7

    def y(state):
        hyper = fitted.Hyper(policy=state, discount=0.5, unit=5.0)
        return fitted.target(policy, spec, critic, hyper, batch, jax.random.key(0))

    np.testing.assert_allclose(y(jnp.float32(0.5)), [[3.0, 2.0], [5.5, 2.0]], rtol=1e-6)
    assert jax.grad(lambda state: y(state).sum())(jnp.float32(0.5)) == 0.0


def test_critics_share_nothing_and_the_policy_stays(logs):
    fit = fit_of(POLICIES[:1], [0], logs)
    before = np.array(fit.hyper.policy[0])
    one = jax.tree.map(lambda x: x[0], fit.hyper)
    key_init, key_sample, key_update = jax.random.split(jax.random.key(0), 3)
    state = fit.agent.init(key_init, one)
    batch = fit.agent.sample(logs.to_device(), key_sample)
    other = state._replace(targets=jax.tree.map(lambda x: x.at[0].add(1.0), state.targets))
    (new, _), (changed, _) = (fit.agent.update(s, one, batch, key_update) for s in (state, other))
    same = [
        np.array_equal(a[1:], b[1:]) for a, b in zip(*map(jax.tree.leaves, (new.params, changed.params)), strict=True)
    ]
    assert all(same)
    assert not np.array_equal(jax.tree.leaves(new.params)[0][0], jax.tree.leaves(changed.params)[0][0])
    # They begin differently, or they would agree without knowing anything.
    weights = np.asarray(state.params.critic.ensemble.layers[0].weight)
    assert np.abs(weights[0] - weights[1]).min(initial=1, where=weights[0] != 0) > 0
    np.testing.assert_array_equal(fit.hyper.policy[0], before)
    assert len(fit.hyper.policy) == 1  # the other part of the state is not carried along


def test_target_networks_move_sooner_where_more_steps_count():
    rates = [fitted.ema_rate_of(discount) for discount in (0.9, 0.98, 0.99, 0.999, 0.9999)]
    np.testing.assert_allclose(rates, [0.005, 0.005, 0.01, 0.1, 0.1])
