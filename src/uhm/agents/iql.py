"""IQL: implicit Q-learning, with advantage-weighted regression for the policy.

    L_V  = mean |kappa - 1[u < 0]| u^2,      u = min_i Q'_i(s, a) - V(s)          Q' is the target critic
    L_Q  = mean sum_i (Q_i(s, a) - y)^2,     y = r + gamma m V(s')
    L_pi = -mean w log N(a | mu(s), I),      w = min(exp(alpha A), clip),   A = min_i Q_i(s, a) - V(s)

No network is ever evaluated at an action that is not in the data: the expectile kappa of V takes the place of the best
action. m is 0 where the task ends.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.descent import State, descend, start, working
from uhm.data.sampling import Transitions, transitions


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    alpha: Any = 10.0
    """Inverse temperature: how strongly the policy prefers actions of high advantage; 0 clones the data."""
    expectile: Any = 0.9
    """kappa: the expectile of Q over the data's actions that V learns; 0.5 is their mean."""
    advantage_clip: Any = 100.0
    """Largest weight exp(alpha A) of a transition in the actor's loss."""
    discount: Any = 0.99
    """Discount factor gamma."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which the target critic moves towards the online one at each step."""


class Networks(NamedTuple):
    critic: nets.Critic
    value: nets.Critic  # one V(s)
    actor: nets.MLP  # the mean of a Gaussian of variance 1; no tanh


def make(config: Config, spec: Spec) -> Agent:
    dtype = config.dtype

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        key_critic, key_value, key_actor = jax.random.split(key, 3)
        s, a = spec.observation_size, spec.action_size
        params = Networks(
            critic=nets.Critic(s, a, key_critic, config.hidden, compute_dtype=dtype),
            value=nets.Critic(s, 0, key_value, config.hidden, members=1, compute_dtype=dtype),
            actor=nets.MLP(s, a, key_actor, config.hidden, final_scale=0.01, compute_dtype=dtype),
        )
        return start(params, slow=["critic"])

    def update(state: State, hyper: Hyper, batch: Transitions, key: PRNGKeyArray) -> tuple[State, Metrics]:
        _, targets = working(state)

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            return losses(params, targets.critic, hyper, batch)

        return descend(state, total, hyper.learning_rate, hyper.ema_rate)

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        return jnp.clip(state.params.actor(observations), -1.0, 1.0)

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return state.params.value(observations)[0]

    return Agent(init, transitions(config.batch_size), update, act, value)


def losses(
    params: Networks, slow_critic: nets.Critic, hyper: Hyper, batch: Transitions
) -> tuple[Float[Array, ""], Metrics]:
    """The sum of all losses and what to log."""
    s, a = batch.observations, batch.actions
    value = value_loss(params.value, stop(slow_critic(s, a).min(0)), hyper, batch)
    q, v = params.critic(s, a), params.value(s)[0]
    y = stop(batch.rewards + hyper.discount * batch.masks * params.value(batch.next_observations)[0])
    critic = jnp.square(q - y).sum(0).mean()
    advantage = stop(q.min(0) - v)
    actor, weight = actor_loss(params.actor, advantage, hyper, batch)
    metrics = {"critic_loss": critic, "value_loss": value, "actor_loss": actor}
    metrics |= {"q_mean": q.mean(), "q_min": q.min(), "q_max": q.max(), "target_mean": y.mean()}
    metrics |= {"v_mean": v.mean(), "advantage_mean": advantage.mean(), "weight_mean": weight.mean()}
    return critic + value + actor, metrics


def value_loss(value: nets.Critic, q: Float[Array, " B"], hyper: Hyper, batch: Transitions) -> Float[Array, ""]:
    """L_V: an error below the target weighs kappa, one above it 1 - kappa."""
    u = q - value(batch.observations)[0]
    return (jnp.where(u >= 0, hyper.expectile, 1.0 - hyper.expectile) * jnp.square(u)).mean()


def actor_loss(
    actor: nets.MLP, advantage: Float[Array, " B"], hyper: Hyper, batch: Transitions
) -> tuple[Float[Array, ""], Float[Array, " B"]]:
    """L_pi and the weights of the rows."""
    weight = jnp.minimum(jnp.exp(hyper.alpha * advantage), hyper.advantage_clip)
    error = jnp.square(batch.actions - actor(batch.observations)).sum(-1)
    log_likelihood = -0.5 * (error + batch.actions.shape[-1] * jnp.log(2 * jnp.pi))
    return -(weight * log_likelihood).mean(), weight
