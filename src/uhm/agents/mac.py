"""MAC: values over chunks of actions, imagined ten chunks ahead with a deterministic chunk model.

One step is h actions. With Gamma = gamma^h, starting from states s_0 of the data, the model takes ten steps, each with
the chunk of highest Q among 8 that the policy proposes:

    delta_j = r_j + Gamma m_j V'(s_{j+1}) - V'(s_j),   A_j = delta_j + Gamma lambda m_j A_{j+1}   (target V', lambda 1)
    L_V = mean_j (V(s_j) - V'(s_j) - A_j)^2,           L_Q = (Q(s_0, c_0) - r_0 - Gamma m_0 V(s_1))^2
    L_f = |f(s, c) - s_{t+h}|^2,   L_R = (R(s, c) - r)^2,   and flow matching for the chunks of the data, distilled into
    L_mu = |mu(s, z) - flow(s, z)|^2.

The policy clones the data and is not trained by Q: Q only chooses among its proposals, 8 chunks in imagination and 32
when acting. Acting replans at every step and executes only the first action of the best chunk, so `act` needs no
memory.

Deliberately as in MAC's release: a chunk's reward is the mean (1/h) sum_i gamma^i r_i, which scales all values and
changes no choice, and tasks do not end (`terminal` off), so the success net learns that nothing ever ends. A goal is
then worth what can be collected by staying there, doing what the data do at goals. On `rooms`, whose walkers do not
stay, that is little, V may be largest outside the maze, and the preset lets tasks end (tests/test_doors.py has
numbers).
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import flow, nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.descent import State, descend, start, working
from uhm.agents.dynamics import scaling
from uhm.agents.fql import clipped, one_step
from uhm.data.sampling import Chunks, chunks


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""

    batch_size: int = 256
    """Transitions per gradient step, each over a chunk of actions."""
    chunk: int = 10
    """h: number of actions in a chunk."""
    rollout_chunks: int = 10
    """Number of chunks imagined ahead."""
    train_samples: int = 8
    """Number of chunks to choose from in imagination."""
    test_samples: int = 32
    """Number of chunks to choose from when acting."""
    flow_steps: int = 10
    """Steps of the ODE solver; midpoint evaluates twice per step."""
    ode: Literal["midpoint", "euler"] = "euler"
    """ODE solver."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    discount: Any = 0.999
    """Discount factor gamma per action."""
    gae_lambda: Any = 1.0
    """lambda of the advantage estimates over imagined chunks."""
    terminal: Any = False
    """Let a task end at its goal; MAC's single-task runs do not."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which the target of V moves towards the online one at each step."""


class Networks(NamedTuple):
    """The networks that learn; all but V are given a state and a chunk, and only V has a target network."""

    model: nets.MLP
    reward: nets.RewardNet
    success: nets.RewardNet  # the logit that the task has ended
    critic: nets.Critic
    value: nets.Critic
    field: nets.VectorField
    actor: nets.MLP


class Steps(NamedTuple):
    """Chunk steps of the data: scaled s, the chunk as one vector, its reward, whether the task goes on, scaled s'."""

    s: Float[Array, "B S"]
    c: Float[Array, "B C"]
    r: Float[Array, " B"]
    m: Float[Array, " B"]
    s_next: Float[Array, "B S"]


class Imagined(NamedTuple):
    """J chunk steps of the model: s_0 .. s_J, and the first chunk."""

    s: Float[Array, "J1 B S"]
    r: Float[Array, "J B"]
    m: Float[Array, "J B"]
    first: Float[Array, "B C"]


def make(config: Config, spec: Spec) -> Agent:
    dtype = config.dtype
    scaled, hidden = scaling(spec), config.hidden
    size, width = spec.observation_size, config.chunk * spec.action_size

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        keys = jax.random.split(key, len(Networks._fields))
        params = Networks(
            model=nets.MLP(size + width, size, keys[0], hidden, layer_norm=True, compute_dtype=dtype),
            reward=nets.RewardNet(size, width, keys[1], hidden, compute_dtype=dtype),
            success=nets.RewardNet(size, width, keys[2], hidden, compute_dtype=dtype),
            critic=nets.Critic(size, width, keys[3], hidden, members=1, compute_dtype=dtype),
            value=nets.Critic(size, 0, keys[4], hidden, members=1, compute_dtype=dtype),
            field=nets.VectorField(width, size, 0, keys[5], hidden, "none", compute_dtype=dtype),
            actor=nets.MLP(size + width, width, keys[6], hidden, layer_norm=True, compute_dtype=dtype),
        )
        return start(params, slow=["value"])

    def update(state: State, hyper: Hyper, batch: Chunks, key: PRNGKeyArray) -> tuple[State, Metrics]:
        key_roll, key_flow, key_tau, key_distil = jax.random.split(key, 4)
        real = steps_of(batch, hyper)._replace(s=scaled(batch.observations), s_next=scaled(batch.next_observations))
        params, targets = working(state)
        imagined = imagine(params, real.s, config, key_roll)
        big = hyper.discount**config.chunk
        returns = gae_returns(imagined.r, imagined.m, targets.value(imagined.s)[0], big, hyper.gae_lambda)
        y = imagined.r[0] + big * imagined.m[0] * params.value(imagined.s[1])[0]
        noise = jax.random.normal(key_flow, real.c.shape), jax.random.normal(key_distil, real.c.shape)
        tau = jax.random.uniform(key_tau, real.r.shape)

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            learned, values = model_losses(params, real), value_losses(params, imagined, y, returns)
            parts = learned | values | policy_losses(params, real, noise, tau, config)
            return sum(parts.values(), jnp.zeros(())), parts

        state, metrics = descend(state, total, hyper.learning_rate, hyper.ema_rate)
        metrics |= {"return_mean": returns.mean(), "target_mean": y.mean(), "going_on": imagined.m.mean()}
        metrics["outside_data"] = (jnp.abs(imagined.s[1:]) > 1).mean()
        return state, metrics

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        chunk = choose(state.params, scaled(observations), config.test_samples, key)
        return chunk[..., : spec.action_size]

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        # A chunk's reward is the mean over its steps, so V is a return divided by the length of a chunk.
        return config.chunk * state.params.value(scaled(observations))[0]

    return Agent(init, chunks(config.batch_size, config.chunk), update, act, value)


def steps_of(batch: Chunks, hyper: Hyper) -> Steps:
    """Chunks as single steps. With `terminal` nothing behind the first mask of 0 counts."""
    h = batch.rewards.shape[-1]
    masks = jnp.where(hyper.terminal, batch.masks, 1.0)
    alive = jnp.cumprod(masks, axis=-1)
    before = jnp.concatenate([jnp.ones_like(alive[:, :1]), alive[:, :-1]], axis=-1)
    reward = (hyper.discount ** jnp.arange(h) * before * batch.rewards).mean(-1)
    flat = batch.actions.reshape(len(batch.actions), -1)
    return Steps(batch.observations, flat, reward, alive[:, -1], batch.next_observations)


def choose(params: Networks, s: Float[Array, "*batch S"], samples: int, key: PRNGKeyArray) -> Float[Array, "*batch C"]:
    """The best by Q of `samples` chunks of the policy."""
    many = jnp.broadcast_to(s, (samples, *s.shape))
    noise = jax.random.normal(key, (samples, *s.shape[:-1], params.field.x_size))
    proposed = clipped(one_step(params.actor, many, noise))
    best = params.critic(many, proposed)[0].argmax(0)
    return jnp.take_along_axis(proposed, best[None, ..., None], axis=0)[0]


def ahead(model: nets.MLP, s: Float[Array, "*batch S"], c: Float[Array, "*batch C"]) -> Float[Array, "*batch S"]:
    """f(s, c): the state one chunk later; the model predicts the change."""
    return s + model(jnp.concatenate([s, c], axis=-1))


def imagine(params: Networks, s: Float[Array, "B S"], config: Config, key: PRNGKeyArray) -> Imagined:
    """`rollout_chunks` steps from s. An end is recorded but does not stop the rollout: returns stop at it."""

    def step(s: Float[Array, "B S"], key: PRNGKeyArray) -> tuple[Float[Array, "B S"], tuple[Array, ...]]:
        c = choose(params, s, config.train_samples, key)
        going_on = (params.success(s, c) <= 0).astype(s.dtype)  # a logit of 0 is a probability of one half
        s_next = ahead(params.model, s, c)
        return s_next, (s_next, params.reward(s, c), going_on, c)

    _, (later, r, m, c) = jax.lax.scan(step, s, jax.random.split(key, config.rollout_chunks))
    return Imagined(jnp.concatenate([s[None], later]), r, m, c[0])


def gae_returns(
    r: Float[Array, "J B"], m: Float[Array, "J B"], v: Float[Array, "J1 B"], discount: Any, lam: Any
) -> Float[Array, "J B"]:
    """V'(s_j) + A_j for every j, given the values v_0 .. v_J."""

    def step(later: Float[Array, " B"], row: tuple[Array, ...]) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        r, m, v, v_next = row
        advantage = r + discount * m * (v_next + lam * later) - v
        return advantage, v + advantage

    _, returns = jax.lax.scan(step, jnp.zeros_like(v[-1]), (r, m, v[:-1], v[1:]), reverse=True, unroll=True)
    return returns


def model_losses(params: Networks, real: Steps) -> dict[str, Float[Array, ""]]:
    """The losses of model, reward and success net."""
    success = optax.sigmoid_binary_cross_entropy(params.success(real.s, real.c), 1 - real.m)
    return {
        "model_loss": jnp.square(ahead(params.model, real.s, real.c) - real.s_next).mean(),
        "reward_loss": jnp.square(params.reward(real.s, real.c) - real.r).mean(),
        "success_loss": success.mean(),
    }


def value_losses(
    params: Networks, imagined: Imagined, y: Float[Array, " B"], returns: Float[Array, "J B"]
) -> dict[str, Float[Array, ""]]:
    """L_Q on the first imagined step, L_V on all."""
    return {
        "critic_loss": jnp.square(params.critic(imagined.s[0], imagined.first)[0] - y).mean(),
        "value_loss": jnp.square(params.value(imagined.s[:-1])[0] - returns).mean(),
    }


def policy_losses(
    params: Networks, real: Steps, noise: tuple[Array, Array], tau: Float[Array, " B"], config: Config
) -> dict[str, Float[Array, ""]]:
    """Flow matching on the data's chunks, and the one-step policy that learns where the flow ends."""
    x0, z = noise
    matching = flow.matching_loss(lambda x, tau: params.field.velocity(x, tau, real.s), x0, real.c, tau)
    fixed = stop(params.field)
    condition = fixed.condition(real.s)
    end = flow.solve(lambda x, tau: fixed(x, tau, condition), z, config.flow_steps, config.ode)
    distil = jnp.square(one_step(params.actor, real.s, z) - clipped(end))
    return {"flow_loss": matching.mean(), "actor_loss": distil.mean()}
