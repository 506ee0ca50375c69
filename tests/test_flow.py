import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from uhm.errors import UhmError
from uhm.flow import matching_loss, path, solve
from uhm.nets import VectorField


def growth(x, tau):
    return x


@pytest.mark.parametrize(("method", "evaluations"), [("euler", 1), ("midpoint", 2)])
@pytest.mark.parametrize("unroll", [True, 1])
def test_evaluations_per_step(method, evaluations, unroll):
    calls = []

    def counted(x, tau):
        jax.debug.callback(lambda t: calls.append(float(t)), tau, ordered=True)
        return x

    solve(counted, jnp.ones((3, 2)), 5, method, unroll)
    jax.effects_barrier()
    np.testing.assert_allclose(calls, np.arange(5 * evaluations) / (5 * evaluations), atol=1e-6)


def test_steps_by_hand():
    """One step of y' = y + tau from 1. Euler: 1 + 1. Midpoint: the slope at (1.5, 1/2) is 2, so 3."""

    def slope(x, tau):
        return x + tau

    assert solve(slope, jnp.ones(1), 1, "euler").item() == 2
    assert solve(slope, jnp.ones(1), 1, "midpoint").item() == 3


@pytest.mark.parametrize(("method", "ratio"), [("euler", 2), ("midpoint", 4)])
def test_order(method, ratio):
    with jax.enable_x64(True):
        errors = [abs(solve(growth, jnp.ones(1), n, method).item() - np.e) for n in (20, 40, 80)]
    assert errors[0] / errors[1] == pytest.approx(ratio, rel=0.06)
    assert errors[1] / errors[2] == pytest.approx(ratio, rel=0.04)


def test_unroll_and_leading_axes_do_not_matter():
    x0 = jax.random.normal(jax.random.key(0), (2, 3, 4))
    expected = solve(growth, x0)
    np.testing.assert_allclose(solve(growth, x0, unroll=1), expected, rtol=1e-6)
    np.testing.assert_allclose(solve(growth, x0[1, 2]), expected[1, 2], rtol=1e-6)
    np.testing.assert_allclose(expected, x0 * (1 + 0.2 + 0.02) ** 5, rtol=1e-5)


def test_unknown_method():
    with pytest.raises(UhmError, match="Did you mean midpoint"):
        solve(growth, jnp.ones(2), 5, "midpont")


def test_path_and_loss_by_hand():
    x0, x1, tau = jnp.array([[0.0, 4.0], [1.0, 1.0]]), jnp.array([[8.0, 0.0], [1.0, 3.0]]), jnp.array([0.25, 1.0])
    np.testing.assert_allclose(path(x0, x1, tau), [[2.0, 3.0], [1.0, 3.0]])
    # Errors x_tau - (x1 - x0): (2-8, 3+4) and (1-0, 3-2); the mean of squares over two dimensions.
    np.testing.assert_allclose(matching_loss(growth, x0, x1, tau), [(36 + 49) / 2, 1.0])
    exact = matching_loss(lambda x, t: x1 - x0, x0, x1, tau)
    np.testing.assert_array_equal(exact, [0.0, 0.0])


def mixture(key: jax.Array, count: int) -> jax.Array:
    """Three narrow Gaussians at the corners of a triangle."""
    key_which, key_noise = jax.random.split(key)
    centres = jnp.array([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    which = jax.random.choice(key_which, 3, (count,), p=jnp.array([0.5, 0.25, 0.25]))
    return centres[which] + 0.2 * jax.random.normal(key_noise, (count, 2))


def energy_distance(x: jax.Array, y: jax.Array) -> float:
    def mean_distance(a, b):
        return jnp.linalg.norm(a[:, None] - b[None], axis=-1).mean()

    return float(2 * mean_distance(x, y) - mean_distance(x, x) - mean_distance(y, y))


def test_a_small_model_learns_a_mixture():
    key_net, key_train, key_noise, key_truth, key_again = jax.random.split(jax.random.key(0), 5)
    field = VectorField(2, 0, 0, key_net, (64, 64, 64), "none", layer_norm=False)
    optimiser = optax.adam(optax.cosine_decay_schedule(5e-3, 1000))
    nothing = jnp.zeros((256, 0))

    def step(carry, key):
        field, opt = carry
        key_x0, key_x1, key_tau = jax.random.split(key, 3)
        x0, x1 = jax.random.normal(key_x0, (256, 2)), mixture(key_x1, 256)
        tau = jax.random.uniform(key_tau, (256,))

        def loss(field):
            condition = field.condition(nothing)
            return matching_loss(lambda x, t: field(x, t, condition), x0, x1, tau).mean()

        updates, opt = optimiser.update(jax.grad(loss)(field), opt)
        return (optax.apply_updates(field, updates), opt), None

    @jax.jit
    def train(field):
        return jax.lax.scan(step, (field, optimiser.init(field)), jax.random.split(key_train, 1000))[0][0]

    @jax.jit
    def samples(field):
        condition = field.condition(jnp.zeros((2000, 0)))
        return solve(lambda x, t: field(x, t, condition), jax.random.normal(key_noise, (2000, 2)))

    truth, again = mixture(key_truth, 2000), mixture(key_again, 2000)
    untrained, trained = (energy_distance(samples(f), truth) for f in (field, train(field)))
    floor = energy_distance(again, truth)
    print(f"energy distance: untrained {untrained:.4f}, trained {trained:.4f}, two true samples {floor:.4f}")
    assert trained < 0.015 < untrained / 10
