"""The actor-critic that UHM, GHM, MBTD(lambda), DTD(lambda) and ReBRAC-dagger share (algorithm 1 of the paper).

    L_Q  = mean_i (Q_i(s, a) - y)^2                                      y is the one thing the methods differ in
    L_pi = alpha |mu(s) - a|^2 - c Q(s, mu(s)),   c = sg(1 / mean |Q|)   TD3+BC; c gives alpha a scale
    L_R  = (R(s, a) - r)^2                                               where the target needs rewards
    L_v  = |v(x_tau | s, a, n, tau) - (x_1 - x_0)|^2_w                   where there is a flow model; w weights the flag

A `Method` defines how to sample, which model there is, and how to back up: `Backup` is the target y and, for methods
with a model, the flow's regression target. One Adam minimises the sum of the losses; every loss sees the other networks
through a stopped gradient.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from uhm import early, flow, horizons, nets
from uhm.agents import base
from uhm.agents.base import Agent, Batch, Metrics, Spec, stop
from uhm.agents.descent import State, descend, start, working
from uhm.agents.horizon_model import THRESHOLD, HorizonModel
from uhm.data.sampling import Sampler
from uhm.numerics import apart


@dataclasses.dataclass(frozen=True)
class PlainConfig(base.Config):
    """What changes the compiled program, for methods without a model."""

    q_agg: Literal["min", "mean"] = "mean"
    """How the two critics are combined, in targets and in the actor's loss."""


@dataclasses.dataclass(frozen=True)
class Config(PlainConfig):
    """What changes the compiled program, for methods with a model."""

    flow_steps: int = 5
    """Steps of the ODE solver; midpoint evaluates twice per step."""
    ode: Literal["midpoint", "euler"] = "midpoint"
    """ODE solver."""
    predict: Literal["scaled", "delta", "absolute"] = "scaled"
    """What the model predicts: change of state in standard deviations after n steps, raw change, or state."""
    flag_std: float = 0.0
    """Standard deviation assumed for the terminal flag, smaller the rarer ends are; 0 takes it from the data."""
    model_layer_norm: bool = True
    """LayerNorm in the vector field."""
    embedding: Literal["sincos", "scalar", "onehot"] = "sincos"
    """How the horizon n enters the vector field."""
    standardise: bool = False
    """Scale the model's inputs and outputs by the data's mean and standard deviation."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    alpha: Any = 0.1
    """Weight of behaviour cloning in the actor's loss."""
    discount: Any = 0.999
    """Discount factor gamma."""
    lambda_f: Any = 0.8
    """Final lambda; 0 makes every method ReBRAC-dagger."""
    schedule: Any = True
    """Increase lambda from 0 to lambda_f over the run, instead of using lambda_f from the first step."""
    q: Any = 0.2
    """Upper-tail mass of horizons that winsorization caps."""
    beta: Any = 0.3
    """Behaviour mixing: probability that the model's next action is the data's instead of the policy's."""
    terminal: Any = True
    """Handle terminal states; without it every target bootstraps, even past the goal."""
    flag_weight: Any = 1.0
    """Weight of the terminal flag in the model's loss; each dimension of the state has weight 1."""
    flag_threshold: Any = THRESHOLD
    """An imagined future has ended if its flag (1 if ended) exceeds this; a huge one leaves ends to the critic."""
    normalise_q: Any = True
    """Divide Q by its mean magnitude in the actor's loss."""
    literal_mve: Any = False
    """GHM only: use the gamma-MVE weights as printed in the paper, which count a reward twice."""
    actor_period: Any = 1
    """Gradient steps per actor update."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which target networks move towards the online ones at each step."""
    target_noise: Any = 0.2
    """Standard deviation of the noise on target actions."""
    target_noise_clip: Any = 0.5
    """Bound on the noise on target actions."""
    steps: Any = 1_000_000
    """Gradient steps of the whole run, over which lambda grows."""


class Networks(NamedTuple):
    """The networks that learn and, as `targets`, their target networks (the reward net has none)."""

    critic: nets.Critic
    actor: nets.Actor
    model: HorizonModel | None
    reward: nets.RewardNet | None


class FlowTarget(NamedTuple):
    """The flow from (s, a, n) at noise x_0 should end in x_1."""

    n: Int[Array, " B"]
    x0: Float[Array, "B X"]
    x1: Float[Array, "B X"]


class Backup(NamedTuple):
    """The critic's target, and the flow's where there is a model; `generated` are states that the model imagined.

    `ends` is the share of imagined futures that have ended. If flags are right, it is at most a few times the share of
    stored transitions that end, or smaller where a goal holds for a while, so that many stored transitions end in it.
    If it is far larger, values are cut off where nothing ends.
    """

    y: Float[Array, " B"]
    flow: FlowTarget | None = None
    generated: Float[Array, "*G S"] | None = None
    ends: Float[Array, ""] | None = None


class Context(NamedTuple):
    """What a backup may use: target networks, the online reward net, this step's lambda and cap."""

    targets: Networks
    reward: nets.RewardNet | None
    hyper: Hyper
    lam: Float[Array, ""]
    k_max: Int[Array, ""]
    q_agg: str

    def ended(self, masks: Float[Array, "*B"]) -> Bool[Array, "*B"]:
        """d' = 1 - mask: whether the successor is terminal, and so absorbing. Never, without terminal handling."""
        return (masks < 0.5) & self.hyper.terminal

    def act(self, key: PRNGKeyArray, s: Float[Array, "*B S"]) -> Float[Array, "*B A"]:
        """pi(s): the target actor with clipped noise (target policy smoothing)."""
        return smooth(key, self.targets.actor(s), self.hyper.target_noise, self.hyper.target_noise_clip)

    def value(self, s: Float[Array, "*B S"], a: Float[Array, "*B A"]) -> Float[Array, "*B"]:
        """The target critics' value of (s, a), aggregated."""
        return aggregate(self.targets.critic(s, a), self.q_agg)

    def mix(self, key: PRNGKeyArray, stored: Float[Array, "B A"], policy: Float[Array, "B A"]) -> Float[Array, "B A"]:
        """Behaviour mixing: the stored action with probability beta, else the policy's."""
        return jnp.where(jax.random.uniform(key, stored.shape[:-1])[..., None] < self.hyper.beta, stored, policy)


class Method(NamedTuple):
    """All that a method adds to the core.

    Every backup splits its key in two and draws the noise of the action it bootstraps with from the first half, so that
    the targets of all methods are equal at lambda = 0.
    """

    sampler: Sampler
    backup: Callable[[Context, Batch, PRNGKeyArray], Backup]
    embedding: str | None = None  # of the model's horizon; None means that there is no model
    reward: bool = False
    # From the standard deviations of changes in the data, [k_max, S], those for the horizons that the model predicts.
    changes: Callable[[np.ndarray, Hyper], Any] = lambda by_horizon, hyper: by_horizon
    first: Callable[[Batch], Any] = lambda batch: batch  # the transitions that the losses are taken on


def share(of: Bool[Array, " B"], among: Bool[Array, " B"]) -> Float[Array, ""]:
    """The fraction of the rows `among` in which `of` is true; 0 where there are none."""
    return (of & among).sum() / jnp.maximum(among.sum(), 1)


def aggregate(values: Float[Array, " E *B"], how: str) -> Float[Array, "*B"]:
    """Both critics as one: the smaller (clipped double Q) or the mean."""
    return values.min(0) if how == "min" else values.mean(0)


def smooth(key: PRNGKeyArray, action: Float[Array, "*B A"], noise: Any, clip: Any) -> Float[Array, "*B A"]:
    """The action with clipped normal noise, in the box."""
    return jnp.clip(action + jnp.clip(noise * jax.random.normal(key, action.shape), -clip, clip), -1.0, 1.0)


def _units(changes: Any, spec: Spec) -> Float[Array, "K S"]:
    """The units of predicted changes, bounded below so that rare changes do not become huge numbers."""
    return jnp.maximum(changes, 0.1 * np.maximum(spec.observation_std, 0.01)).astype(jnp.float32)


def build(config: PlainConfig, spec: Spec, method: Method) -> Agent:
    """The agent of a method."""
    dtype = config.dtype

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        key_critic, key_actor, key_model, key_reward = jax.random.split(key, 4)
        sizes = (spec.observation_size, spec.action_size)
        model = None
        if method.embedding is not None:
            assert isinstance(config, Config)
            model = HorizonModel(
                spec,
                key_model,
                hidden=config.hidden,
                embedding=method.embedding,
                layer_norm=config.model_layer_norm,
                delta=config.predict != "absolute",
                standardise=config.standardise,
                flag_std=config.flag_std,
                changes=_units(method.changes(spec.change_std, hyper), spec) if config.predict == "scaled" else None,
                steps=config.flow_steps,
                ode=config.ode,
                compute_dtype=dtype,
            )
        params: Any = Networks(
            critic=nets.Critic(*sizes, key_critic, config.hidden, compute_dtype=dtype),
            actor=nets.Actor(*sizes, key_actor, config.hidden, compute_dtype=dtype),
            model=model,
            reward=nets.RewardNet(*sizes, key_reward, config.hidden, compute_dtype=dtype) if method.reward else None,
        )
        return start(params, slow=("critic", "actor", "model"))

    def update(state: State, hyper: Hyper, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        key_backup, key_tau = jax.random.split(key)
        lam = horizons.lambda_schedule(state.step / hyper.steps, hyper.lambda_f)
        lam = jnp.where(hyper.schedule, lam, hyper.lambda_f)
        cap = horizons.k_max(lam, hyper.discount, hyper.q)
        params, targets = working(state)
        context = Context(targets, apart(params.reward), hyper, lam, cap, config.q_agg)
        backup = stop(method.backup(context, batch, key_backup))
        tau = jax.random.uniform(key_tau, backup.y.shape)
        acts = state.step % hyper.actor_period == 0

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            return losses(params, hyper, method.first(batch), backup, tau, acts, config.q_agg)

        state, metrics = descend(state, total, hyper.learning_rate, hyper.ema_rate)
        metrics |= {"lambda": lam, "k_max": cap.astype(float)}
        if backup.generated is not None:
            outside = (backup.generated < spec.observation_low) | (backup.generated > spec.observation_high)
            metrics["outside_data"] = outside.mean()
        if backup.ends is not None:
            metrics |= {"imagined_ends": backup.ends, "stored_ends": (method.first(batch).masks < 0.5).mean()}
        return state, metrics

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        return state.params.actor(observations)

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return aggregate(state.params.critic(observations, act(state, observations, key)), config.q_agg)

    return Agent(init, method.sampler, update, act, value)


def losses(
    params: Networks,
    hyper: Hyper,
    batch: Any,
    backup: Backup,
    tau: Float[Array, " B"],
    acts: Bool[Array, ""],
    q_agg: str,
) -> tuple[Float[Array, ""], Metrics]:
    """The sum of all losses and what to log.

    Inputs and results of the actor's and the reward's loss are behind barriers (`apart`): otherwise XLA fuses them with
    operations that read the backup, and they wait for it.
    """
    critic, q = critic_loss(params.critic, batch, backup.y, late=backup.flow is not None)
    actor, cloning = apart(actor_loss(params.actor, stop(apart(params.critic)), hyper, apart(batch), q_agg))
    metrics = {"critic_loss": critic, "actor_loss": actor, "bc_error": cloning}
    metrics |= {"q_mean": q.mean(), "q_min": q.min(), "q_max": q.max(), "target_mean": backup.y.mean()}
    loss = critic + jnp.where(acts, actor, 0.0)
    if params.reward is not None:
        metrics["reward_loss"] = apart(reward_loss(params.reward, apart(batch)))
        loss += metrics["reward_loss"]
    if params.model is not None and backup.flow is not None:
        model, recall = model_loss(params.model, hyper, batch, backup.flow, tau)
        metrics |= {"model_loss": model, "flag_recall": recall}
        loss += model
    return loss, metrics


def critic_loss(
    critic: nets.Critic, batch: Any, y: Float[Array, " B"], late: bool = False
) -> tuple[Float[Array, ""], Float[Array, "E B"]]:
    """L_Q, the mean over critics and rows, and the values themselves. `late`: y needs a model, so it is ready late."""
    if late and early.pays(critic.ensemble):
        batch = apart(batch)
        q = apart(critic(batch.observations, batch.actions, apply=early.values))
    else:
        q = critic(batch.observations, batch.actions)
    return jnp.square(q - y).mean(), q


def reward_loss(reward: nets.RewardNet, batch: Any) -> Float[Array, ""]:
    """L_R."""
    return jnp.square(reward(batch.observations, batch.actions) - batch.rewards).mean()


def actor_loss(
    actor: nets.Actor, critic: nets.Critic, hyper: Any, batch: Any, q_agg: str
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """L_pi and its cloning error, which is summed over action dimensions as |.|^2 says.

    Of `hyper`, `alpha` and `normalise_q` are read.
    """
    action = actor(batch.observations)
    q = aggregate(critic(batch.observations, action), q_agg)
    scale = jnp.where(hyper.normalise_q, 1.0 / jnp.maximum(jnp.abs(stop(q)).mean(), 1e-6), 1.0)
    cloning = jnp.square(action - batch.actions).sum(-1).mean()
    return hyper.alpha * cloning - scale * q.mean(), cloning


def model_loss(
    model: HorizonModel, hyper: Hyper, batch: Any, target: FlowTarget, tau: Float[Array, " B"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """L_v, and how many of the ended futures the model would flag: x_1 is guessed from x_tau and the velocity there."""
    x = flow.path(target.x0, target.x1, tau)
    velocity = model.velocity(x, tau, batch.observations, batch.actions, target.n)
    guess = x[:, -1] + (1 - tau) * velocity[:, -1]
    ended = target.x1[:, -1] > THRESHOLD
    recall = share(guess > hyper.flag_threshold, ended)
    error = velocity - (target.x1 - target.x0)
    squares = jnp.square(error.at[:, -1].set(model.flag_error(error[:, -1], tau)))
    weights = jnp.ones(squares.shape[-1]).at[-1].set(hyper.flag_weight)
    # In a batch without an ended future the recall is 1, so that a dip always means a miss.
    return (squares * weights).mean(), jnp.where(ended.any(), recall, 1.0)
