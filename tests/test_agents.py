"""The five methods: their targets against arithmetic that is written otherwise, and what an update moves."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from toys import HYPER, METHODS, A, K, S, agent, assert_trees, expected_values, random_data, train
from uhm import bench, nets, population
from uhm.agents import FAMILIES, core, dtd, family, ghm, mbtd, rebrac_dagger, spec_of, uhm
from uhm.agents.core import Config, Context, Networks
from uhm.agents.horizon_model import HorizonModel
from uhm.bench.subject import make
from uhm.data.dataset import make_dataset
from uhm.data.sampling import Transitions, gather_transitions, gather_windows
from uhm.errors import UhmError
from uhm.horizons import NStep
from uhm.returns import lambda_returns

BACKUPS: dict[str, Any] = {
    "uhm": uhm.backup,
    "n-step": functools.partial(uhm.backup, measure=lambda context: NStep(context.k_max, context.hyper.discount)),
    "ghm": ghm.backup,
    "mbtd": functools.partial(mbtd.imagined_backup, window=K),
    "dtd": dtd.backup,
    "rebrac-dagger": rebrac_dagger.backup,
}
IMAGINING = ("uhm", "ghm", "mbtd")
DATA: Any = random_data().to_device()
ROWS = DATA.starts  # every transition once
KEY = jax.random.key(3)


@functools.cache
def jitted(what: str, name: str, **options: Any) -> Any:
    """`init` or `update` of an agent, or its backup, compiled once for the whole file."""
    if what != "backup":
        return jax.jit(getattr(agent(name, **options), what))

    def run(targets, reward, hyper, lam, cap, batch, key):
        return BACKUPS[name](Context(targets, reward, hyper, lam, cap, "mean"), batch, key)

    return jax.jit(run)


def batch_of(name: str) -> Any:
    """The same transitions for every method, as it wants them."""
    return gather_windows(DATA, ROWS, K) if name == "dtd" else gather_transitions(DATA, ROWS)


@functools.cache
def state_of(name: str) -> core.State:
    """An agent whose targets are far from what learns, and whose slow actor is far from 0."""
    state, other = (jitted("init", name)(jax.random.key(i), HYPER) for i in range(2))
    targets = eqx.tree_at(lambda t: t.actor.mlp.layers[-1].bias, other.targets, jnp.array([0.4, -0.7]))
    return state._replace(targets=targets)


def backup(name, batch, key=KEY, lam=0.8, cap=K, state=None, **hyper) -> core.Backup:
    state = state or state_of(name)
    hyper = jax.tree.map(jnp.asarray, replace(**hyper))
    return jitted("backup", name)(
        state.targets, state.params.reward, hyper, jnp.float32(lam), jnp.int32(cap), batch, key
    )


def replace(**changes: Any) -> core.Hyper:
    return core.Hyper(**(vars(HYPER) | changes))


def always_flagging(state: core.State) -> core.State:
    """The model's flag flows up by 100 whatever the input: every imagined state has ended."""
    bias = lambda s: s.targets.model.field.mlp.layers[-1].bias  # noqa: E731
    return eqx.tree_at(bias, state, bias(state).at[-1].set(100.0))


# ------------------------------------------------------------------------------------------------------------ targets


@pytest.mark.parametrize("name", METHODS[:-1])
def test_at_lambda_zero_every_target_is_rebrac_daggers(name):
    y = backup(name, batch_of(name), lam=0.0, cap=1).y
    reference = backup("rebrac-dagger", batch_of("rebrac-dagger")).y
    np.testing.assert_allclose(y, reference, rtol=1e-6, atol=1e-6)
    # It is the noise that is shared: another key is another target, and so is another lambda.
    assert np.abs(backup(name, batch_of(name), jax.random.key(4), 0.0, 1).y - y).max() > 1e-4
    assert np.abs(backup(name, batch_of(name)).y - y).max() > 1e-2


def test_rebrac_daggers_target_by_hand():
    state, batch = state_of("rebrac-dagger"), batch_of("rebrac-dagger")
    noise = jnp.clip(0.2 * jax.random.normal(jax.random.split(KEY)[0], (len(ROWS), A)), -0.5, 0.5)
    action = jnp.clip(state.targets.actor(batch.next_observations) + noise, -1, 1)
    q = state.targets.critic(batch.next_observations, action).mean(0)
    np.testing.assert_allclose(backup("rebrac-dagger", batch).y, batch.rewards + 0.9 * batch.masks * q, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_a_terminal_successor_is_worth_the_reward_alone(name):
    batch = batch_of(name)
    batch = batch._replace(masks=jnp.zeros_like(batch.masks))
    first, horizons = gather_transitions(DATA, ROWS), set()
    for cap in range(1, K + 1):
        for seed in range(3):
            result = backup(name, batch, jax.random.key(seed), cap=cap)
            np.testing.assert_array_equal(result.y, first.rewards)
            if result.flow is not None:
                units = np.asarray(state_of(name).params.model.scale)
                units = units[np.minimum(result.flow.n, len(units)) - 1]
                change = (first.next_observations - first.observations) / units
                np.testing.assert_allclose(result.flow.x1, np.column_stack([change, np.ones(len(ROWS))]), atol=1e-6)
                horizons |= {(cap, int(n)) for n in result.flow.n}
    if name == "uhm":
        assert horizons == {(cap, n) for cap in range(1, K + 1) for n in range(1, cap + 1)}


@pytest.mark.parametrize("name", METHODS)
def test_without_terminal_handling_masks_and_flags_change_nothing(name):
    batch = batch_of(name)
    ended, going_on = (batch._replace(masks=jnp.full_like(batch.masks, m)) for m in (0.0, 1.0))
    state = always_flagging(state_of(name)) if name in IMAGINING else state_of(name)
    a, b = (backup(name, x, state=state, terminal=False) for x in (ended, going_on))
    assert_trees(np.testing.assert_array_equal, a, b)
    rewards = batch.rewards[:, 0] if name == "dtd" else batch.rewards
    assert np.abs(a.y - rewards).min() > 1e-4
    if a.flow is not None:
        np.testing.assert_array_equal(a.flow.x1[:, -1], 0.0)
    # The same flags do count with it: what is imagined has ended, what is real has not.
    if name in ("uhm", "ghm"):
        found: Any = backup(name, going_on, state=state)
        assert 0 < found.flow.x1[:, -1].sum() < len(ROWS)
        np.testing.assert_array_equal(found.y == rewards, found.flow.x1[:, -1] == 1)
        assert found.ends == 1.0
        assert a.ends == 0.0


@pytest.mark.parametrize("name", IMAGINING)
def test_above_every_flag_the_threshold_leaves_stored_ends_alone(name):
    batch, state = batch_of(name), always_flagging(state_of(name))
    ended, going_on = (batch._replace(masks=jnp.full_like(batch.masks, m)) for m in (0.0, 1.0))
    unmoved = backup(name, going_on, state=state, flag_threshold=1e6)
    assert_trees(np.testing.assert_array_equal, unmoved, backup(name, going_on, state=state, terminal=False))
    np.testing.assert_allclose(backup(name, ended, state=state, flag_threshold=1e6).y, batch.rewards, rtol=1e-6)


def stand_in(model, reward, critic, actor=None, **hyper) -> Any:
    """A context of plain functions: a world that is known exactly. The policy does nothing unless told otherwise."""
    actor = actor or (lambda s: jnp.zeros((*s.shape[:-1], 1)))
    both = lambda s, a: jnp.stack([critic(s, a) - 1.0, critic(s, a) + 1.0])  # noqa: E731
    encode = lambda s, s_n, ended, n: jnp.concatenate([s_n - s, ended[..., None]], -1)  # noqa: E731
    generate = lambda noise, s, a, n, threshold: model(noise, s, a, n)  # noqa: E731
    sample = lambda key, s, a, n, threshold: model(jax.random.normal(key, (*s.shape[:-1], 2)), s, a, n)  # noqa: E731
    targets: Any = SimpleNamespace(
        critic=both, actor=actor, model=SimpleNamespace(generate=generate, sample=sample, encode=encode)
    )
    hyper = replace(target_noise=0.0, **hyper)
    return Context(targets, reward, hyper, jnp.float32(0.8), jnp.int32(K), "mean")  # type: ignore


def rows_from(states, masks, rewards=0.5, next_actions=0.0) -> Transitions:
    """Transitions of a one-dimensional world; `states` are [B, 2]: s and s'."""
    full = lambda x: jnp.broadcast_to(jnp.float32(x), len(states))  # noqa: E731
    column = lambda x: full(x)[:, None]  # noqa: E731
    s, s_next = states[:, :1], states[:, 1:]
    return Transitions(s, column(0.0), full(rewards), jnp.float32(masks), s_next, column(next_actions))


@pytest.mark.parametrize("name", ["uhm", "n-step", "ghm", "literal"])
def test_one_sampled_horizon_estimates_the_return(name):
    """A deterministic chain towards 1 on which model, reward and Q are exact; the task ends beyond 0.7."""
    how, blind = ("ghm", True) if name in ("ghm", "literal") else (name, False)
    goal, decay, lam, gamma, repeats, window = 0.7, 0.8, 0.8, 0.9, 40_000, 150
    ahead = lambda s, n: 1 + decay ** n[..., None] * (s - 1)  # noqa: E731
    reward = lambda s, a: 1 + jnp.sin(5 * s[..., 0])  # noqa: E731
    critic = lambda s, a: 2 + jnp.cos(3 * s[..., 0])  # noqa: E731

    def model(noise, s, a, n):
        if blind:  # a geometric horizon model is blind to n: it draws its own
            u = jax.scipy.stats.norm.cdf(noise[..., 0])
            n = 1 + jnp.floor(jnp.log(u) / jnp.log(lam * gamma))
        s_n = ahead(s, n)
        return s_n, s_n[..., 0] > goal

    # The end comes after 12, 8 and 4 transitions, and with the first.
    starts = jnp.array([-3.0, -0.5, 0.4, 0.65])
    chain = ahead(starts[:, None, None], jnp.arange(window + 1))[..., 0]  # [starts, s_0 .. s_window]
    masks = (chain[:, 1:] <= goal).astype(jnp.float32)
    assert masks.sum(1).tolist() == [11, 7, 3, 0]
    rewards = reward(chain[..., None], None)[:, :-1].at[:, 0].set(0.5)
    values = critic(chain[..., None], None)[:, 1:]
    # With lambda 1 all weight is on the longest return.
    one_horizon = name == "n-step"
    truth = lambda_returns(rewards, masks, values, 1.0 if one_horizon else lam, gamma, window if blind else K)

    context = stand_in(model, reward, critic, literal_mve=name == "literal")
    batch = jax.tree.map(lambda x: jnp.repeat(x, repeats, axis=0), rows_from(chain[:, :2], masks[:, 0]))
    one = jax.jit(lambda: BACKUPS[how](context, batch, KEY).y)
    y = np.asarray(one(), np.float64).reshape(4, repeats)
    error, bound = np.abs(y.mean(1) - truth), 4 * y.std(1) / np.sqrt(repeats) + 1e-6
    if name == "literal":
        assert (error[:3] > 5 * bound[:3]).all()  # the reward that is counted twice shows
    else:
        assert (error < bound).all()
    assert bound.max() < 0.07


@pytest.mark.parametrize("cap", [1, 3, K])
def test_dtd_is_a_mixture_of_n_step_returns_of_the_stored_trajectory(cap):
    """Row by row on the raw data: (1 - lam) lam^(n-1) G_n, the rest on the last n."""
    state, gamma, lam = state_of("dtd"), 0.9, 0.8
    rewards, masks = np.asarray(DATA.rewards[0]), np.asarray(DATA.masks[0])
    q = np.asarray(state.targets.critic(DATA.observations, state.targets.actor(DATA.observations)).mean(0))
    y, ends = [], 0
    for row in np.asarray(ROWS):
        longest = min(cap, int(DATA.last[row]) - row)
        ends += longest < cap
        total = 0.0
        for n in range(1, longest + 1):
            g, alive = 0.0, 1.0
            for j in range(n):
                g += alive * gamma**j * rewards[row + j]
                alive *= masks[row + j]
            g += alive * gamma**n * q[row + n]
            total += g * (lam ** (n - 1) if n == longest else (1 - lam) * lam ** (n - 1))
        y.append(total)
    assert cap == 1 or ends > 3  # some windows are cut
    np.testing.assert_allclose(backup("dtd", batch_of("dtd"), cap=cap, target_noise=0.0).y, y, rtol=1e-4, atol=1e-5)


def test_dtd_draws_new_noise_for_every_horizon():
    seen = []
    context = stand_in(None, None, lambda s, a: seen.append(a) or s[..., 0])
    context = context._replace(hyper=replace(target_noise=0.1))
    windows = gather_windows(DATA, ROWS, K)
    dtd.backup(context, windows, KEY)
    noise = np.asarray(seen[0])[..., 0]
    assert noise.shape == (K, len(ROWS))
    assert np.unique(noise).size == noise.size


def test_mbtd_stops_where_the_imagined_task_ends():
    """Each step adds 1 and the task ends at 3, not beyond. R(s) = -s, Q(s) = 10 s, r = 0.5, lam = 0.8, gamma = 0.9."""
    context = stand_in(
        lambda noise, s, a, n: (s + 1, s[..., 0] + 1 == 3), lambda s, a: -s[..., 0], lambda s, a: 10 * s[..., 0]
    )
    batch = rows_from(jnp.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]), [1, 1, 0])
    y, flow, states, _ = mbtd.imagined_backup(context, batch, KEY, K)
    assert flow is not None
    assert states is not None
    # s' = 1 walks on to 2 and the end at 3, where it stays; the third row's s' is that end.
    np.testing.assert_array_equal(states[..., 0], [[2, 3, 3], [3, 3, 3], [3, 3, 3]])
    g_2 = -2.0  # the transition into the end: its reward, no value behind it
    g_1 = -1 + 0.9 * (0.2 * 20 + 0.8 * g_2)
    expected = [0.5 + 0.9 * (0.2 * 10 + 0.8 * g_1), 0.5 + 0.9 * (0.2 * 20 + 0.8 * g_2), 0.5]
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    # The model itself learns the real transition only.
    np.testing.assert_array_equal(flow.x1, [[1, 0], [1, 0], [1, 1]])
    # Without terminal handling it walks on.
    free = mbtd.imagined_backup(context._replace(hyper=replace(target_noise=0.0, terminal=False)), batch, KEY, K)
    np.testing.assert_array_equal(free.generated[..., 0], [[2, 3, 4], [3, 4, 5], [4, 5, 6]])  # type: ignore
    np.testing.assert_array_equal(free.flow.x1[:, 1], 0)  # type: ignore


@pytest.mark.parametrize("name", IMAGINING)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_behaviour_mixing(name, beta):
    """The imagined state is the action that led to it: stored ones are 5, the policy's 0.25; a_e is never mixed."""
    acted = []
    context = stand_in(
        lambda noise, s, a, n: (a, jnp.zeros(len(a), bool)),
        lambda s, a: jnp.zeros(s.shape[:-1]),
        lambda s, a: acted.append(a) or s[..., 0],
        lambda s: jnp.full((*s.shape[:-1], 1), 0.25),
        beta=beta,
    )
    batch = rows_from(jnp.zeros((2000, 2)), jnp.ones(2000), next_actions=5.0)
    generated: Any = BACKUPS[name](context, batch, KEY).generated
    # MBTD mixes at s' alone, its first imagined state.
    states = generated[0] if name == "mbtd" else generated
    imagined = np.asarray(states)[np.asarray(states) != 0]
    assert set(np.unique(imagined)) <= {0.25, 5.0}
    assert (imagined == 5.0).mean() == pytest.approx(beta, abs=4 * np.sqrt(beta * (1 - beta) / len(imagined)))
    if name == "mbtd":
        np.testing.assert_array_equal(generated[1:], 0.25)
    else:
        np.testing.assert_array_equal(acted[0], 0.25)


def test_target_actions_have_clipped_noise():
    context = stand_in(None, None, None, lambda s: jnp.full((*s.shape[:-1], 1), 0.8))
    states = jnp.zeros((4000, 1))
    act = lambda **hyper: np.asarray(context._replace(hyper=replace(**hyper)).act(KEY, states))  # noqa: E731
    noise = act(target_noise=0.05) - 0.8
    assert noise.std() == pytest.approx(0.05, rel=0.05)
    assert abs(noise.mean()) < 0.005
    wild = act(target_noise=5.0, target_noise_clip=0.5)
    assert wild.min() == pytest.approx(0.3)
    assert wild.max() == 1.0
    np.testing.assert_array_equal(act(target_noise=0.0), np.float32(0.8))


# ------------------------------------------------------------------------------------------------------------- losses


def linear(module: Any, *weights: Any) -> Any:
    """A net without hidden layers, with these weights (inputs in rows) and bias 0."""
    layer = lambda m: (m.ensemble if isinstance(m, nets.Critic) else m.mlp).layers[0].weight  # noqa: E731
    return eqx.tree_at(layer, module, jnp.asarray(weights, jnp.float32).reshape(layer(module).shape))


CRITIC = linear(nets.Critic(1, 2, KEY, ()), [1, 1, 0], [1, 0, 2])  # Q_1 = s + a_1, Q_2 = s + 2 a_2
HAND = Transitions(
    jnp.array([[1.0], [3.0]]),
    jnp.array([[0.5, 0.5], [-1.0, 0.0]]),
    jnp.array([1.0, -1.0]),
    jnp.ones(2),
    jnp.zeros((2, 1)),
    jnp.zeros((2, 2)),
)


def test_critic_loss_by_hand():
    """Q_1 = 1.5, 2; Q_2 = 2, 3; y = 1, 4: squared errors 0.25, 4, 1, 1."""
    loss, q = core.critic_loss(CRITIC, HAND, jnp.array([1.0, 4.0]))
    np.testing.assert_allclose(q, [[1.5, 2.0], [2.0, 3.0]])
    assert loss == pytest.approx(6.25 / 4)


@pytest.mark.parametrize(("agg", "q"), [("mean", [0.5, 1.5]), ("min", [0.0, 1.0])])
def test_actor_loss_by_hand(agg, q):
    """mu = tanh(b) = (-1/2, 0) everywhere, so Q_1 = s - 1/2 and Q_2 = s."""
    actor = linear(nets.Actor(1, 2, KEY, ()), 0, 0)
    bias = lambda b: eqx.tree_at(lambda m: m.mlp.layers[0].bias, actor, jnp.array([b, 0.0]))  # noqa: E731
    b = jnp.float32(np.arctanh(-0.5))
    # min: s - 1/2 = 0, 1 at s = 1/2, 3/2. mean: s - 1/4 = 1/2, 3/2 at s = 3/4, 7/4.
    states = {"min": [[0.5], [1.5]], "mean": [[0.75], [1.75]]}[agg]
    batch = HAND._replace(observations=jnp.array(states))
    # (1 + 1/4) and (1/4 + 0): summed over dimensions, averaged over rows.
    cloning = (1.25 + 0.25) / 2
    for normalise in (False, True):
        hyper = replace(alpha=2.0, normalise_q=normalise)
        loss, error = core.actor_loss(bias(b), CRITIC, hyper, batch, agg)
        scale = 1 / np.mean(q) if normalise else 1.0
        assert error == pytest.approx(cloning, rel=1e-6)
        assert loss == pytest.approx(2 * cloning - scale * np.mean(q), rel=1e-6)
        # dL/db = (2 alpha mean(mu - a) - c dQ/da) (1 - mu^2): with a gradient through c the second term would vanish.
        gradient = jax.grad(lambda b: core.actor_loss(bias(b), CRITIC, hyper, batch, agg)[0])(b)  # noqa: B023
        slope = 1.0 if agg == "min" else 0.5
        expected = (2 * 2.0 * np.mean([-1.0, 0.5]) - scale * slope) * 0.75
        assert gradient == pytest.approx(expected, rel=1e-5)


def test_reward_and_flow_loss_by_hand():
    """R = s, errors 0 and 4. The model's network says (x, tau, s, a) W, taken at x_tau = (1-tau) x_0 + tau x_1."""
    reward = linear(nets.RewardNet(1, 2, KEY, ()), 1, 0, 0)
    spec = spec_of(random_data(), 1)._replace(observation_size=1)
    model = HorizonModel(spec, KEY, hidden=(), embedding="none", flag_std=2.0)
    # v_state = x_state + tau, F = s + a_1
    kernel = jnp.array([[1, 0], [0, 0], [1, 0], [0, 1], [0, 1], [0, 0]], jnp.float32)
    model = eqx.tree_at(lambda m: m.field.mlp.layers[0].weight, model, kernel)
    x0, x1, tau = jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[3.0, 1.0], [4.0, 0.0]]), jnp.array([0.5, 0.25])
    # x_tau = (2, .5), (1, 1.5); v_state = 2.5, 1.25 and should be 2, 4. F = 1.5, 2 and should be
    # ((1 - tau) x_1 / 2 - 2 tau x_0) / sqrt(4 tau^2 + (1 - tau)^2): 0.25 / sqrt(1.25) and -1 / sqrt(0.8125).
    off = [1.5 - 0.25 / np.sqrt(1.25), 2 + 1 / np.sqrt(0.8125)]
    expected = np.mean([0.5**2, off[0] ** 2, 2.75**2, off[1] ** 2])
    backup = core.Backup(jnp.zeros(2), core.FlowTarget(jnp.ones(2, int), x0, x1))
    actor = nets.Actor(1, 2, KEY, ())
    params = Networks(CRITIC, actor, model, reward)
    total, metrics = core.losses(params, HYPER, HAND, backup, tau, jnp.bool_(True), "mean")
    assert metrics["reward_loss"] == pytest.approx(16 / 2)
    assert metrics["model_loss"] == pytest.approx(expected, rel=1e-5)
    heavy, _ = core.model_loss(model, replace(flag_weight=4.0), HAND, cast(Any, backup.flow), tau)
    assert heavy == pytest.approx(np.mean([0.5**2, 4 * off[0] ** 2, 2.75**2, 4 * off[1] ** 2]))
    # The first row ended; x_1's flag is guessed as .5 + .5 (1.5 / 1.25 * .5 + 2 / sqrt(1.25) * 1.5) > .5.
    assert metrics["flag_recall"] == 1.0
    parts = sum(float(metrics[f"{part}_loss"]) for part in ("critic", "actor", "reward", "model"))
    assert total == pytest.approx(parts, rel=1e-6)
    total, _ = core.losses(params, HYPER, HAND, backup, tau, jnp.bool_(False), "mean")
    assert total == pytest.approx(parts - float(metrics["actor_loss"]), rel=1e-6)


def test_every_loss_moves_its_own_network_alone():
    state, batch = state_of("uhm"), batch_of("uhm")
    result = backup("uhm", batch)
    tau = jnp.linspace(0.0, 1.0, len(ROWS))

    @jax.jit
    def slopes(params):
        metrics = lambda p: core.losses(p, HYPER, batch, result, tau, jnp.bool_(True), "mean")[1]  # noqa: E731
        return jax.tree.map(jnp.abs, jax.jacrev(lambda p: {k: v for k, v in metrics(p).items() if "loss" in k})(params))

    largest = lambda tree: max(float(leaf.max()) for leaf in jax.tree.leaves(tree))  # noqa: E731
    for loss, gradient in slopes(state.params).items():
        for network in Networks._fields:
            assert (largest(getattr(gradient, network)) > 0) == (loss == f"{network}_loss"), (loss, network)


def test_targets_carry_no_gradient():
    """y moves with the reward net and the slow networks, but the loss must not know."""
    state, batch = state_of("uhm"), batch_of("uhm")
    hyper = jax.tree.map(jnp.asarray, HYPER)

    @jax.jit
    def slopes(targets, reward):
        def loss(targets, reward):
            start = state._replace(targets=targets, params=state.params._replace(reward=reward))
            metrics = agent("uhm").update(start, hyper, batch, KEY)[1]
            return metrics["critic_loss"] + metrics["model_loss"]

        return jax.grad(loss, (0, 1))(targets, reward)

    assert not any(np.any(leaf) for leaf in jax.tree.leaves(slopes(state.targets, state.params.reward)))


# ------------------------------------------------------------------------------------------------------------ updates


@pytest.mark.parametrize("name", METHODS)
def test_an_update_is_one_step_of_adam_on_each_networks_own_loss(name):
    """And of each target, by `ema_rate` towards the network after its step. The first step of Adam is g / |g|."""
    state, batch = state_of(name), batch_of(name)
    hyper = replace(learning_rate=1e-2, ema_rate=0.1)
    key_backup, key_tau = jax.random.split(KEY)
    result = backup(name, batch, key_backup)
    first, flow = gather_transitions(DATA, ROWS), cast(Any, result.flow)
    tau = jax.random.uniform(key_tau, (len(ROWS),))

    @jax.jit
    def gradients(params):
        reward = lambda net: jnp.square(net(first.observations, first.actions) - first.rewards).mean()  # noqa: E731
        return Networks(
            jax.grad(lambda net: core.critic_loss(net, first, result.y)[0])(params.critic),
            jax.grad(lambda net: core.actor_loss(net, params.critic, hyper, first, "mean")[0])(params.actor),
            params.model and jax.grad(lambda net: core.model_loss(net, hyper, first, flow, tau)[0])(params.model),
            params.reward and jax.grad(reward)(params.reward),
        )

    new, metrics = jitted("update", name)(state, hyper, batch, KEY)
    # On the host from here: op by op, each shape would be compiled.
    g, old, new = jax.device_get((gradients(state.params), state, new))
    assert_trees(np.testing.assert_allclose, new.adam.mu, jax.tree.map(lambda x: 0.1 * x, g), rtol=1e-3, atol=1e-6)
    move = lambda p, m: p - 1e-2 * (m / 0.1) / (np.abs(m / 0.1) + 1e-8)  # noqa: E731
    step = jax.tree.map(move, old.params, new.adam.mu)
    assert_trees(np.testing.assert_allclose, new.params, step, rtol=1e-4, atol=1e-4)
    assert new.targets.reward is None
    slow = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, old.targets, new.params._replace(reward=None))
    assert_trees(np.testing.assert_allclose, new.targets, slow, rtol=1e-5, atol=1e-6)
    # Every network moved, but for the statistics of the data.
    for network in Networks._fields:
        before, after = (getattr(state.params, network) for state in (old, new))
        moved = jax.tree.map(lambda x, y: bool((x != y).any()), before, after)
        if network == "model" and moved is not None:
            assert not moved.mean
            assert not moved.std
            moved = moved.field
        assert all(jax.tree.leaves(moved)), network
    assert new.step == 1
    assert all(np.isfinite(value) for value in metrics.values())
    assert (metrics["lambda"], metrics["k_max"]) == (pytest.approx(0.8), K)


def test_the_actor_learns_every_second_step_only():
    update, state = jitted("update", "rebrac-dagger"), state_of("rebrac-dagger")
    hyper = replace(actor_period=2)
    for step in range(4):
        new, _ = update(state, hyper, batch_of("rebrac-dagger"), KEY)
        mean, before = (cast(Any, s.adam).mu for s in (new, state))
        decayed = jax.tree.map(lambda m: 0.9 * m, before.actor)
        # Adam's mean only decays where there is no gradient (and its momentum still moves the actor, as in FQL's code).
        learned = any(
            np.abs(a - b).max() > 1e-6 for a, b in zip(*map(jax.tree.leaves, (mean.actor, decayed)), strict=True)
        )
        assert learned == (step % 2 == 0)
        assert (
            np.abs(mean.critic.ensemble.layers[0].weight - 0.9 * before.critic.ensemble.layers[0].weight).max() > 1e-6
        )
        state = new


def test_losses_without_a_target_share_no_array_with_those_that_have_one():
    """Their copies are behind a barrier; else XLA makes what reads the same array in one kernel, and they wait."""
    mine = agent("uhm")
    state = jax.jit(mine.init)(jax.random.key(0), HYPER)
    given = (state, HYPER, gather_transitions(DATA, DATA.starts), jax.random.key(1))
    traced = jax.make_jaxpr(mine.update)(*given)
    leaves = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(given)]
    behind: set[str] = set()
    for equation in traced.eqns:
        if equation.primitive.name == "optimization_barrier":
            behind |= {leaves[traced.jaxpr.invars.index(v)] for v in equation.invars if v in traced.jaxpr.invars}
    for name in ("critic.ensemble", "reward.mlp"):
        assert f"[0].params.{name}.layers[0].weight" in behind
    assert {f"[2].{name}" for name in ("observations", "actions", "rewards")} <= behind


def test_bfloat16_gives_nearly_the_same_losses():
    options = {"float32": {}, "bfloat16": {"compute_dtype": "bfloat16"}}
    results = []
    for settings in options.values():
        state = jitted("init", "uhm", **settings)(jax.random.key(0), HYPER)
        results.append(jitted("update", "uhm", **settings)(state, HYPER, batch_of("uhm"), KEY))
    (full_state, full), (half_state, half) = results
    for name in ("critic_loss", "actor_loss", "reward_loss", "model_loss", "q_mean"):
        assert half[name] == pytest.approx(float(full[name]), rel=0.05, abs=0.02), name
    assert half["critic_loss"] != full["critic_loss"]
    assert {leaf.dtype for leaf in jax.tree.leaves(half_state._replace(rounded=[]))} == {
        leaf.dtype for leaf in jax.tree.leaves(full_state)
    }


def test_a_window_of_one_step_is_enough_for_mbtd():
    """A population with lambda_f = 0 alone asks for no imagined step, and must not be taken for diverged."""
    state = jitted("init", "mbtd", k_max=1)(jax.random.key(0), HYPER)
    _, metrics = jitted("update", "mbtd", k_max=1)(state, replace(lambda_f=0.0), batch_of("mbtd"), KEY)
    assert all(np.isfinite(value) for value in metrics.values()), metrics


def test_actions_are_deterministic_and_inside_the_box():
    state = state_of("rebrac-dagger")
    far = eqx.tree_at(lambda p: p.actor.mlp.layers[-1].bias, state.params, jnp.array([50.0, -50.0]))
    act = agent("rebrac-dagger").act
    for leading in ((), (4,), (2, 3)):
        observations = jnp.ones((*leading, S))
        one, two = (act(state, observations, jax.random.key(i)) for i in range(2))
        assert one.shape == (*leading, A)
        np.testing.assert_array_equal(one, two)
        # The network that learns acts, not its slow copy.
        np.testing.assert_array_equal(one, jnp.tanh(state.params.actor.mlp(observations)))
        edge = act(state._replace(params=far), observations, KEY)
        np.testing.assert_array_equal(edge, np.broadcast_to([1.0, -1.0], edge.shape))


def test_an_unknown_agent_is_refused_by_name():
    with pytest.raises(UhmError, match="uhm"):
        family("umh")
    assert [family(name).name for name in METHODS] == list(METHODS)


def test_the_unit_of_ghm_is_its_own():
    """Root mean square over the horizons up to UHM's cap at the member's lambda, ceil(ln 0.2 / ln(0.9 lambda)).

    Neither a q that GHM does not use nor members who look further, for whom there are more rows, change it.
    """
    data = random_data()
    for lam, cap in ((0.5, 3), (0.8, 5)):
        for rows, q in ((cap, 0.2), (cap + 3, 0.2), (cap + 3, 0.01)):
            spec = spec_of(data, rows)
            made = family("ghm").make(Config(hidden=(8,), batch_size=4), spec)
            model = made.init(KEY, replace(lambda_f=lam, discount=0.9, q=q)).params.model
            expected = np.sqrt(np.mean(np.square(spec.change_std[:cap]), 0))
            np.testing.assert_allclose(model.scale[0], expected, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------- known values


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_known_values_are_learned(name):
    """Rows at 0, 1, 2, 3 under three rewards; the task ends with the transition out of row 1, or at once.

    What is stored behind the end (rewards of -3) must not reach the values before it.
    """
    gamma, repeats = 0.9, 16
    positions = np.tile(np.arange(4, dtype=np.float32), repeats)
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (4 * repeats, 1)).astype(np.float32)
    rewards = np.array([[2, 2, 2, 2], [0, 1, -3, -3], [-1, -1, -3, -3]])
    masks = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    names = ("at once", "delayed", "costs")
    data = make_dataset(
        positions[:, None] - 1, actions, positions == 3, np.tile(rewards, repeats), np.tile(masks, repeats), names
    )
    probe = family(name).make(Config(hidden=(32,), batch_size=32, flow_steps=1), spec_of(data, K))
    hyper = replace(lambda_f=0.6, q=0.1, learning_rate=1e-2, ema_rate=0.02)
    pop, _ = train(probe, population.grid(names, [0], {}), hyper, data, 500, 500)
    assert pop.alive.all()
    at = jnp.asarray(positions[:2, None] - 1), jnp.zeros((2, 1))
    q = jax.vmap(lambda critic: critic(*at).mean(0))(pop.state.targets.critic)
    exact = [[2, 2], [gamma, 1], [-1 - gamma, -1]]
    np.testing.assert_allclose(q, exact, atol=0.2)
    np.testing.assert_allclose(
        expected_values(probe, pop, at[0]), exact, atol=0.6
    )  # the policy seeks the critic's errors


@pytest.mark.parametrize("name", FAMILIES)
def test_hyperparameters_that_change_nothing_are_known(name):
    """Those on which no number of the next state depends, by the program itself."""
    made = make(name, bench.Setting(hidden=(8,), batch_size=4, observation=3, action=2, k_max=2))
    data, key = made.data.to_device().with_task(0), jax.random.key(0)
    values, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, made.hyper))

    def step(values, state, batch, key):
        return made.agent.update(state, jax.tree.unflatten(structure, values), batch, key)[0]

    state, batch = jax.eval_shape(made.agent.init, key, made.hyper), made.agent.sample(data, key)
    program = jax.make_jaxpr(step)(values, state, batch, key).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    names = [field.name for field in dataclasses.fields(family(name).Hyper)]
    unused = {field for field, is_used in zip(names, used, strict=False) if not is_used}
    assert unused - {"steps"} == set(family(name).idle)  # the number of steps is of every run
