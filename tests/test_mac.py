"""MAC: returns over chunks, the choice among chunks and every loss against arithmetic by hand."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import A, S, assert_trees, expected_values, random_data, train
from uhm import nets, population
from uhm.agents import mac, spec_of
from uhm.agents.dynamics import scaling
from uhm.agents.mac import Config, Hyper, Networks
from uhm.data.dataset import make_dataset
from uhm.data.sampling import Chunks
from uhm.errors import UhmError

KEY = jax.random.key(7)
SPEC = spec_of(random_data(), 1)
CONFIG = Config((16,), 8, chunk=2, rollout_chunks=3, train_samples=4, test_samples=6, flow_steps=2)
AGENT, WIDTH = mac.make(CONFIG, SPEC), 2 * A
DATA: Any = random_data().to_device()
UPDATE = jax.jit(AGENT.update)


@functools.cache
def state_of(seed: int = 0) -> Any:
    """An agent whose slow V is far from the one that learns."""
    init = jax.jit(AGENT.init)
    return init(jax.random.key(seed), Hyper())._replace(targets=init(jax.random.key(seed + 1), Hyper()).targets)


@functools.cache
def batch_of() -> Chunks:
    return AGENT.sample(DATA, KEY)


# ------------------------------------------------------------------------------------------------------------ returns


def test_returns_by_hand():
    """Two imagined steps, discount 1/2, values 10, 20, 40. In the second row the task ends with the first step."""
    r, m = jnp.array([[1.0, 1.0], [2.0, 2.0]]), jnp.array([[1.0, 0.0], [1.0, 1.0]])
    v = jnp.array([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0]])
    # lambda 1: 2 + 40/2 = 22, and 1 + 22/2 = 12 or, where it ends, 1.
    np.testing.assert_allclose(mac.gae_returns(r, m, v, 0.5, 1.0), [[12.0, 1.0], [22.0, 22.0]], rtol=1e-6)
    # lambda 0: one step, 1 + 20/2.
    np.testing.assert_allclose(mac.gae_returns(r, m, v, 0.5, 0.0), [[11.0, 1.0], [22.0, 22.0]], rtol=1e-6)
    # Between: V_1 + lambda (G_1 - V_1) = 20 + 0.5 * 2 = 21 is what the first step bootstraps with.
    np.testing.assert_allclose(mac.gae_returns(r, m, v, 0.5, 0.5)[0, 0], 11.5, rtol=1e-6)


def test_a_chunk_is_one_step_with_the_mean_of_its_discounted_rewards():
    """Rewards 4, 2, 8 at gamma 1/2: 4 + 1 + 2 over 3; the task ends with the second action, if tasks end."""
    s, actions = jnp.array([[1.0], [2.0]]), jnp.arange(12.0).reshape(2, 3, 2)
    rewards, masks = jnp.array([[4.0, 2.0, 8.0]] * 2), jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    batch = Chunks(s, actions, rewards, masks, s + 1)
    for terminal, r, m in ((False, [7 / 3, 7 / 3], [1, 1]), (True, [7 / 3, 5 / 3], [1, 0])):
        steps = mac.steps_of(batch, Hyper(discount=0.5, terminal=terminal))
        np.testing.assert_allclose(steps.r, r, rtol=1e-6)
        np.testing.assert_array_equal(steps.m, m)
    np.testing.assert_array_equal(steps.c[0], [0, 1, 2, 3, 4, 5])  # a_t first


# ------------------------------------------------------------------------------------------------------------ choices


def known() -> Networks:
    """Without hidden layers: mu(s, z) = 2 z, Q = c_1 - c_2 s, f = s + c_1, R = s + 10 c_1, success logit s - 1."""
    set_to = lambda m, w: eqx.tree_at(lambda m: m.layers[0].weight, m, jnp.asarray(w, jnp.float32))  # noqa: E731
    head = lambda w: eqx.tree_at(lambda r: r.mlp, nets.RewardNet(1, 2, KEY, ()), column(w))  # noqa: E731
    column = lambda w: set_to(nets.MLP(3, 1, KEY, ()), np.reshape(w, (3, 1)))  # noqa: E731
    success = eqx.tree_at(lambda r: r.mlp.layers[0].bias, head([1, 0, 0]), jnp.array([-1.0]))
    critic = nets.Critic(1, 2, KEY, (), members=1)
    critic = eqx.tree_at(lambda c: c.ensemble.layers[0].weight, critic, jnp.array([[[0.0], [1.0], [-1.0]]]))
    value = nets.Critic(1, 0, KEY, (), members=1)
    value = eqx.tree_at(lambda c: c.ensemble.layers[0].weight, value, jnp.array([[[5.0]]]))
    field, actor = nets.VectorField(2, 1, 0, KEY, (), "none"), nets.MLP(3, 2, KEY, ())
    actor = set_to(actor, [[0, 0], [2, 0], [0, 2]])
    return Networks(column([0, 1, 0]), head([1, 10, 0]), success, critic, value, field, actor)


def test_the_best_of_several_chunks_is_chosen():
    params, s = known(), jnp.linspace(-1, 1, 9)[:, None]
    for samples in (1, 5):
        chosen = np.asarray(mac.choose(params, s, samples, KEY))
        proposed = np.clip(2 * np.asarray(jax.random.normal(KEY, (samples, 9, 2))), -1, 1)
        for row in range(9):
            q = [c[0] - c[1] for c in proposed[:, row]]
            np.testing.assert_allclose(chosen[row], proposed[int(np.argmax(q)), row], rtol=1e-6)
    # Of very many, the corner that is best.
    np.testing.assert_allclose(mac.choose(params, s, 500, KEY), np.broadcast_to([1.0, -1.0], (9, 2)))


def test_imagination_by_hand():
    params, s = known(), jnp.array([[0.0], [2.5]])
    config = Config((), 2, chunk=1, rollout_chunks=3, train_samples=500)
    imagined = jax.jit(lambda s: mac.imagine(params, s, config, KEY))(s)
    # c = (1, -1) always: each step adds 1, R = s + 10, and right of 1 the end is foretold but stops nothing.
    np.testing.assert_allclose(imagined.s[..., 0], [[0, 2.5], [1, 3.5], [2, 4.5], [3, 5.5]], rtol=1e-6)
    np.testing.assert_allclose(imagined.r, [[10, 12.5], [11, 13.5], [12, 14.5]], rtol=1e-6)
    np.testing.assert_array_equal(imagined.m, [[1, 0], [1, 0], [0, 0]])
    np.testing.assert_allclose(imagined.first, [[1, -1], [1, -1]])


def test_acting_executes_the_first_action_of_the_best_chunk():
    state, act = state_of(), jax.jit(AGENT.act)
    choose = jax.jit(lambda s: mac.choose(state.params, scaling(SPEC)(s), 6, KEY))
    for leading in ((), (2, 3)):
        observations = jnp.ones((*leading, S))
        actions, chunk = act(state, observations, KEY), choose(observations)
        assert chunk.shape == (*leading, WIDTH)
        np.testing.assert_allclose(actions, chunk[..., :A], rtol=1e-5)
        assert np.abs(actions).max() <= 1
    assert (act(state, observations, jax.random.key(1)) != actions).any()


# ------------------------------------------------------------------------------------------------------------- losses


def test_value_and_model_losses_by_hand():
    params = known()
    s, c = jnp.array([[1.0], [3.0]]), jnp.array([[0.5, 0.0], [-1.0, 1.0]])
    real = mac.Steps(s, c, jnp.array([5.0, -7.0]), jnp.array([1.0, 0.0]), jnp.array([[2.5], [2.0]]))
    found = mac.model_losses(params, real)
    assert found["model_loss"] == pytest.approx((1.0**2 + 0) / 2)  # predicts 1.5 and 2
    assert found["reward_loss"] == pytest.approx((1.0**2 + 0) / 2)  # predicts 6 and -7
    # logits 0 (goes on) and 2 (ended)
    assert found["success_loss"] == pytest.approx((np.log(2) + np.log1p(np.exp(-2))) / 2)
    imagined = mac.Imagined(jnp.stack([s, s + 1, s + 2]), jnp.zeros((2, 2)), jnp.ones((2, 2)), c)
    returns = jnp.array([[4.0, 15.0], [10.0, 22.0]])  # V = 5 s = 5, 15 and 10, 20
    found = mac.value_losses(params, imagined, jnp.array([1.5, -2.0]), returns)
    assert found["value_loss"] == pytest.approx((1 + 0 + 0 + 4) / 4)
    assert found["critic_loss"] == pytest.approx((1.0**2 + 0) / 2)  # Q = c_1 - c_2 = 0.5, -2


def test_policy_losses_by_hand():
    """mu = 2 z against where the flow takes z, one Euler step: z + v(z, 0)."""
    params, z, x0 = known(), jnp.array([[0.1, 0.2], [2.0, -0.3]]), jnp.array([[0.0, 1.0], [1.0, 0.0]])
    real = mac.Steps(
        jnp.zeros((2, 1)), jnp.array([[0.5, 0.5], [-0.5, 0.0]]), jnp.zeros(2), jnp.ones(2), jnp.zeros((2, 1))
    )
    weight = jnp.zeros((4, 2)).at[:2].set(jnp.eye(2)).at[2].set(1.0)  # v = x + tau
    params = eqx.tree_at(lambda p: p.field.mlp.layers[0].weight, params, weight)
    tau = jnp.array([0.5, 0.0])
    found = jax.jit(lambda p: mac.policy_losses(p, real, (x0, z), tau, Config(flow_steps=1)))(params)
    # x_tau = (.25, .75), (1, 0); v = (.75, 1.25), (1, 0); c - x_0 = (.5, -.5), (-1.5, 0)
    assert found["flow_loss"] == pytest.approx(np.mean([0.25**2, 1.75**2, 2.5**2, 0]), rel=1e-5)
    # The flow ends in 2 z, clipped: (.2, .4), (1, -.6), and mu(s, z) = (.2, .4), (4, -.6) is not.
    assert found["actor_loss"] == pytest.approx(3.0**2 / 4, rel=1e-5)


def test_every_loss_moves_its_own_network_alone():
    params = state_of().params
    real = mac.steps_of(batch_of(), Hyper())
    imagined = jax.jit(lambda: mac.imagine(params, real.s, CONFIG, KEY))()
    noise, tau = (jnp.ones_like(real.c), 0.5 * real.c), jnp.linspace(0, 1, 8)

    @jax.jit
    def slopes(params):
        def parts(params):
            values = mac.value_losses(params, imagined, jnp.ones(8), jnp.ones((3, 8)))
            return mac.model_losses(params, real) | values | mac.policy_losses(params, real, noise, tau, CONFIG)

        return jax.jacrev(parts)(params)

    largest = lambda tree: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))  # noqa: E731
    owner = {f"{name}_loss": name for name in Networks._fields} | {"flow_loss": "field"}
    found = slopes(params)
    assert len(found) == len(Networks._fields)
    for loss, gradient in found.items():
        for network in Networks._fields:
            assert (largest(getattr(gradient, network)) > 0) == (owner[loss] == network), (loss, network)


def test_the_targets_of_one_update():
    """Returns bootstrap with the slow V, Q's target with the one that learns."""
    state, batch, gamma = state_of(), batch_of(), 0.9
    new, metrics = UPDATE(state, Hyper(discount=gamma), batch, KEY)
    key_roll, *_ = jax.random.split(KEY, 4)

    @jax.jit
    def look(state, s, key):
        imagined = mac.imagine(state.params, scaling(SPEC)(s), CONFIG, key)
        q = state.params.critic(imagined.s[0], imagined.first)[0]
        return imagined, state.targets.value(imagined.s)[0], state.params.value(imagined.s)[0], q

    imagined, slow, online, q = jax.device_get(look(state, batch.observations, key_roll))
    returns, later = [], slow[-1]
    for r, m in zip(imagined.r[::-1], imagined.m[::-1], strict=True):
        later = r + gamma**2 * m * later
        returns.append(later)
    y = imagined.r[0] + gamma**2 * imagined.m[0] * online[1]
    assert metrics["value_loss"] == pytest.approx(np.square(online[:-1] - np.stack(returns[::-1])).mean(), rel=1e-4)
    assert metrics["critic_loss"] == pytest.approx(np.square(q - y).mean(), rel=1e-4)
    # Everything moved, and the slow V a little.
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), *jax.device_get((state.params, new.params)))
    assert all(jax.tree.leaves(moved))
    old, moved_to = jax.device_get((state.targets.value, new.params.value))
    expected = jax.tree.map(lambda t, p: t + np.float32(0.005) * (p - t), old, moved_to)
    assert_trees(np.testing.assert_allclose, new.targets.value, expected, rtol=1e-5, atol=1e-7)
    assert all(np.isfinite(value) for value in metrics.values())


# ----------------------------------------------------------------------------------------------------------- learning


def test_a_member_is_the_same_agent_trained_alone():
    """Step by step and by itself, with the keys that a population would give it."""
    data, members = random_data(2), population.grid(("t0", "t1"), [0], {"terminal": [False, True]})
    many, _ = train(AGENT, members, Hyper(), data, 4, 4)
    keys = population.init(AGENT, members, population.stack_hyper(Hyper(), members)).key[-1:]
    state = jax.jit(AGENT.init)(jax.random.split(members[-1].key)[0], Hyper())
    for step in range(4):
        sample, update = population.step_keys(keys[0], jnp.int32(step))
        batch = AGENT.sample(data.with_task(1).to_device(), sample)
        state, _ = UPDATE(state, Hyper(terminal=True), batch, update)
    last, first = (jax.tree.map(lambda x, i=i: x[i], many.state) for i in (-1, -2))
    assert_trees(np.testing.assert_allclose, last, state, rtol=1e-3, atol=1e-3)
    assert (first.params.reward.mlp.layers[0].weight != last.params.reward.mlp.layers[0].weight).any()


@pytest.mark.slow
def test_known_values_are_learned():
    """A point that stays where it is, at -1 or 1, with its position as reward; the task ends at 1, if tasks end.

    For ever it is worth (1/h) r / (1 - gamma) = 2.5 r at gamma 0.8 and h = 2, and r / h where the first action ends it.
    """
    rows = np.repeat(np.array([-1, 1] * 8, np.float32), 4)
    actions = np.random.default_rng(0).uniform(-1, 1, (64, 1)).astype(np.float32)
    data = make_dataset(rows[:, None], actions, np.arange(64) % 4 == 3, rows[None], rows[None] < 0, ("stay",))
    spec, members = spec_of(data, 1), population.grid(("stay",), [0], {"terminal": [False, True]})
    probe = mac.make(Config((32,), 32, chunk=2, rollout_chunks=3, train_samples=2, flow_steps=2), spec)
    hyper = Hyper(discount=0.8, learning_rate=1e-2, ema_rate=0.05)
    pop, _ = train(probe, members, hyper, data, 400, 400)
    assert pop.alive.all()
    at = scaling(spec)(jnp.array([[-1.0], [1.0]]))
    v = jax.vmap(lambda value: value(at)[0])(pop.state.targets.value)
    np.testing.assert_allclose(v, [[-2.5, 2.5], [-2.5, 0.5]], atol=0.2)
    # As a return it is h times as much: r / (1 - gamma) = 5 r, or r.
    believed = expected_values(probe, pop, jnp.array([[-1.0], [1.0]]))
    np.testing.assert_allclose(believed, [[-5, 5], [-5, 1]], atol=0.5)


def test_chunks_longer_than_the_data_are_refused():
    with pytest.raises(UhmError, match="no trajectory has 9 transitions"):
        mac.make(Config((16,), 8, chunk=9), SPEC).sample(DATA, KEY)
