"""IQL, ReBRAC and FQL: their losses against arithmetic that is written otherwise, and what they learn."""

import functools
import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import A, S, agent, assert_trees, expected_values, random_data, train
from uhm import nets, population
from uhm.agents import core, family, fql, iql, rebrac, spec_of
from uhm.data.dataset import make_dataset
from uhm.data.sampling import Transitions, gather_transitions, transitions
from uhm.runs import Run

AGENTS = ("iql", "rebrac", "fql")
DATA: Any = random_data().to_device()
BATCH = gather_transitions(DATA, DATA.starts)  # every transition once
ROWS = len(BATCH.rewards)
KEY = jax.random.key(3)
SAMPLE = jax.jit(lambda data, key: transitions(ROWS)(data, key))


@functools.cache
def made(name: str, **config: Any) -> Any:
    options = {"flow_steps": 3} if name == "fql" else {}
    config = {"hidden": (16,), "batch_size": ROWS, **options, **config}
    return family(name).make(family(name).Config(**config), spec_of(DATA, 1))


@functools.cache
def jitted(what: str, name: str, **config: Any) -> Any:
    return jax.jit(getattr(made(name, **config), what))


def hyper_of(name: str, **changes: Any) -> Any:
    return family(name).Hyper(**{"discount": 0.9, **changes})


@functools.cache
def state_of(name: str) -> Any:
    """An agent whose targets are far from what learns."""
    state, other = (jitted("init", name)(jax.random.key(i), hyper_of(name)) for i in range(2))
    return state._replace(targets=other.targets)


def linear(module: Any, *weights: Any, bias: Any = None) -> Any:
    """A net without hidden layers, with these weights (inputs in rows)."""
    mlp = lambda m: m.ensemble if isinstance(m, nets.Critic) else getattr(m, "mlp", m)  # noqa: E731
    weight = mlp(module).layers[0].weight
    module = eqx.tree_at(
        lambda m: mlp(m).layers[0].weight, module, jnp.asarray(weights, jnp.float32).reshape(weight.shape)
    )
    if bias is not None:
        module = eqx.tree_at(lambda m: mlp(m).layers[0].bias, module, jnp.asarray(bias, jnp.float32))
    return module


CRITIC = linear(nets.Critic(1, 2, KEY, ()), [1, 1, 0], [1, 0, 2])  # Q_1 = s + a_1, Q_2 = s + 2 a_2
# The second transition ends the task.
HAND = Transitions(
    jnp.array([[1.0], [3.0]]),
    jnp.array([[0.5, 0.5], [-1.0, 0.0]]),
    jnp.array([1.0, -1.0]),
    jnp.array([1.0, 0.0]),
    jnp.array([[2.0], [5.0]]),
    jnp.array([[0.25, -0.5], [1.0, 1.0]]),
)


# ---------------------------------------------------------------------------------------------------------------- IQL


def test_iqls_expectile_by_hand():
    """V = s = 1, 3 and q = 2, 1: u = 1 weighs 0.9, u = -2 weighs 0.1."""
    value = linear(nets.Critic(1, 0, KEY, (), members=1), 1)
    loss = iql.value_loss(value, jnp.array([2.0, 1.0]), hyper_of("iql", expectile=0.9), HAND)
    assert loss == pytest.approx((0.9 * 1 + 0.1 * 4) / 2)


@pytest.mark.parametrize("kappa", [0.5, 0.7, 0.9])
def test_the_expectile_of_a_coin_is_kappa(kappa):
    """Of 0 and 1 at equal odds: kappa (1 - m) = (1 - kappa) m at the minimum."""
    batch = HAND._replace(observations=jnp.ones((2, 1)))
    loss = lambda m: iql.value_loss(  # noqa: E731
        linear(nets.Critic(1, 0, KEY, (), members=1), m), jnp.array([0.0, 1.0]), hyper_of("iql", expectile=kappa), batch
    )
    slope = jax.grad(loss)
    assert slope(jnp.float32(kappa)) == pytest.approx(0, abs=1e-6)
    assert slope(jnp.float32(kappa - 0.1)) < -0.01
    assert slope(jnp.float32(kappa + 0.1)) > 0.01


def test_iqls_weights_and_their_clip_by_hand():
    """mu = (s, 0) = (1, 0), (3, 0); squared errors 1/4 + 1/4 and 16. Weights 2 and, beyond the clip, 100."""
    actor = linear(nets.MLP(1, 2, KEY, ()), 1, 0)
    advantage = jnp.array([math.log(2) / 3, 1000.0])  # exp of the second is infinite
    loss, weight = iql.actor_loss(actor, advantage, hyper_of("iql", alpha=3.0), HAND)
    np.testing.assert_allclose(weight, [2, 100], rtol=1e-6)
    constant = math.log(2 * math.pi)  # of two dimensions, half of it each
    assert loss == pytest.approx((2 * (0.25 + constant) + 100 * (8 + constant)) / 2, rel=1e-6)
    gradient = jax.grad(lambda net: iql.actor_loss(net, advantage, hyper_of("iql", alpha=3.0), HAND)[0])(actor)
    # d/d bias = mean w (mu - a)
    np.testing.assert_allclose(gradient.layers[0].bias, [(2 * 0.5 + 100 * 4) / 2, -0.5], rtol=1e-6)
    # Without temperature it is cloning.
    _, plain = iql.actor_loss(actor, advantage, hyper_of("iql", alpha=0.0), HAND)
    np.testing.assert_array_equal(plain, 1.0)


def test_iqls_sum_of_losses_by_hand():
    """V = 2 s: y = 1 + 0.9 * 4 and, at the end, -1. Q = (1.5, 2), (2, 3), so A = min - V = 1.5 - 2, 2 - 6."""
    params = iql.Networks(
        CRITIC, linear(nets.Critic(1, 0, KEY, (), members=1), 2), linear(nets.MLP(1, 2, KEY, ()), 0, 0)
    )
    slow = linear(CRITIC, [4, 0, 0], [3, 0, 0])  # min 3 s: u = 1, 3
    total, metrics = iql.losses(params, slow, hyper_of("iql", alpha=1.0, expectile=0.8), HAND)
    critic = np.mean([3.1**2 + 2.6**2, 3**2 + 4**2])  # a sum over the critics
    assert metrics["critic_loss"] == pytest.approx(critic, rel=1e-6)
    assert metrics["value_loss"] == pytest.approx(0.8 * (1 + 9) / 2, rel=1e-6)
    constant = math.log(2 * math.pi)
    actor = np.mean([np.exp(-0.5) * (0.25 + constant), np.exp(-4) * (0.5 + constant)])
    assert metrics["actor_loss"] == pytest.approx(actor, rel=1e-5)
    assert total == pytest.approx(critic + 4 + actor, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------- ReBRAC


@pytest.mark.parametrize(("agg", "q"), [("min", 0.0), ("mean", 1.25)])
def test_rebracs_target_by_hand(agg, q):
    """mu = tanh(b) = (1/2, -1) at s' = 2: Q_1 = 2.5, Q_2 = 0. |mu - a'|^2 = 1/16 + 1/4 with the data's a' at s'."""
    actor = linear(nets.Actor(1, 2, KEY, ()), 0, 0, bias=[np.arctanh(0.5), -50.0])
    hyper = hyper_of("rebrac", alpha_critic=0.4, target_noise=0.0)
    y = rebrac.target(rebrac.Networks(CRITIC, actor), hyper, HAND, KEY, agg)
    np.testing.assert_allclose(y, [1 + 0.9 * (q - 0.4 * 0.3125), -1], rtol=1e-6)


def test_the_noise_of_rebracs_target_is_penalised_too_and_stays_in_the_box():
    """Q = 0 and a' = 1: y tells the distance of the noisy action from a'."""
    rows = 4000
    actor = linear(nets.Actor(1, 1, KEY, ()), 0, bias=[np.arctanh(0.8)])
    batch = Transitions(*(jnp.ones((rows, 1)) if i in (0, 1, 4, 5) else jnp.ones(rows) for i in range(6)))
    slow = rebrac.Networks(linear(nets.Critic(1, 1, KEY, ()), [0, 0], [0, 0]), actor)
    hyper = hyper_of("rebrac", alpha_critic=1.0, target_noise=5.0, target_noise_clip=0.5, discount=1.0)
    distance = np.sqrt(1 - np.asarray(rebrac.target(slow, hyper, batch, KEY, "min")))
    assert distance.max() == pytest.approx(0.7, abs=1e-3)  # 0.8 - 0.5
    assert distance.min() == 0  # 0.8 + 0.5 would be outside


def test_without_penalty_and_delay_rebrac_is_rebrac_dagger():
    """The same networks, batch and noise through two agents: the one whose lambda is 0, and ReBRAC."""
    other = agent("rebrac-dagger")  # its config takes the mean of the critics
    old = jax.jit(other.init)(KEY, core.Hyper())
    hyper = core.Hyper(discount=0.9, alpha=0.3, ema_rate=0.1, target_noise=0.3)
    new, metrics = jax.jit(other.update)(old, hyper, BATCH, KEY)

    pick = lambda n: rebrac.Networks(n.critic, n.actor)  # noqa: E731
    adam = cast(Any, old.adam)
    parts = {part: pick(getattr(old, part)) for part in ("params", "targets", "rounded")}
    mine = old._replace(**parts, adam=adam._replace(mu=pick(adam.mu), nu=pick(adam.nu)))
    own = hyper_of("rebrac", alpha=0.3, ema_rate=0.1, target_noise=0.3, alpha_critic=0.0, actor_period=1)
    key = jax.random.split(jax.random.split(KEY)[0])[0]  # from which the other draws its noise
    after, found = jitted("update", "rebrac", q_agg="mean")(mine, own, BATCH, key)
    for part in ("params", "targets"):
        assert_trees(np.testing.assert_allclose, getattr(after, part), pick(getattr(new, part)), atol=1e-6)
    assert found["critic_loss"] == pytest.approx(float(metrics["critic_loss"]), rel=1e-6)
    # With a penalty the target falls.
    worse = own.__class__(**(vars(own) | {"alpha_critic": 1.0}))
    assert jitted("update", "rebrac", q_agg="mean")(mine, worse, BATCH, key)[1]["target_mean"] < found["target_mean"]


def test_rebracs_actor_and_targets_wait_for_every_second_step():
    update, state = jitted("update", "rebrac"), state_of("rebrac")
    weight = lambda net: np.asarray((net.ensemble if isinstance(net, nets.Critic) else net.mlp).layers[0].weight)  # noqa: E731
    for step in range(4):
        new, _ = update(state, hyper_of("rebrac"), BATCH, KEY)
        means = [cast(Any, s.adam).mu for s in (state, new)]
        learned = {
            n: np.abs(weight(getattr(means[1], n)) - 0.9 * weight(getattr(means[0], n))).max()
            for n in ("actor", "critic")
        }
        assert learned["critic"] > 1e-6
        assert (learned["actor"] > 1e-6) == (step % 2 == 0)
        # Adam's momentum moves the actor in between, too.
        assert (weight(new.params.actor) != weight(state.params.actor)).any()
        for net in ("actor", "critic"):
            before, slow = (weight(getattr(s.targets, net)) for s in (state, new))
            moved = before + (0.005 if step % 2 == 0 else 0.0) * (weight(getattr(new.params, net)) - before)
            np.testing.assert_allclose(slow, moved, rtol=1e-6, atol=1e-7)
        state = new


# ---------------------------------------------------------------------------------------------------------------- FQL

NOISE = fql.Noise(
    next_z=jnp.array([[0.25, 1.0], [0.0, 0.0]]),
    x0=jnp.array([[1.0, 0.0], [0.0, 2.0]]),
    tau=jnp.array([0.5, 0.25]),
    z=jnp.array([[0.5, 0.0], [2.0, -1.0]]),
)
NOISY = linear(nets.MLP(3, 2, KEY, ()), [0, 0], [1, 0], [0, 1])  # mu(s, z) = z


@pytest.mark.parametrize(("agg", "q"), [("min", 2.5), ("mean", 3.25)])
def test_fqls_target_by_hand(agg, q):
    """mu(s', z') = 2 z' = (1/2, 2), clipped to (1/2, 1): at s' = 2, Q_1 = 2.5 and Q_2 = 4."""
    actor = linear(NOISY, [0, 0], [2, 0], [0, 2])
    y = fql.target(actor, CRITIC, hyper_of("fql"), HAND, NOISE, agg)
    np.testing.assert_allclose(y, [1 + 0.9 * q, -1], rtol=1e-6)


def test_fqls_flow_loss_by_hand():
    """v = (x_1 + tau, s), at x_tau = (.75, .25), (-.25, 1.5); it should be a - x_0 = (-.5, .5), (-1, -2)."""
    field = nets.VectorField(2, 1, 0, KEY, (), horizon="none", layer_norm=False)
    field = linear(field, [1, 0], [0, 0], [1, 0], [0, 1])  # rows: x, tau, s
    loss = fql.flow_loss(field, HAND, NOISE)
    assert loss == pytest.approx(np.mean([(1.25 + 0.5) ** 2, (1 - 0.5) ** 2, (0.0 + 1) ** 2, (3 + 2) ** 2]), rel=1e-6)


@pytest.mark.parametrize(("ode", "growth"), [("euler", 1.1**10), ("midpoint", 1.105**10)])
def test_fql_follows_the_flow_and_clips_where_it_ends(ode, growth):
    """dx/dtau = x in the first dimension, s in the second."""
    field = linear(nets.VectorField(2, 1, 0, KEY, (), horizon="none", layer_norm=False), [1, 0], [0, 0], [0, 0], [0, 1])
    z = jnp.array([[0.1, -0.5], [0.9, 0.0]])
    end = fql.integrate(field, HAND.observations, z, fql.Config(ode=ode))
    np.testing.assert_allclose(end, [[0.1 * growth, 0.5], [1, 1]], rtol=1e-5)


def test_fqls_actor_loss_by_hand():
    """mu = z = (.5, 0), (2, -1), of which the critic sees (1, -1): Q_1 = 1.5, 4 and Q_2 = 1, 1."""
    imitated = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    hyper = hyper_of("fql", alpha=3.0)
    loss = lambda net: fql.actor_loss(net, CRITIC, hyper, HAND, NOISE, imitated)  # noqa: E731
    value, distance = loss(NOISY)
    assert distance == pytest.approx((0.25 + 1 + 4) / 4)
    assert value == pytest.approx(3 * 5.25 / 4 - 7.5 / 4, rel=1e-6)
    gradient = jax.grad(lambda net: loss(net)[0])(NOISY).layers[0].bias
    # Imitation: 3 * 2/4 * sum of errors. Q: 1/4 for each row and critic, but none through what was clipped: at the
    # very edge, -1, half of it.
    np.testing.assert_allclose(gradient[0], 1.5 * (0.5 + 1) - 1 / 4, rtol=1e-6)
    np.testing.assert_allclose(gradient[1], 1.5 * (0 - 2) - 2 / 4 - 0.5 * 2 / 4, rtol=1e-6)


def test_fql_acts_with_noise_from_the_key():
    state, act = state_of("fql"), jitted("act", "fql")
    s = jnp.ones((2, 3, S))
    one, again, two = (act(state, s, jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - two).max() > 1e-3
    z = jax.random.normal(jax.random.key(0), (2, 3, A))
    mean = jax.jit(lambda net, x: net(x))(state.params.actor, jnp.concatenate([s, z], -1))
    np.testing.assert_allclose(one, np.clip(mean, -1, 1), atol=1e-6)
    assert len(np.unique(one[..., 0])) == 6  # rows of the same state have each their own noise
    assert act(state, s[0, 0], KEY).shape == (A,)


# ------------------------------------------------------------------------------------------------------------ updates


def gradients_of(name: str, params: Any, targets: Any, hyper: Any) -> dict[str, Any]:
    """Each network's gradient of its own loss, the losses written out again."""
    s, a, r, m, s_next, a_next = BATCH

    def squares(critic: Any, y: Any) -> Any:
        return ((critic(s, a) - jax.lax.stop_gradient(y)[None]) ** 2).mean()

    if name == "iql":
        q_slow, q = targets.critic(s, a).min(axis=0), params.critic(s, a).min(axis=0)
        y = r + 0.9 * m * params.value(s_next)[0]
        weight = jnp.clip(jnp.exp(hyper.alpha * (q - params.value(s)[0])), None, 100.0)
        u = lambda net: q_slow - net(s)[0]  # noqa: E731
        return {
            "critic": jax.grad(lambda net: 2 * squares(net, y))(params.critic),
            "value": jax.grad(lambda net: (jnp.abs(0.9 - (u(net) < 0)) * u(net) ** 2).mean())(params.value),
            "actor": jax.grad(lambda net: (weight[:, None] * (net(s) - a) ** 2).sum() / 2 / ROWS)(params.actor),
        }
    if name == "rebrac":
        noise = jnp.clip(0.2 * jax.random.normal(KEY, a.shape), -0.5, 0.5)
        action = jnp.clip(targets.actor(s_next) + noise, -1, 1)
        bonus = targets.critic(s_next, action).min(0) - 0.01 * ((action - a_next) ** 2).sum(1)
        scale = 1 / jnp.abs(params.critic(s, params.actor(s)).min(0)).mean()
        climb = lambda net: scale * params.critic(s, net(s)).min(0).mean()  # noqa: E731
        return {
            "critic": jax.grad(squares)(params.critic, r + 0.9 * m * bonus),
            "actor": jax.grad(lambda net: 0.1 * ((net(s) - a) ** 2).sum(1).mean() - climb(net))(params.actor),
        }
    keys = jax.random.split(KEY, 4)
    z_next, x0, z = (jax.random.normal(k, a.shape) for k in keys[:3])
    tau = jax.random.uniform(keys[3], (ROWS,))
    mu = lambda net, s, z: net(jnp.hstack([s, z]))  # noqa: E731
    y = r + 0.9 * m * targets.critic(s_next, jnp.clip(mu(params.actor, s_next, z_next), -1, 1)).mean(0)
    end = z
    for i in range(3):
        end = end + params.flow.velocity(end, jnp.full(ROWS, i / 3), s) / 3
    end = jnp.clip(end, -1, 1)
    middle = x0 + tau[:, None] * (a - x0)
    climb = lambda net: params.critic(s, jnp.clip(mu(net, s, z), -1, 1)).mean()  # noqa: E731
    return {
        "critic": jax.grad(squares)(params.critic, y),
        "flow": jax.grad(lambda net: ((net.velocity(middle, tau, s) - a + x0) ** 2).mean())(params.flow),
        "actor": jax.grad(lambda net: 10 * ((mu(net, s, z) - end) ** 2).mean() - climb(net))(params.actor),
    }


@pytest.mark.parametrize("name", AGENTS)
def test_an_update_is_one_step_of_adam_on_each_networks_own_loss(name):
    """No loss reaches another network, nothing reaches a target. The first step of Adam is g / |g|."""
    state, hyper = state_of(name), hyper_of(name, learning_rate=1e-2, ema_rate=0.1)
    new, metrics = jitted("update", name)(state, hyper, BATCH, KEY)
    g = jax.jit(lambda p, t: gradients_of(name, p, t, hyper))(state.params, state.targets)
    g, old, new = jax.device_get((type(state.params)(**g), state, new))
    assert_trees(np.testing.assert_allclose, new.adam.mu, jax.tree.map(lambda x: 0.1 * x, g), rtol=1e-3, atol=1e-6)
    move = lambda p, m: p - 1e-2 * (m / 0.1) / (np.abs(m / 0.1) + 1e-8)  # noqa: E731
    assert_trees(
        np.testing.assert_allclose, new.params, jax.tree.map(move, old.params, new.adam.mu), rtol=1e-4, atol=1e-4
    )
    for net in new.params._fields:
        target, before, learned = (getattr(tree, net) for tree in (new.targets, old.targets, new.params))
        if name != "rebrac" and net != "critic":
            assert target is None
            continue
        slow = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, before, learned)
        assert_trees(np.testing.assert_allclose, target, slow, rtol=1e-5, atol=1e-6)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x != y).any()), old.params, new.params)))
    assert new.step == 1
    assert {"critic_loss", "actor_loss", "q_mean"} <= metrics.keys()
    assert all(np.isfinite(value) and np.shape(value) == () for value in metrics.values())


@pytest.mark.parametrize("name", ["iql", "rebrac"])
def test_deterministic_actions_stay_in_the_box(name):
    state = state_of(name)
    s = 100 * jax.random.normal(KEY, (2, 3, S))
    one, two = (made(name).act(state, s, jax.random.key(i)) for i in range(2))
    np.testing.assert_array_equal(one, two)
    mean = state.params.actor(s)
    np.testing.assert_allclose(one, jnp.clip(mean, -1, 1), rtol=1e-6)
    far = eqx.tree_at(
        lambda p: getattr(p.actor, "mlp", p.actor).layers[-1].bias, state.params, jnp.array([50.0, -50.0])
    )
    np.testing.assert_array_equal(made(name).act(state._replace(params=far), jnp.zeros(S), KEY), [1.0, -1.0])


@pytest.mark.parametrize("name", AGENTS)
def test_a_member_is_the_same_agent_trained_alone_and_a_checkpoint_is_all_it_needs(name, tmp_path):
    """The last of four against its own updates, one by one; and all of them, stored and restored half-way."""
    data, members = random_data(2), population.grid(("t0", "t1"), [0], {"alpha": [0.1, 1.0]})
    many, _ = train(made(name), members, hyper_of(name), data, 10, 5)
    half, _ = train(made(name), members, hyper_of(name), data, 5, 5)
    with Run.create(tmp_path / "run", {}) as run:
        run.save(5, half, block=True)
        restored = run.restore(jax.eval_shape(lambda: half))
    assert restored is not None
    rows = data.with_task(np.array([member.column for member in members], np.int32)).to_device()
    hypers = population.stack_hyper(hyper_of(name), members)
    resumed, _ = population.advance(made(name), restored[1], hypers, rows, 5)
    assert_trees(np.testing.assert_array_equal, resumed.state, many.state)

    key_init, key = jax.random.split(members[-1].key)
    hyper = hyper_of(name, alpha=1.0)
    state, own = jitted("init", name)(key_init, hyper), data.with_task(1).to_device()
    for step in range(10):
        key_sample, key_update = population.step_keys(key, jnp.int32(step))
        state, _ = jitted("update", name)(state, hyper, SAMPLE(own, key_sample), key_update)
    last = jax.tree.map(lambda x: x[-1], many.state)
    assert_trees(np.testing.assert_allclose, last, state, rtol=1e-5, atol=1e-5)
    # The bound is far below what the other members differ by.
    leaves = [np.asarray(leaf).reshape(4, -1) for leaf in jax.tree.leaves(many.state.params)]
    weights = np.concatenate(leaves, axis=1)
    assert (np.abs(weights[:3] - weights[3]).max(1) > 5e-4).all()


# ----------------------------------------------------------------------------------------------------- what is learned


SETTINGS = {"iql": {"alpha": 10.0}, "rebrac": {"alpha": 0.1, "alpha_critic": 0.0}, "fql": {"alpha": 1.0}}


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_known_values_and_the_best_action_are_learned(name):
    """Rows at 0, 1, 2, 3 under four rewards; the task ends with the transition out of row 1, or at once.

    What is stored behind the end (rewards of -3) must not reach the values before it. In the last task the reward of
    each row is 1 - 4 (a - 1/2)^2, and ends it: 0 at a = 0, and best at 1/2.
    """
    repeats = 32
    positions = np.tile(np.arange(4, dtype=np.float32), repeats)
    actions = np.random.default_rng(0).uniform(-1, 1, (4 * repeats, 1)).astype(np.float32)
    rewards = np.tile(np.array([[2, 2, 2, 2], [0, 1, -3, -3], [-1, -1, -3, -3], [0, 0, 0, 0]], np.float32), repeats)
    rewards[3] = 1 - 4 * (actions[:, 0] - 0.5) ** 2
    masks = np.tile(np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]), repeats)
    names = ("at once", "delayed", "costs", "choice")
    data = make_dataset(positions[:, None] - 1, actions, positions == 3, rewards, masks, names)
    options = {"flow_steps": 3} if name == "fql" else {}
    probe = family(name).make(family(name).Config(hidden=(32, 32), batch_size=64, **options), spec_of(data, 1))
    hyper = hyper_of(name, **SETTINGS[name], learning_rate=5e-3, ema_rate=0.02)
    pop, _ = train(probe, population.grid(names, [0], {}), hyper, data, 600, 600)
    assert pop.alive.all()
    critic = pop.state.targets.critic
    at = jnp.asarray(positions[:2, None] - 1), jnp.zeros((2, 1))
    q = jax.vmap(lambda critic: critic(*at).mean(0))(critic)
    np.testing.assert_allclose(q[:3], [[2, 2], [0.9, 1], [-1.9, -1]], atol=0.2)
    believed = expected_values(probe, pop, at[0])
    np.testing.assert_allclose(believed[:3], [[2, 2], [0.9, 1], [-1.9, -1]], atol=0.3)
    # The reward of the best action; of IQL the expectile of the stored ones, where what is above weighs kappa.
    above = lambda v: np.maximum(rewards[3] - v, 0).mean() * 0.9 - np.maximum(v - rewards[3], 0).mean() * 0.1  # noqa: E731
    expectile = max(v for v in np.linspace(-8, 1, 9001) if above(v) >= 0)
    np.testing.assert_allclose(believed[3], expectile if name == "iql" else 1, atol=0.3)
    acted = population.act(probe, pop.state, jnp.zeros((4, 50, 1)) - 1, KEY)[3]
    np.testing.assert_allclose(q[3], 0, atol=0.2)
    assert np.abs(acted - 0.5).mean() < 0.2  # of the data's own actions it is 0.6
