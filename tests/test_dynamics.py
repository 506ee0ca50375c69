"""The ensemble dynamics: likelihood, bounds and sampling against arithmetic by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import random_data
from uhm.agents import spec_of
from uhm.agents.dynamics import Dynamics, scaling

KEY = jax.random.key(0)
LOG_TWO_PI = np.log(2 * np.pi)


def linear(changes, raws):
    """Models without hidden layers of one-dimensional states: the change is `change` * a, the second output `raw`."""
    model = Dynamics(1, 1, KEY, (), members=len(changes))
    weight = jnp.zeros((len(changes), 2, 2)).at[:, 1, 0].set(jnp.array(changes))
    bias = jnp.zeros((len(changes), 2)).at[:, 1].set(jnp.array(raws))
    return eqx.tree_at(lambda m: (m.ensemble.layers[0].weight, m.ensemble.layers[0].bias), model, (weight, bias))


def test_likelihood_by_hand():
    """s = 1, a = 2, s' = 3. The first predicts 3 with log sigma = 0, the second 1 with log sigma = -2."""
    model = linear([1.0, 0.0], [np.log(5.0), 0.0])  # -5 + 6 * 5/6 and -5 + 6 * 1/2
    s, a, s_next = jnp.array([[1.0]]), jnp.array([[2.0]]), jnp.array([[3.0]])
    mean, log_std = model(s, a)
    np.testing.assert_allclose(mean[:, 0, 0], [3.0, 1.0])
    np.testing.assert_allclose(log_std[:, 0, 0], [0.0, -2.0], atol=1e-6)
    first, second = 0.5 * LOG_TWO_PI, 0.5 * (2 / np.exp(-2.0)) ** 2 - 2 + 0.5 * LOG_TWO_PI
    assert model.loss(s, a, s_next) == pytest.approx((first + second) / 2, rel=1e-5)


def test_the_log_likelihood_is_summed_over_dimensions_and_averaged_over_members_and_rows():
    model = Dynamics(3, 2, KEY, (8,), members=4)
    s, a, s_next = (jax.random.normal(jax.random.key(i), (5, n)) for i, n in ((1, 3), (2, 2), (3, 3)))
    mean, log_std = model(s, a)
    assert mean.shape == (4, 5, 3)
    expected = jax.scipy.stats.norm.logpdf(s_next, mean, jnp.exp(log_std)).sum(-1)
    assert model.loss(s, a, s_next) == pytest.approx(-float(expected.mean()), rel=1e-5)


def test_standard_deviations_stay_in_their_bounds():
    model = linear([0.0, 0.0], [1e4, -1e4])
    s = jnp.ones((1, 1))
    _, log_std = model(s, s)
    np.testing.assert_allclose(log_std[:, 0, 0], [1.0, -5.0])
    gradient = jax.grad(lambda m: m.loss(s, s, 1e3 * s))(model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_every_row_draws_its_own_member():
    """Three models that go to 1, 2 and 3 with sigma = e^-5."""
    model, rows = linear([1.0, 2.0, 3.0], [-1e4] * 3), 6000
    s_next = np.asarray(model.sample(KEY, jnp.zeros((2, rows, 1)), jnp.ones((2, rows, 1))))[..., 0]
    who = np.round(s_next)
    for one in who:
        np.testing.assert_allclose([(one == i).mean() for i in (1, 2, 3)], 1 / 3, atol=0.03)
    assert (who[0] != who[1]).mean() == pytest.approx(2 / 3, abs=0.03)
    assert (s_next - who).std() == pytest.approx(np.exp(-5), rel=0.05)


def test_members_differ_and_states_are_scaled_to_the_data():
    model = Dynamics(3, 2, KEY, (8,))
    assert len(np.unique(np.asarray(model.ensemble.layers[0].weight).reshape(7, -1), axis=0)) == 7
    data = random_data()
    spec = spec_of(data, 1)
    scaled = np.asarray(scaling(spec)(jnp.asarray(data.observations)))
    half = (data.observations.max(0) - data.observations.min(0)) / 2
    np.testing.assert_allclose(scaled.max(0), half / (half + 1e-3), rtol=1e-5)
    np.testing.assert_allclose(scaled.min(0), -half / (half + 1e-3), rtol=1e-5)
    # A dimension that never changes is 0, not a division by 0.
    still = spec._replace(observation_low=np.ones(3, np.float32), observation_high=np.ones(3, np.float32))
    np.testing.assert_array_equal(scaling(still)(jnp.ones(3)), 0.0)
