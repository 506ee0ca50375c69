"""ReBRAC-dagger: one-step TD. y = r + gamma (1 - d') Q(s', pi(s')).

ReBRAC with gamma = 0.999, no critic penalty and one actor step per critic step; every other method of the family is
this one at lambda_f = 0.
"""

import jax
from jaxtyping import PRNGKeyArray

from uhm.agents.base import Agent, Spec
from uhm.agents.core import Backup, Context, Hyper, Method, build
from uhm.agents.core import PlainConfig as Config
from uhm.data.sampling import Transitions, transitions

__all__ = ["Config", "Hyper", "make"]


def make(config: Config, spec: Spec) -> Agent:
    return build(config, spec, Method(transitions(config.batch_size), backup))


def backup(context: Context, batch: Transitions, key: PRNGKeyArray) -> Backup:
    key_act, _ = jax.random.split(key)
    s = batch.next_observations
    bootstrap = context.value(s, context.act(key_act, s)) * ~context.ended(batch.masks)
    return Backup(batch.rewards + context.hyper.discount * bootstrap)
