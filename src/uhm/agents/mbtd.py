"""MBTD(lambda): winsorized TD(lambda) over trajectories imagined step by step with a one-step flow model.

The model learns (s, a) -> (s', d') from real transitions only. Imagination begins at the real s', its first action is
mixed with the data's, and a future that has ended stays where it is with no further reward.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from uhm.agents.base import Agent, Spec
from uhm.agents.core import Backup, Config, Context, FlowTarget, Hyper, Method, build
from uhm.data.sampling import Transitions, transitions
from uhm.returns import lambda_returns

__all__ = ["Config", "Hyper", "make"]


def make(config: Config, spec: Spec) -> Agent:
    def backup(context: Context, batch: Transitions, key: PRNGKeyArray) -> Backup:
        return imagined_backup(context, batch, key, spec.k_max)

    one_step = lambda changes, hyper: changes[:1]  # noqa: E731
    return build(config, spec, Method(transitions(config.batch_size), backup, "none", reward=True, changes=one_step))


def imagined_backup(context: Context, batch: Transitions, key: PRNGKeyArray, window: int) -> Backup:
    """Roll the model `window` - 1 steps on from s' and take the return of all horizons."""
    key_act, key = jax.random.split(key)
    key_mix, key_flow, key_roll = jax.random.split(key, 3)
    hyper, model, reward = context.hyper, context.targets.model, context.reward
    assert model is not None
    assert reward is not None
    n = jnp.ones(batch.rewards.shape, jnp.int32)

    def step(carry: tuple[Array, ...], key: PRNGKeyArray) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        s, ended, a = carry
        key_flow, key_next = jax.random.split(key)
        s_next, flagged = model.sample(key_flow, s, a, n, hyper.flag_threshold)
        s_next = jnp.where(ended[:, None], s, s_next)
        ended_next = ended | (flagged & hyper.terminal)
        a_next = context.act(key_next, s_next)
        value = context.value(s_next, a_next) * ~ended_next
        return (s_next, ended_next, a_next), (reward(s, a) * ~ended, value, s_next)

    s, ended = batch.next_observations, context.ended(batch.masks)
    policy = context.act(key_act, s)
    start = (s, ended, context.mix(key_mix, batch.next_actions, policy))
    first_value = context.value(s, policy) * ~ended
    _, (rewards, values, states) = jax.lax.scan(step, start, jax.random.split(key_roll, window - 1))
    rewards = jnp.concatenate([batch.rewards[None], rewards]).swapaxes(0, 1)
    values = jnp.concatenate([first_value[None], values]).swapaxes(0, 1)
    # Rewards and values are zero after an end already, so no mask is left to apply.
    y = lambda_returns(rewards, jnp.ones_like(rewards), values, context.lam, hyper.discount, context.k_max)
    noise = jax.random.normal(key_flow, (*s.shape[:-1], s.shape[-1] + 1))
    target = FlowTarget(n, noise, model.encode(batch.observations, s, ended, n))
    return Backup(y, target, states if window > 1 else None)
