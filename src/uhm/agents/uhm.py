"""UHM: value learning with a universal horizon model (algorithm 1 of the paper).

One horizon n ~ min(Geom(1 - lam gamma), k_max) per row. The model's own (n-1)-step future of (s', a') is the target of
its n-step future of (s, a), and the same sample s_e backs up the critic:

    y = r + gamma (1 - d_e) [ w_xi R(s_e, a_e) + w_nu Q(s_e, a_e) ].

A terminal successor is absorbing: whatever n, the future is (s', ended).

Any measure over horizons will do (proposition 1): `make` takes another one, and `p_H`, w_xi and w_nu are then its own.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from uhm.agents.base import Agent, Spec
from uhm.agents.core import Backup, Config, Context, FlowTarget, Hyper, Method, build, share
from uhm.data.sampling import Transitions, transitions
from uhm.horizons import Measure, WinsorizedGeometric

__all__ = ["Config", "Hyper", "make", "winsorized"]


def winsorized(context: Context) -> Measure:
    """The paper's measure, at this step's lambda and cap."""
    return WinsorizedGeometric(context.lam, context.hyper.discount, context.k_max)


def make(config: Config, spec: Spec, measure: Callable[[Context], Measure] = winsorized) -> Agent:
    """`measure` says which horizons count at a step: one of `uhm.horizons`, or of your own."""
    how = functools.partial(backup, measure=measure)
    return build(config, spec, Method(transitions(config.batch_size), how, config.embedding, reward=True))


def backup(
    context: Context, batch: Transitions, key: PRNGKeyArray, measure: Callable[[Context], Measure] = winsorized
) -> Backup:
    key_act, key = jax.random.split(key)
    key_n, key_mix, key_next, key_noise = jax.random.split(key, 4)
    hyper, model, reward = context.hyper, context.targets.model, context.reward
    assert model is not None
    assert reward is not None
    horizons = measure(context)
    n = horizons.sample(key_n, batch.rewards.shape)

    s, ended = batch.next_observations, context.ended(batch.masks)
    a = context.mix(key_mix, batch.next_actions, context.act(key_next, s))
    noise = jax.random.normal(key_noise, (*s.shape[:-1], s.shape[-1] + 1))
    # The sample for n = 1 is thrown away; its horizon is only kept valid.
    imagined, flagged = model.generate(noise, s, a, jnp.maximum(n - 1, 1), hyper.flag_threshold)
    real = (n == 1) | ended
    s_e = jnp.where(real[:, None], s, imagined)
    d_e = jnp.where(real, ended, flagged & hyper.terminal)

    a_e = context.act(key_act, s_e)
    w_xi, w_nu = horizons.weights(n)
    future = w_xi * reward(s_e, a_e) + w_nu * context.value(s_e, a_e)
    y = batch.rewards + hyper.discount * ~d_e * future
    return Backup(y, FlowTarget(n, noise, model.encode(batch.observations, s_e, d_e, n)), s_e, share(d_e, ~real))
