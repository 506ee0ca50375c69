"""The model's shapes and codes, and that what it learns by bootstrapping on itself are the true n-step futures."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import A, K, S, random_data, train
from uhm import flow, population
from uhm.agents import family, spec_of
from uhm.agents.core import Config, FlowTarget, Hyper, model_loss
from uhm.agents.horizon_model import HorizonModel
from uhm.data.dataset import make_dataset

SPEC = spec_of(random_data(), K)._replace(
    observation_mean=np.array([1.0, -2.0, 0.0], np.float32), observation_std=np.array([2.0, 0.5, 10.0], np.float32)
)
KEY = jax.random.key(0)
FLAG_STD = SPEC.flag_std


def make(**options: Any) -> HorizonModel:
    return jax.jit(lambda key: HorizonModel(SPEC, key, hidden=(8,), steps=2, **options))(KEY)


@pytest.mark.parametrize("embedding", ["sincos", "scalar", "onehot", "none"])
def test_samples_have_any_leading_axes_and_any_horizon(embedding):
    model = make(embedding=embedding)
    sample = eqx.filter_jit(lambda s, a, n: model.sample(KEY, s, a, n))
    s, a = jnp.ones((2, 3, S)), jnp.ones((2, 3, A))
    state, ended = sample(s, a, jnp.arange(1, 7).reshape(2, 3))
    assert state.shape == s.shape
    assert ended.shape == (2, 3)
    assert ended.dtype == bool
    single, flag = sample(s[0, 0], a[0, 0], 2)  # one state, and one horizon for all
    assert single.shape == (S,)
    assert flag.shape == ()
    # The horizon is an input of every model that is told it.
    same_noise = eqx.filter_jit(lambda n: model.generate(jnp.zeros((2, S + 1)), s[0, :2], a[0, :2], n))
    one, two = same_noise(jnp.array([1, 2]))[0]
    assert np.array_equal(one, two) == (embedding == "none")


class Straight(eqx.Module):
    """A field that says what makes the flow go straight from x0 to x1; of the flag, `off` too much."""

    x0: jax.Array
    x1: jax.Array
    flag_std: float = FLAG_STD
    off: float = 0.0

    def condition(self, s, a, n):
        return s

    def __call__(self, x, tau, c):
        root = jnp.sqrt(tau**2 * self.flag_std**2 + (1 - tau) ** 2)
        flag = ((1 - tau) * self.x1[..., -1] / self.flag_std - tau * self.flag_std * self.x0[..., -1]) / root
        return (self.x1 - self.x0).at[..., -1].set(flag + self.off)


class Says(eqx.Module):
    """A field that says a function of what it is shown."""

    what: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def condition(self, s, a, n):
        return s

    def __call__(self, x, tau, c):
        return self.what(x)


def with_field(field: Any, **options: Any) -> Any:
    return eqx.tree_at(lambda model: model.field, make(**options), field)


class Rows(NamedTuple):
    """The part of a batch that the model's loss looks at."""

    observations: jax.Array
    actions: jax.Array


CHANGES = np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 5.0]], np.float32)  # after one step, and after two or more


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
def test_what_is_encoded_is_decoded_again(delta, standardise):
    model = make(delta=delta, standardise=standardise)
    s, s_n = jnp.array([3.0, -1.0, 4.0]), jnp.array([5.0, -1.5, -16.0])
    mean, std = (SPEC.observation_mean, SPEC.observation_std) if standardise else (0.0, 1.0)
    for ended in (False, True):
        x = model.encode(s, s_n, jnp.bool_(ended), jnp.int32(1))
        np.testing.assert_allclose(x[:-1], (s_n - (s if delta else mean)) / std, rtol=1e-6)
        assert x[-1] == ended
        # A flow that ends in x, begun at any noise.
        noise = jax.random.normal(KEY, (S + 1,))
        straight = with_field(Straight(noise, x), delta=delta, standardise=standardise)
        state, flag = straight.generate(noise, s, jnp.zeros(A), jnp.int32(1))
        np.testing.assert_allclose(state, s_n, rtol=1e-4, atol=1e-4)
        assert flag == ended


@pytest.mark.parametrize("flag_std", [0.05, 1.0])
def test_a_flag_of_which_nothing_is_known_goes_from_noise_to_its_own_spread(flag_std):
    model = with_field(Says(jnp.zeros_like), flag_std=flag_std)
    s, tau = jnp.zeros(S), jnp.linspace(0.0, 1.0, 2001)
    # x = sqrt(D) x_0 solves the ODE for F = 0: its slope is the velocity there.
    x = jnp.zeros((len(tau), S + 1)).at[:, -1].set(jnp.sqrt((tau * flag_std) ** 2 + (1 - tau) ** 2))
    velocity = jax.vmap(lambda x, tau: model.velocity(x, tau, s, jnp.zeros(A), jnp.int32(1)))(x, tau)
    np.testing.assert_allclose(velocity[1:-1, -1], np.gradient(x[:, -1], tau[1])[1:-1], atol=2e-3)
    noise = jnp.zeros(S + 1).at[-1].set(4.0)
    _, ended = model.generate(noise, s, jnp.zeros(A), jnp.int32(1))
    assert ended == (flag_std == 1.0)


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("flag_std", [0.05, 0.5])
def test_what_the_network_says_of_the_flag_and_its_loss(tau, flag_std):
    """If it says F of (x_0, x_1) the velocity is x_1 - x_0; if it is wrong by e the loss is e^2, at every tau alike."""
    x0, x1, taus = jnp.array([[1.0, 0.0, 2.0, -0.7]]), jnp.array([[2.0, 4.0, 0.0, 1.0]]), jnp.array([tau])
    batch = Rows(jnp.zeros((1, S)), jnp.zeros((1, A)))
    target = FlowTarget(jnp.ones(1, jnp.int32), x0, x1)
    for off in (0.0, 0.5):
        model = with_field(Straight(x0, x1, flag_std, off), flag_std=flag_std)
        velocity = model.velocity(flow.path(x0, x1, taus), taus, *batch, target.n)
        expected = 1.7 + off * flag_std / np.sqrt(tau**2 * flag_std**2 + (1 - tau) ** 2)
        np.testing.assert_allclose(velocity, [[1.0, 4.0, -2.0, expected]], rtol=1e-4)
        for weight in (1.0, 3.0):
            loss, _ = model_loss(model, Hyper(flag_weight=weight), batch, target, taus)
            assert loss == pytest.approx(weight * off**2 / (S + 1), abs=1e-5)


def test_the_network_sees_the_flag_with_a_spread_of_one():
    model = with_field(Says(lambda x: x), flag_std=0.5)
    x, tau = jnp.array([1.0, 2.0, 3.0, 2.0]), jnp.float32(0.6)
    found = model.velocity(x, tau, jnp.zeros(S), jnp.zeros(A), jnp.int32(1))
    # D = 0.36 / 4 + 0.16 = 0.25; the skip is (0.15 - 0.4) / 0.25 = -1; it sees 2 / 0.5 = 4 and says so, in units of 1.
    np.testing.assert_allclose(found, [1.0, 2.0, 3.0, -2.0 + 4.0], rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_changes_are_measured_in_units_of_their_horizon(n):
    model = make(changes=CHANGES)
    s, s_n = jnp.array([3.0, -1.0, 4.0]), jnp.array([5.0, -1.5, -16.0])
    x = model.encode(s, s_n, jnp.bool_(True), jnp.int32(n))
    np.testing.assert_allclose(x, [2.0, -0.25, -5.0, 1.0] if n == 1 else [1.0, -0.125, -4.0, 1.0])
    noise = jax.random.normal(KEY, (S + 1,))
    for end, flag in ((1.0, True), (0.51, True), (0.49, False)):
        state, ended = with_field(Straight(noise, x.at[-1].set(end)), changes=CHANGES).generate(
            noise, s, jnp.zeros(A), jnp.int32(n)
        )
        np.testing.assert_allclose(state, s_n, rtol=1e-4, atol=1e-4)
        assert ended == flag


def test_spread_of_changes_is_taken_within_trajectories():
    """Two trajectories, 0 1 3 and 10 10 16: changes of one step are 1, 2, 0, 6 and of two steps 3, 6."""
    rows = np.array([0, 1, 3, 10, 10, 16], np.float32)[:, None]
    zeros = np.zeros((1, 6))
    data = make_dataset(rows, rows, np.array([0, 0, 1, 0, 0, 1]), zeros, zeros == 0, ("walk",))
    spread = spec_of(data, 4).change_std
    one_step = float(np.std([1, 2, 0, 6]))
    np.testing.assert_allclose(spread[:, 0], [one_step, 1.5, 1.5, 1.5], rtol=1e-6)  # none is longer


@pytest.mark.parametrize(("name", "rows"), [("uhm", [0, 1]), ("mbtd", [0]), ("ghm", None)])
def test_models_get_the_units_of_the_horizons_that_they_predict(name, rows):
    spec = SPEC._replace(k_max=2, change_std=CHANGES, observation_std=np.array([1.0, 25.0, 1.0], np.float32))
    kind = family(name)
    agent = kind.make(kind.Config(hidden=(8,), predict="scaled"), spec)
    scale = jax.jit(agent.init)(KEY, kind.Hyper()).params.model.scale
    floored = np.maximum(CHANGES, [0.1, 2.5, 0.1])  # a change is never measured by less than a tenth of all there is
    pooled = np.sqrt((CHANGES[:1] ** 2 + CHANGES[1:] ** 2) / 2)
    np.testing.assert_allclose(scale, floored[rows] if rows else np.maximum(pooled, [0.1, 2.5, 0.1]), rtol=1e-6)


def test_the_field_sees_scaled_states_and_statistics_get_no_gradient():
    model = make(standardise=True)
    s, a, n, tau = jnp.array([[3.0, -1.0, 4.0]]), jnp.ones((1, A)), jnp.ones(1, int), jnp.array([0.3])
    x = jnp.ones((1, S + 1)).at[:, -1].set(0.0)  # the flag has its own scale
    scaled = (s - SPEC.observation_mean) / SPEC.observation_std
    found, expected = model.velocity(x, tau, s, a, n), model.field.velocity(x, tau, scaled, a, n)
    np.testing.assert_allclose(found[:, :-1], expected[:, :-1], rtol=1e-6)

    @jax.jit
    def slope(model):
        def loss(model):
            state, _ = model.generate(x, s, a, n)
            code = model.encode(s, state, jnp.array([True]), n)
            return jnp.square(code).sum() + model.velocity(x, tau, s, a, n).sum()

        return jax.grad(loss)(model)

    gradient = slope(model)
    assert not gradient.mean.any()
    assert not gradient.std.any()
    assert not gradient.scale.any()
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient.field))


@pytest.mark.slow
def test_n_step_futures_of_a_random_walk_are_learned_by_bootstrapping():
    """s' = s + a + noise. Stored actions are 0.3 on average, and heavy cloning makes that the policy.

    From (s, a) the state n steps ahead is then s + a + 0.3 (n - 1), with a spread of sqrt(n) times the noise's.
    """
    rng, transitions, spread = np.random.default_rng(0), 4000, 0.2
    s = rng.uniform(-2, 2, transitions)
    a = 0.3 + rng.uniform(-0.6, 0.6, transitions)
    rows = np.stack([s, s + a + spread * rng.normal(size=transitions)], 1).reshape(-1, 1).astype(np.float32)
    actions = np.stack([a, a], 1).reshape(-1, 1).astype(np.float32)
    zeros = np.zeros((1, len(rows)))
    data = make_dataset(rows, actions, np.arange(len(rows)) % 2 == 1, zeros, zeros == 0, ("walk",))
    config = Config(hidden=(32,), batch_size=128, flow_steps=2)
    # The cap at lambda 0.8 is 5; without mixing and noise the policy is exactly what the actor says.
    hyper = Hyper(
        alpha=100.0, discount=0.9, schedule=False, beta=0.0, target_noise=0.0, learning_rate=5e-3, ema_rate=0.02
    )
    agent = family("uhm").make(config, spec_of(data, 5))
    pop, history = train(agent, population.grid(["walk"], [0], {}), hyper, data, 1000, 1000)
    assert history[-1]["k_max"] == 5
    model: HorizonModel = jax.tree.map(lambda x: x[0], pop.state.targets.model)

    @jax.jit
    def futures(s, a, n):
        count = 4000
        column = lambda x: jnp.full((count, 1), x)  # noqa: E731
        return model.sample(KEY, column(s), column(a), jnp.full(count, n))

    for start, action in ((-1.0, 0.3), (0.5, -0.2)):
        for n in (1, 2, 4):
            states, ended = futures(start, action, n)
            assert states.mean() == pytest.approx(start + action + 0.3 * (n - 1), abs=0.06), (start, action, n)
            assert states.std() == pytest.approx(spread * np.sqrt(n), rel=0.2), (start, action, n)
            assert ended.mean() < 0.02
