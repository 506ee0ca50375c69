"""DTD(lambda): winsorized TD(lambda) over the data's own trajectories; no model, no reward net, no behaviour mixing.

The horizon is cut where the stored trajectory ends, and the target bootstraps there; success ends it (`uhm.returns`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from uhm.agents.base import Agent, Spec
from uhm.agents.core import Backup, Context, Hyper, Method, build
from uhm.agents.core import PlainConfig as Config
from uhm.data.sampling import Transitions, Windows, windows
from uhm.returns import lambda_returns

__all__ = ["Config", "Hyper", "make"]


def make(config: Config, spec: Spec) -> Agent:
    return build(config, spec, Method(windows(config.batch_size, spec.k_max), backup, first=first))


def first(batch: Windows) -> Transitions:
    """The transition each window begins with."""
    return Transitions(
        batch.observations[:, 0],
        batch.actions[:, 0],
        batch.rewards[:, 0],
        batch.masks[:, 0],
        batch.observations[:, 1],
        batch.actions[:, 1],
    )


def backup(context: Context, batch: Windows, key: PRNGKeyArray) -> Backup:
    key_act, key = jax.random.split(key)
    states = batch.observations[:, 1:].swapaxes(0, 1)  # [K, B, S]: noise is drawn horizon by horizon
    keys = jnp.stack([key_act, *jax.random.split(key, len(states) - 1)])
    actions = jax.vmap(context.act)(keys, states)
    values = context.value(states, actions).swapaxes(0, 1)
    going_on = (~context.ended(batch.masks[:, :-1])).astype(values.dtype)
    lam, discount = context.lam, context.hyper.discount
    return Backup(lambda_returns(batch.rewards[:, :-1], going_on, values, lam, discount, context.k_max, batch.valid))
