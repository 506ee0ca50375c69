"""ReBRAC: TD3 with behaviour cloning in the actor and in the critic.

    y    = r + gamma m [ min_i Q'_i(s', a~) - alpha_critic |a~ - a'|^2 ],   a~ = clip(mu'(s') + clipped noise)
    L_Q  = mean_i (Q_i(s, a) - y)^2
    L_pi = alpha |mu(s) - a|^2 - c min_i Q_i(s, mu(s)),                     c = sg(1 / mean |Q|)

a' is the data's action at s', a prime on a network means its target network, m is 0 where the task ends. The actor
learns, and the target networks move, only at every second step.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.core import actor_loss, aggregate, critic_loss, smooth
from uhm.agents.descent import State, descend, start, working
from uhm.data.sampling import Transitions, transitions


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""

    q_agg: Literal["min", "mean"] = "min"
    """How the two critics are combined, in targets and in the actor's loss."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    alpha: Any = 0.1
    """Weight of behaviour cloning in the actor's loss."""
    alpha_critic: Any = 0.01
    """Weight in the critic's target of the squared distance between the policy's next action and the data's."""
    discount: Any = 0.99
    """Discount factor gamma."""
    normalise_q: Any = True
    """Divide Q by its mean magnitude in the actor's loss."""
    actor_period: Any = 2
    """Gradient steps per update of the actor and of the target networks."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which target networks move towards the online ones at each actor update."""
    target_noise: Any = 0.2
    """Standard deviation of the noise on target actions."""
    target_noise_clip: Any = 0.5
    """Bound on the noise on target actions."""


class Networks(NamedTuple):
    critic: nets.Critic
    actor: nets.Actor


def make(config: Config, spec: Spec) -> Agent:
    dtype = config.dtype

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        key_critic, key_actor = jax.random.split(key)
        sizes = (spec.observation_size, spec.action_size)
        params = Networks(
            critic=nets.Critic(*sizes, key_critic, config.hidden, compute_dtype=dtype),
            actor=nets.Actor(*sizes, key_actor, config.hidden, compute_dtype=dtype),
        )
        return start(params, slow=Networks._fields)

    def update(state: State, hyper: Hyper, batch: Transitions, key: PRNGKeyArray) -> tuple[State, Metrics]:
        y = stop(target(working(state)[1], hyper, batch, key, config.q_agg))
        acts = state.step % hyper.actor_period == 0

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            critic, q = critic_loss(params.critic, batch, y)
            actor, cloning = actor_loss(params.actor, stop(params.critic), hyper, batch, config.q_agg)
            metrics = {"critic_loss": critic, "actor_loss": actor, "bc_error": cloning}
            metrics |= {"q_mean": q.mean(), "q_min": q.min(), "q_max": q.max(), "target_mean": y.mean()}
            # The actor's gradient is 0 in between, but Adam's momentum still moves it: as in FQL's release, whose
            # ReBRAC the paper reports.
            return critic + jnp.where(acts, actor, 0.0), metrics

        rate = jnp.where(acts, hyper.ema_rate, 0.0)
        return descend(state, total, hyper.learning_rate, rate)

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        return state.params.actor(observations)

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return aggregate(state.params.critic(observations, act(state, observations, key)), config.q_agg)

    return Agent(init, transitions(config.batch_size), update, act, value)


def target(slow: Networks, hyper: Hyper, batch: Transitions, key: PRNGKeyArray, q_agg: str) -> Float[Array, " B"]:
    """y. The penalty, like |.|^2 in the actor's loss, is summed over action dimensions."""
    s = batch.next_observations
    a = smooth(key, slow.actor(s), hyper.target_noise, hyper.target_noise_clip)
    penalty = hyper.alpha_critic * jnp.square(a - batch.next_actions).sum(-1)
    return batch.rewards + hyper.discount * batch.masks * (aggregate(slow.critic(s, a), q_agg) - penalty)
