"""FQL: flow Q-learning. A flow clones the data's actions; a policy that needs one step imitates the flow and climbs Q.

    L_Q    = mean_i (Q_i(s, a) - y)^2,   y = r + gamma m agg_i Q'_i(s', mu(s', z'))
    L_flow = |v(x_tau | s, tau) - (a - x_0)|^2,                  x_tau = (1-tau) x_0 + tau a
    L_pi   = alpha |mu(s, z) - a_v|^2 - mean_i Q_i(s, mu(s, z)), a_v = sg(ODE of v from z)

z, z', x_0 are normal noise, so mu is a stochastic policy, also in evaluation. Q' is the target critic, m is 0 where the
task ends. Actions are clipped to [-1, 1] before a critic or the environment sees them, and in a_v.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import flow, nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.core import aggregate, critic_loss
from uhm.agents.descent import State, descend, start, working
from uhm.data.sampling import Transitions, transitions


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""

    q_agg: Literal["min", "mean"] = "mean"
    """How the two critics are combined in targets; the actor's loss always takes their mean."""
    flow_steps: int = 10
    """Steps of the ODE solver; midpoint evaluates twice per step."""
    ode: Literal["midpoint", "euler"] = "euler"
    """ODE solver."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    alpha: Any = 10.0
    """Weight of imitating the flow in the policy's loss; on the scale of returns, since Q is not normalised."""
    discount: Any = 0.99
    """Discount factor gamma."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which the target critic moves towards the online one at each step."""


class Networks(NamedTuple):
    critic: nets.Critic
    flow: nets.VectorField
    actor: nets.MLP  # (s, z) -> action; neither tanh nor a small last layer


class Noise(NamedTuple):
    """Everything random in one update."""

    next_z: Float[Array, "B A"]
    x0: Float[Array, "B A"]
    tau: Float[Array, " B"]
    z: Float[Array, "B A"]


def make(config: Config, spec: Spec) -> Agent:
    dtype = config.dtype

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        key_critic, key_flow, key_actor = jax.random.split(key, 3)
        s, a = spec.observation_size, spec.action_size
        params = Networks(
            critic=nets.Critic(s, a, key_critic, config.hidden, compute_dtype=dtype),
            flow=nets.VectorField(
                a, s, 0, key_flow, config.hidden, horizon="none", layer_norm=False, compute_dtype=dtype
            ),
            actor=nets.MLP(s + a, a, key_actor, config.hidden, compute_dtype=dtype),
        )
        return start(params, slow=["critic"])

    def update(state: State, hyper: Hyper, batch: Transitions, key: PRNGKeyArray) -> tuple[State, Metrics]:
        noise = draw(key, batch.actions)
        params, targets = working(state)
        y = stop(target(params.actor, targets.critic, hyper, batch, noise, config.q_agg))
        imitated = stop(integrate(params.flow, batch.observations, noise.z, config))

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            critic, q = critic_loss(params.critic, batch, y)
            cloning = flow_loss(params.flow, batch, noise)
            actor, distance = actor_loss(params.actor, stop(params.critic), hyper, batch, noise, imitated)
            metrics = {"critic_loss": critic, "flow_loss": cloning, "actor_loss": actor, "distillation_error": distance}
            metrics |= {"q_mean": q.mean(), "q_min": q.min(), "q_max": q.max(), "target_mean": y.mean()}
            return critic + cloning + actor, metrics

        return descend(state, total, hyper.learning_rate, hyper.ema_rate)

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        z = jax.random.normal(key, (*observations.shape[:-1], spec.action_size))
        return clipped(one_step(state.params.actor, observations, z))

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return aggregate(state.params.critic(observations, act(state, observations, key)), config.q_agg)

    return Agent(init, transitions(config.batch_size), update, act, value)


def draw(key: PRNGKeyArray, like: Float[Array, "B A"]) -> Noise:
    keys = jax.random.split(key, 4)
    next_z, x0, z = (jax.random.normal(k, like.shape) for k in keys[:3])
    return Noise(next_z, x0, jax.random.uniform(keys[3], like.shape[:1]), z)


def clipped(action: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    return jnp.clip(action, -1.0, 1.0)


def one_step(actor: nets.MLP, s: Float[Array, "*B S"], z: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
    """mu(s, z), which may be outside [-1, 1]."""
    return actor(jnp.concatenate([s, z], -1))


def integrate(
    field: nets.VectorField, s: Float[Array, "B S"], z: Float[Array, "B A"], config: Config
) -> Float[Array, "B A"]:
    """a_v: where the flow takes z."""
    c = field.condition(s)
    return clipped(flow.solve(lambda x, tau: field(x, tau, c), z, config.flow_steps, config.ode))


def target(
    actor: nets.MLP, slow_critic: nets.Critic, hyper: Hyper, batch: Transitions, noise: Noise, q_agg: str
) -> Float[Array, " B"]:
    """y, with the action of the online policy: it has no target network."""
    s = batch.next_observations
    q = aggregate(slow_critic(s, clipped(one_step(actor, s, noise.next_z))), q_agg)
    return batch.rewards + hyper.discount * batch.masks * q


def flow_loss(field: nets.VectorField, batch: Transitions, noise: Noise) -> Float[Array, ""]:
    """L_flow, the mean over rows and dimensions."""
    velocity = lambda x, tau: field.velocity(x, tau, batch.observations)  # noqa: E731
    return flow.matching_loss(velocity, noise.x0, batch.actions, noise.tau).mean()


def actor_loss(
    actor: nets.MLP, critic: nets.Critic, hyper: Hyper, batch: Transitions, noise: Noise, imitated: Float[Array, "B A"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """L_pi and its distance to the flow, the mean over rows and dimensions; both of its terms share z."""
    action = one_step(actor, batch.observations, noise.z)
    distance = jnp.square(action - imitated).mean()
    # The mean of the critics whatever `q_agg` says: as in FQL's release.
    return hyper.alpha * distance - critic(batch.observations, clipped(action)).mean(), distance
