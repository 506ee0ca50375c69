"""GHM: value learning with a geometric horizon model, which is UHM without the horizon input and without the cap.

With probability lam gamma the target of the model's future is its own future of (s', a'), else s'. The weights do not
depend on how far the sample lies, which the model does not know:

    y = r + gamma (1 - d_e) [ lam / (1 - lam gamma) R(s_e, a_e) + (1 - lam) / (1 - lam gamma) Q(s_e, a_e) ].

The gamma-MVE equation that the paper prints counts R(s_e, a_e) twice; `literal_mve` brings it back for comparison.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import horizons
from uhm.agents.base import Agent, Spec
from uhm.agents.core import Backup, Config, Context, FlowTarget, Hyper, Method, build, share
from uhm.data.sampling import Transitions, transitions
from uhm.horizons import TDLambda, literal_mve_weights

__all__ = ["Config", "Hyper", "make"]


def make(config: Config, spec: Spec) -> Agent:
    return build(config, spec, Method(transitions(config.batch_size), backup, "none", reward=True, changes=pooled))


def pooled(changes: Float[np.ndarray, "K S"], hyper: Hyper) -> Float[Array, "1 S"]:
    """One unit for all horizons, since the model does not know the horizon: the rms over those that UHM would use.

    These follow from the member's own lambda and the default q, so that the unit depends neither on the other members
    nor on a q that GHM does not have.
    """
    longest = horizons.k_max(hyper.lambda_f, hyper.discount, Hyper.q)
    counts = jnp.arange(len(changes))[:, None] < longest
    return jnp.sqrt((counts * jnp.square(changes)).sum(0, keepdims=True) / counts.sum())


def backup(context: Context, batch: Transitions, key: PRNGKeyArray) -> Backup:
    key_act, key = jax.random.split(key)
    key_more, key_mix, key_next, key_noise = jax.random.split(key, 4)
    hyper, model, reward = context.hyper, context.targets.model, context.reward
    assert model is not None
    assert reward is not None
    more = jax.random.uniform(key_more, batch.rewards.shape) < context.lam * hyper.discount

    s, ended = batch.next_observations, context.ended(batch.masks)
    a = context.mix(key_mix, batch.next_actions, context.act(key_next, s))
    noise = jax.random.normal(key_noise, (*s.shape[:-1], s.shape[-1] + 1))
    n = jnp.ones(batch.rewards.shape, jnp.int32)
    imagined, flagged = model.generate(noise, s, a, n, hyper.flag_threshold)
    real = ~more | ended
    s_e = jnp.where(real[:, None], s, imagined)
    d_e = jnp.where(real, ended, flagged & hyper.terminal)

    a_e = context.act(key_act, s_e)
    right = TDLambda(context.lam, hyper.discount).weights(n)
    literal = literal_mve_weights(context.lam, hyper.discount)
    w_xi, w_nu = (jnp.where(hyper.literal_mve, a, b) for a, b in zip(literal, right, strict=True))
    future = w_xi * reward(s_e, a_e) + w_nu * context.value(s_e, a_e)
    y = batch.rewards + hyper.discount * ~d_e * future
    return Backup(y, FlowTarget(n, noise, model.encode(batch.observations, s_e, d_e, n)), s_e, share(d_e, ~real))
