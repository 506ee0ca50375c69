"""MOPO: its penalty, target and losses against arithmetic by hand, and the ring of imagined transitions."""

import functools
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from toys import A, S, assert_trees, expected_values, random_data, train
from uhm import nets, population
from uhm.agents import mopo, spec_of
from uhm.agents.dynamics import Dynamics, scaling
from uhm.agents.mopo import Actor, Config, Hyper, Networks, Rows
from uhm.data.dataset import make_dataset

KEY = jax.random.key(3)
SPEC = spec_of(random_data(), 1)
CONFIG = Config(hidden=(16,), batch_size=8, ensemble=3, rollout_length=3, rollouts=2, rollout_age=5)
AGENT = mopo.make(CONFIG, SPEC)
DATA: Any = random_data().to_device()
UPDATE = jax.jit(AGENT.update)


@functools.cache
def walk(steps: int) -> tuple[list[mopo.State], list[Any], list[Any]]:
    """States before and after each of some updates, their batches and their metrics."""
    states, batches, metrics = [jax.jit(AGENT.init)(jax.random.key(0), Hyper())], [], []
    for i in range(steps):
        batches.append(AGENT.sample(DATA, jax.random.fold_in(KEY, i)))
        state, found = UPDATE(states[-1], Hyper(), batches[-1], jax.random.fold_in(KEY, 100 + i))
        states.append(state)
        metrics.append(found)
    return states, batches, metrics


def linear(module: Any, *weights: Any) -> Any:
    """A net without hidden layers, with these weights (inputs in rows) and bias 0."""
    layer = lambda m: (m.ensemble if isinstance(m, nets.Critic) else m.mlp).layers[0].weight  # noqa: E731
    return eqx.tree_at(layer, module, jnp.asarray(weights, jnp.float32).reshape(layer(module).shape))


# ------------------------------------------------------------------------------------------------------------ penalty


def test_the_penalty_is_the_largest_norm_of_sigma():
    """Norms 5, sqrt 2, 6 for the first row and 0, 13, 1 for the second."""
    sigma = jnp.array([[[3.0, 4.0], [0.0, 0.0]], [[1.0, 1.0], [5.0, 12.0]], [[0.0, 6.0], [1.0, 0.0]]])
    params: Any = Networks(lambda s, a: (None, jnp.log(sigma)), *[None] * 5)  # type: ignore
    critic = nets.Critic(2, 1, KEY, ())
    u = mopo.largest_deviation(params, critic, jnp.zeros((2, 2)), jnp.zeros((2, 1)), KEY)
    np.testing.assert_allclose(u, [6.0, 13.0], rtol=1e-6)


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_the_target_of_one_update(penalty):
    """y of real rows has no penalty; that of imagined ones has; no entropy in either."""
    state, batch = walk(1)[0][0], walk(1)[1][0]
    state = state._replace(targets=jax.tree.map(lambda x: -2 * x, state.targets))
    new, metrics = UPDATE(state, Hyper(penalty=penalty, discount=0.5), batch, KEY)
    real = 2  # int(0.25 * 8)

    @jax.jit
    def look(state, ring, batch):
        _, key_draw, _, key_next, _ = jax.random.split(KEY, 5)
        imagined, scaled = mopo.draw(ring, jnp.int32(6), 6, key_draw), scaling(SPEC)
        s = jnp.concatenate([scaled(batch.observations)[:real], imagined.observations])
        a = jnp.concatenate([batch.actions[:real], imagined.actions])
        s_next = jnp.concatenate([scaled(batch.next_observations)[:real], imagined.next_observations])
        slow = state.targets.critic(s_next, state.params.actor.sample(key_next, s_next)[0])
        return imagined, state.params.dynamics(s, a)[1], slow, state.params.critic(s, a)

    imagined, log_std, slow, q = jax.device_get(look(state, new.ring, batch))
    fine = np.sqrt((np.exp(log_std) ** 2).sum(-1)).max(0) * (np.arange(8) >= real)
    rewards, masks = (np.concatenate([getattr(batch, n)[:real], getattr(imagined, n)]) for n in ("rewards", "masks"))
    y = rewards - penalty * fine + 0.5 * masks * slow.min(0)
    assert metrics["target_mean"] == pytest.approx(float(y.mean()), rel=1e-4)
    error = np.square(q - y)
    assert metrics["critic_loss"] == pytest.approx(float(error.mean()), rel=1e-4)
    assert fine[real:].min() > 0.01


# ------------------------------------------------------------------------------------------------------------- losses


def test_an_action_and_its_density():
    """log pi(a) = log N(artanh a; mean, std) - sum log(1 - a^2), and standard deviations have bounds."""
    actor = Actor(nets.MLP(S, 2 * A, KEY, (8,), True, 0.1))
    s = jax.random.normal(KEY, (50, S))
    look = jax.jit(lambda actor: (*actor.sample(KEY, s), *actor(s)))
    action, log_prob, mean, log_std = (np.asarray(x, np.float64) for x in look(actor))
    density = scipy.stats.norm.logpdf(np.arctanh(action), mean, np.exp(log_std)) - np.log(1 - action**2)
    np.testing.assert_allclose(log_prob, density.sum(-1), rtol=1e-3, atol=1e-3)
    far = eqx.tree_at(lambda m: m.mlp.layers[-1].bias, actor, jnp.array([30.0, -30.0, 99.0, -99.0]))
    _, log_prob, _, log_std = look(far)
    np.testing.assert_allclose(log_std, np.broadcast_to([2.0, -5.0], (50, A)))
    assert np.isfinite(log_prob).all()  # at the edge, where 1 - a^2 is 0


def test_losses_by_hand():
    """R = s, success logit = a_1, Q_1 = s + a_1, Q_2 = s + 2 a_2; the policy is tanh N(0, 1) everywhere."""
    dynamics, actor = Dynamics(1, 2, KEY, (), 2), linear(Actor(nets.MLP(1, 4, KEY, ())), 0, 0, 0, 0)
    params = Networks(
        dynamics,
        linear(nets.RewardNet(1, 2, KEY, ()), 1, 0, 0),
        linear(nets.RewardNet(1, 2, KEY, ()), 0, 1, 0),
        linear(nets.Critic(1, 2, KEY, ()), [1, 1, 0], [1, 0, 2]),
        actor,
        jnp.log(0.5),
    )
    s, a = jnp.array([[1.0], [3.0]]), jnp.array([[0.5, 0.5], [-1.0, 0.0]])
    real = Rows(s, a, jnp.array([2.0, 1.0]), jnp.array([1.0, 0.0]), s + 1)
    mixed = real._replace(observations=s[::-1], actions=a[::-1])
    y = jnp.array([1.0, 4.0])
    total, metrics = jax.jit(mopo.losses)(params, Hyper(target_entropy_per_action=-0.5), real, mixed, y, KEY)
    assert metrics["reward_loss"] == pytest.approx((1 + 4) / 2)
    # -log(1 - sigmoid(0.5)) for the row that goes on, -log sigmoid(-1) for the one that ended
    assert metrics["success_loss"] == pytest.approx((np.log1p(np.exp(0.5)) + np.log1p(np.exp(1.0))) / 2)
    # Q_1 = 2, 1.5 and Q_2 = 3, 2 on the mixed rows: errors 1, -2.5, 2, -2
    assert metrics["critic_loss"] == pytest.approx((1 + 6.25 + 4 + 4) / 4)
    noise = np.asarray(jax.random.normal(KEY, (2, 2)), np.float64)
    action = np.tanh(noise)
    log_prob = (-0.5 * noise**2 - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)).sum(-1)
    q = np.array([3.0, 1.0]) + (action[:, 0] + 2 * action[:, 1]) / 2
    assert metrics["actor_loss"] == pytest.approx((0.5 * log_prob - q).mean(), rel=1e-5)
    # Target entropy -0.5 for each of two dimensions
    assert metrics["temperature_loss"] == pytest.approx(0.5 * (-log_prob.mean() + 1.0), rel=1e-5)
    assert total == pytest.approx(sum(float(v) for k, v in metrics.items() if k.endswith("_loss")), rel=1e-5)


def test_every_loss_moves_its_own_network_alone():
    state, rows = walk(1)[0][0], jax.tree.map(lambda x: x[:6], walk(1)[0][1].ring)
    rows, y = rows._replace(rewards=rows.rewards + 1), jnp.zeros(rows.rewards.shape)  # what R says is no error

    @jax.jit
    def slopes(params):
        metrics = lambda p: mopo.losses(p, Hyper(), rows, rows, y, KEY)[1]  # noqa: E731
        return jax.jacrev(lambda p: {k: v for k, v in metrics(p).items() if k.endswith("_loss")})(params)

    largest = lambda tree: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))  # noqa: E731
    owner = {f"{name}_loss": name for name in Networks._fields} | {"temperature_loss": "log_temperature"}
    for loss, gradient in slopes(state.params).items():
        for network in Networks._fields:
            assert (largest(getattr(gradient, network)) > 0) == (owner[loss] == network), (loss, network)


# ----------------------------------------------------------------------------------------------------------- rollouts


def test_rollouts_go_through_the_ring():
    """A rollout begins at a real state, goes one step on at each update, and ends after `rollout_length` steps."""
    states, batches, _ = walk(7)
    scaled, (length, rollouts) = scaling(SPEC), (CONFIG.rollout_length, CONFIG.rollouts)
    before: Any = None
    for step, batch in enumerate(batches):
        ring, slot = states[step + 1].ring, step % CONFIG.rollout_age
        walked = slice(slot * length * rollouts, (slot + 1) * length * rollouts)
        s, s_next = (np.asarray(x[walked]).reshape(length, rollouts, S) for x in (ring.observations, ring[4]))
        starts = scaled(batch.observations[CONFIG.batch_size :])
        np.testing.assert_allclose(s[0], starts, rtol=1e-6, atol=1e-6)
        if step == 0:  # all begin, each start `rollout_length` times, and part by their actions and noise
            np.testing.assert_array_equal(s, np.broadcast_to(s[0], s.shape))
            assert len(np.unique(s_next.reshape(-1, S), axis=0)) == length * rollouts
        else:
            np.testing.assert_array_equal(s[1:], before[:-1])
        before = s_next
    # The ring holds five steps: the sixth and seventh took the places of the first two, and no other changed.
    last, earlier = states[7].ring, states[5].ring
    changed = np.asarray(last.actions != earlier.actions).any(-1).reshape(5, -1).all(-1)
    assert changed.tolist() == [True, True, False, False, False]
    assert np.array_equal(changed, np.asarray(last.actions != earlier.actions).any(-1).reshape(5, -1).any(-1))


def test_draws_are_uniform_over_what_was_written():
    numbers = jnp.arange(12.0)
    ring = Rows(numbers[:, None], numbers[:, None], numbers, numbers, numbers[:, None])
    for written in (3, 6, 12):
        drawn = mopo.draw(ring, jnp.int32(written), 6000, KEY)
        counts = np.bincount(np.asarray(drawn.rewards, int), minlength=12)
        np.testing.assert_allclose(counts[:written], 6000 / written, rtol=0.2)
        assert counts[written:].sum() == 0
        np.testing.assert_array_equal(drawn.observations[:, 0], drawn.rewards)  # rows stay together


def test_imagined_ends_are_noted_and_stop_nothing():
    """Success is foretold right of 0, by a logit that is the state; the reward is 10 s."""
    noiseless = SimpleNamespace(sample=lambda key, s, a: s + 1)
    actor = SimpleNamespace(sample=lambda key, s: (0 * s, 0 * s[:, 0]))
    params: Any = Networks(noiseless, lambda s, a: 10 * s[:, 0], lambda s, a: s[:, 0], None, actor, None)  # type: ignore
    rows = mopo.imagine(params, jnp.array([[-1.0], [0.0], [2.0]]), KEY)
    np.testing.assert_array_equal(rows.masks, [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(rows.rewards, [-10.0, 0.0, 20.0])
    np.testing.assert_array_equal(rows.next_observations[:, 0], [0.0, 1.0, 3.0])


# ------------------------------------------------------------------------------------------------------------ updates


def test_an_update_moves_everything_and_the_target_a_little():
    states, _, metrics = walk(1)
    old, new = jax.device_get(states[:2])
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), old.params, new.params)
    assert all(jax.tree.leaves(moved))
    slow = jax.tree.map(lambda t, p: t + 0.005 * (p - t), old.targets.critic, new.params.critic)
    assert_trees(np.testing.assert_allclose, new.targets.critic, slow, rtol=1e-5, atol=1e-7)
    assert new.step == 1
    assert all(np.isfinite(value) for value in metrics[0].values())


def test_a_member_is_the_same_agent_trained_alone():
    """Step by step and by itself, with the keys that a population would give it."""
    data, members = random_data(2), population.grid(("t0", "t1"), [0], {"penalty": [0.1, 2.0]})
    many, _ = train(AGENT, members, Hyper(), data, 4, 4)
    keys = population.init(AGENT, members, population.stack_hyper(Hyper(), members)).key[-1:]
    state = jax.jit(AGENT.init)(jax.random.split(members[-1].key)[0], Hyper())
    for step in range(4):
        sample, update = population.step_keys(keys[0], jnp.int32(step))
        batch = AGENT.sample(data.with_task(1).to_device(), sample)
        state, _ = UPDATE(state, Hyper(penalty=2.0), batch, update)
    last, first = (jax.tree.map(lambda x, i=i: x[i], many.state) for i in (-1, -2))
    assert_trees(np.testing.assert_allclose, last, state, rtol=1e-3, atol=1e-3)
    # The penalty is felt, by the member that has it.
    assert np.abs(first.params.critic.ensemble.layers[-1].bias - last.params.critic.ensemble.layers[-1].bias).max() > 0


def test_actions_are_the_scaled_mode():
    state = walk(1)[0][1]
    far = eqx.tree_at(lambda p: p.actor.mlp.layers[-1].bias, state.params, jnp.array([50.0, -50.0, 0.0, 0.0]))
    act = jax.jit(AGENT.act)
    for leading in ((), (2, 3)):
        observations = jnp.ones((*leading, S))
        one, two = (act(state, observations, jax.random.key(i)) for i in range(2))
        np.testing.assert_array_equal(one, two)
        mode = jax.jit(lambda s: jnp.tanh(state.params.actor(scaling(SPEC)(s))[0]))(observations)
        np.testing.assert_allclose(one, mode, rtol=1e-6)
        edge = act(state._replace(params=far), observations, KEY)
        np.testing.assert_array_equal(edge, np.broadcast_to([1.0, -1.0], edge.shape))


@pytest.mark.slow
def test_known_values_are_learned():
    """From -1 to 1 and no further, under three rewards; the task ends with the transition out of 1, or at once.

    Half of what the critic sees is imagined. The states are far apart, because dynamics that have just begun to learn
    blur them.
    """
    gamma, repeats = 0.9, 16
    positions = np.tile(np.array([-1, 1, 1], np.float32), repeats)
    actions = np.random.default_rng(0).uniform(-1, 1, (3 * repeats, 1)).astype(np.float32)
    rewards, masks = np.array([[2, 2, 2], [0, 1, 1], [-1, -1, -1]]), np.array([[0, 0, 0], [1, 0, 0], [1, 0, 0]])
    names, last = ("at once", "delayed", "costs"), np.arange(3 * repeats) % 3 == 2
    data = make_dataset(positions[:, None], actions, last, np.tile(rewards, repeats), np.tile(masks, repeats), names)
    spec = spec_of(data, 1)
    config = Config((32,), 32, real_fraction=0.5, ensemble=2, rollout_length=2, rollouts=4, rollout_age=100)
    hyper = Hyper(penalty=0.0, discount=gamma, learning_rate=1e-2, ema_rate=0.05)
    probe = mopo.make(config, spec)
    pop, _ = train(probe, population.grid(names, [0], {}), hyper, data, 300, 300)
    assert pop.alive.all()
    at = scaling(spec)(jnp.array([[-1.0], [1.0]])), jnp.zeros((2, 1))
    q = jax.vmap(lambda critic: critic(*at).mean(0))(pop.state.targets.critic)
    exact = [[2, 2], [gamma, 1], [-1 - gamma, -1]]
    np.testing.assert_allclose(q, exact, atol=0.3)
    np.testing.assert_allclose(expected_values(probe, pop, jnp.array([[-1.0], [1.0]])), exact, atol=0.4)
