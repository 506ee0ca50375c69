"""MOBILE: its penalty by hand and by Monte Carlo; all else is MOPO, to the last bit."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import S, assert_trees, random_data
from uhm import nets
from uhm.agents import family, mobile, mopo, spec_of

KEY = jax.random.key(5)
MODELS, SAMPLES = 7, 5


def penalty(mean, log_std, seen=None):
    """u for models that predict `mean` [E, B], a policy that does s / 2, and critics s + a - 1 and s + a + 1."""
    deviation = jnp.full((*mean.shape, 1), log_std)

    def sample(key, s):
        if seen is not None:
            seen.append(s.shape)
        return s / 2, s[..., 0]

    actor = SimpleNamespace(sample=sample)
    params = mopo.Networks(lambda s, a: (mean[..., None], deviation), None, None, None, actor, None)  # type: ignore
    critic = nets.Critic(1, 1, KEY, ())
    layer = lambda c: (c.ensemble.layers[0].weight, c.ensemble.layers[0].bias)  # noqa: E731
    critic = eqx.tree_at(layer, critic, (jnp.ones((2, 2, 1)), jnp.array([[-1.0], [1.0]])))
    rows = jnp.zeros((mean.shape[1], 1))
    return mobile.disagreement(params, critic, rows, rows, KEY, SAMPLES)


def test_seven_models_that_are_sure():
    """Q = 3/2 s' on average over critics, so u is 3/2 of the population standard deviation of the predictions."""
    mean = jnp.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [6.0, 1.0], [8.0, 1.0], [10.0, 1.0], [12.0, 8.0]])
    # 0, 2, .. 12 have variance 16; six times 1 and once 8 have mean 2 and variance (6 + 36) / 7 = 6.
    np.testing.assert_allclose(penalty(mean, -40.0), [1.5 * 4, 1.5 * np.sqrt(6)], rtol=1e-5)


def test_seven_by_five_samples_are_averaged_before_models_are_compared():
    """Models that agree on N(0, 1): the mean of 5 has variance 1/5, and E[u^2] = (9/4) (6/7) / 5 for 7 models."""
    seen, rows = [], 20_000
    u = np.asarray(penalty(jnp.zeros((MODELS, rows)), 0.0, seen))
    assert seen == [(MODELS, rows, 1)]  # traced once for all samples
    assert u.shape == (rows,)
    assert np.square(u).mean() == pytest.approx(9 / 4 * 6 / 7 / 5, rel=0.02)


def test_without_a_penalty_it_is_mopo():
    spec, data = spec_of(random_data(), 1), random_data().to_device()
    sizes: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "ensemble": 2, "rollout_length": 2, "rollouts": 2}
    sizes["rollout_age"] = 3
    both = [mopo.make(mopo.Config(**sizes), spec), mobile.make(mobile.Config(**sizes, penalty_samples=2), spec)]
    updates, batch = [jax.jit(agent.update) for agent in both], both[0].sample(data, KEY)
    state = jax.jit(both[0].init)(KEY, mopo.Hyper())
    for weight, same in ((0.0, True), (1.0, False)):
        one, other = (update(state, mopo.Hyper(penalty=weight), batch, KEY) for update in updates)
        assert one[1].keys() == other[1].keys()
        assert np.isclose(one[1]["critic_loss"], other[1]["critic_loss"], rtol=1e-5) == same
        assert other[1]["penalty_mean"] > 0
        if same:
            # Two programs, whose last bits are the compiler's.
            assert_trees(np.testing.assert_allclose, one[0], other[0], rtol=1e-5, atol=1e-6)
    assert both[1].act(state, jnp.ones((4, S)), KEY).shape == (4, 2)


def test_its_own_setting():
    mine, mopos = (set(family(name).Config.__dataclass_fields__) for name in ("mobile", "mopo"))
    assert mine - mopos == {"penalty_samples"}
    assert mopos <= mine
    assert family("mobile").Hyper is mopo.Hyper
