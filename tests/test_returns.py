import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm.horizons import WinsorizedGeometric
from uhm.returns import lambda_returns, n_step_return

ROWS, K = 7, 6
one_jit = jax.jit(lambda_returns)


def window(seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Random rewards, masks of ones, values."""
    rng = np.random.default_rng(seed)
    rewards, values = (jnp.asarray(rng.normal(size=(ROWS, K)), jnp.float32) for _ in range(2))
    return rewards, jnp.ones((ROWS, K)), values


def test_by_hand():
    """gamma = 1/2, lam = 1/2: y = r_0 + 1/2 [1/2 q_1 + 1/2 (r_1 + 1/2 [1/2 q_2 + 1/2 (r_2 + 1/2 q_3)])]."""
    rewards, masks, values = jnp.array([1.0, 2.0, 4.0]), jnp.ones(3), jnp.array([8.0, 16.0, 32.0])
    # Backwards: G_2 = 4 + 16 = 20; G_1 = 2 + 1/2 (8 + 10) = 11; y = 1 + 1/2 (4 + 5.5) = 5.75.
    assert lambda_returns(rewards, masks, values, 0.5, 0.5, 3) == 5.75
    # Capped at 2: G_1 = 2 + 8 = 10; y = 1 + 1/2 (4 + 5) = 5.5.
    assert lambda_returns(rewards, masks, values, 0.5, 0.5, 2) == 5.5
    # The task ends with transition 1: G_1 = 2; y = 1 + 1/2 (4 + 1) = 3.5.
    assert lambda_returns(rewards, jnp.array([1.0, 0.0, 1.0]), values, 0.5, 0.5, 3) == 3.5
    # Three steps of reward, then the last value: 1 + 1 + 1 + 32/8.
    assert n_step_return(rewards, masks, values, 0.5, 3) == 7
    assert n_step_return(rewards, masks, values, 0.5, 2) == 6
    assert n_step_return(rewards, jnp.array([1.0, 0.0, 1.0]), values, 0.5, 3) == 2


@pytest.mark.parametrize("cap", [1, 2, 4, K])
@pytest.mark.parametrize("lam", [0.0, 0.6, 0.95])
def test_the_recursion_is_the_sum_over_the_winsorized_measure(lam, cap):
    rewards, masks, values = window()
    measure, k = WinsorizedGeometric(lam, 0.9, cap), jnp.arange(1, K + 1)
    # R(s_k) is the reward of transition k, q_k the value at its state; xi is 0 at K, where no reward is stored.
    future = (measure.xi(k)[:-1] * rewards[:, 1:]).sum(-1) + (measure.nu(k) * values).sum(-1)
    assert measure.xi(K) == 0
    y = one_jit(rewards, masks, values, lam, 0.9, cap)
    np.testing.assert_allclose(y, rewards[:, 0] + 0.9 * future, rtol=1e-5, atol=1e-5)


def test_one_step_td_at_lambda_zero_and_at_cap_one():
    rewards, masks, values = window()
    masks = masks.at[3, 0].set(0.0)
    td = rewards[:, 0] + 0.9 * masks[:, 0] * values[:, 0]
    np.testing.assert_allclose(one_jit(rewards, masks, values, 0.0, 0.9, K), td, rtol=1e-6)
    np.testing.assert_allclose(one_jit(rewards, masks, values, 0.8, 0.9, 1), td, rtol=1e-6)
    np.testing.assert_allclose(n_step_return(rewards, masks, values, 0.9, 1), td, rtol=1e-6)
    assert np.abs(one_jit(rewards, masks, values, 0.8, 0.9, 2) - td).max() > 0.1


def test_nothing_counts_after_the_task_ends():
    rewards, masks, values = window()
    masks = masks.at[:, 2].set(0.0)  # transition 2 ends the task; its own reward counts
    y = one_jit(rewards, masks, values, 0.8, 0.9, K)
    later = one_jit(rewards.at[:, 3:].add(100.0), masks, values.at[:, 2:].add(100.0), 0.8, 0.9, K)
    np.testing.assert_array_equal(y, later)
    n_step = n_step_return(rewards.at[:, 3:].add(100.0), masks, values.at[:, 2:].add(100.0), 0.9, K)
    np.testing.assert_array_equal(n_step, n_step_return(rewards, masks, values, 0.9, K))
    assert (one_jit(rewards.at[:, 2].add(100.0), masks, values, 0.8, 0.9, K) > y + 1).all()
    np.testing.assert_array_equal(one_jit(rewards, masks * 0, values, 0.8, 0.9, K), rewards[:, 0])


def test_a_trajectory_that_ends_is_cut_and_bootstraps():
    rewards, masks, values = window()
    length = jnp.array([1, 2, 3, 4, 5, 6, 6])
    y = one_jit(rewards, masks, values, 0.8, 0.9, 5, length)
    for row, steps in ((0, 1), (2, 3), (4, 5), (6, 6)):
        cut = lambda_returns(rewards[row, :steps], masks[row, :steps], values[row, :steps], 0.8, 0.9, min(5, steps))
        np.testing.assert_allclose(y[row], cut, rtol=1e-5)
    # What lies behind the end, another trajectory or padding, is not read, not even a NaN.
    behind = jnp.arange(K) >= jnp.minimum(length, 5)[:, None]
    spoiled = (jnp.where(behind, jnp.nan, x) for x in (rewards, masks, values))
    np.testing.assert_array_equal(one_jit(*spoiled, 0.8, 0.9, 5, length), y)
    # and the value at the end is: the target is truncated, not terminated.
    end = jnp.arange(K) == jnp.minimum(length, 5)[:, None] - 1
    assert (one_jit(rewards, masks, values + 100.0 * end, 0.8, 0.9, 5, length) > y + 1).all()


def test_imagined_steps_need_no_masks_when_rewards_and_values_are_zero_after_the_end():
    """MBTD zeroes R and q behind a predicted termination; that equals masks on the unzeroed ones."""
    rewards, masks, values = window()
    ended = masks.at[:4, 1].set(0.0)  # rows 0..3 end with transition 1
    alive = jnp.cumprod(ended, axis=-1)  # 1 while the state after transition j is not terminal
    before = jnp.concatenate([jnp.ones((ROWS, 1)), alive[:, :-1]], axis=-1)
    imagined = one_jit(rewards * before, masks, values * alive, 0.8, 0.9, K)
    np.testing.assert_allclose(imagined, one_jit(rewards, ended, values, 0.8, 0.9, K), rtol=1e-6)


def test_batch_axes_and_a_changing_cap():
    rewards, masks, values = window()
    y = one_jit(rewards, masks, values, 0.8, 0.9, 4)
    each_row = jax.vmap(lambda_returns, (0, 0, 0, None, None, None))(rewards, masks, values, 0.8, 0.9, 4)
    np.testing.assert_allclose(each_row, y, rtol=1e-6, atol=1e-6)
    twice = one_jit(*(jnp.stack([x, x]) for x in (rewards, masks, values)), 0.8, 0.9, 4)
    np.testing.assert_allclose(twice, jnp.stack([y, y]), rtol=1e-6, atol=1e-6)

    traces = []

    @jax.jit
    def scheduled(lam, cap):
        traces.append(lam)
        return lambda_returns(rewards, masks, values, lam, 0.9, cap)

    results = [scheduled(jnp.float32(lam), jnp.int32(cap)) for lam, cap in [(0.0, 1), (0.5, 3), (0.8, 4)]]
    assert len(traces) == 1
    np.testing.assert_allclose(results[-1], y, rtol=1e-6, atol=1e-6)
    # A cap beyond the window is the window.
    np.testing.assert_allclose(
        one_jit(rewards, masks, values, 0.8, 0.9, K), one_jit(rewards, masks, values, 0.8, 0.9, 99)
    )
