"""MOPO: soft actor-critic on real and imagined transitions, the latter penalised where the dynamics are uncertain.

    y    = r - penalty u(s, a) + gamma m min_i Q_i(s', a'),   a' ~ pi(s'),   u = max_i |sigma_i(s, a)|  (0 on real rows)
    L_Q  = mean_i (Q_i(s, a) - y)^2
    L_pi = T log pi(a|s) - mean_i Q_i(s, a),   a ~ pi(s);   L_T = T (entropy - target)

as in MAC's release: no entropy in y, neither cloning nor normalised Q in L_pi, and the dynamics, the reward and the
success net are trained alongside from the first step. MOBILE is the same with another u.

The release starts 50 000 rollouts every 1000 steps and keeps the last five batches. Under vmap a branch taken every
1000th step would cost its full price at every step, so the work is spread evenly: at each step some rollouts begin, all
that are under way advance by one step, and their transitions are written to a ring buffer of the last `rollout_age`
steps. The policy changes little in the ten steps of a rollout, ages in the buffer are distributed as in the release (0
to 5000 steps), and a step costs one batched call of the models. The release generates 2.6 transitions for each one it
draws; the default here generates one for every two, which takes a fifth of the memory: rollouts x length x age rows of
2S + A + 2 numbers, 0.23 GB for a member of cube-quadruple, twice what its networks and their Adam state take.
`rollouts` = 50 is the release's amount. The buffer is not filled before the first step (the release does that, with an
untrained model): draws are from the rows written so far.

On `rooms` MOPO and MOBILE learn tasks 3 to 5 but not 1 and 2. Nothing keeps the policy near the data, and overconfident
models carry it into walls, where there are no data: on those two tasks, whose direct path leads through the middle,
value leaks through the wall and the policies walk into it. Penalties of 20 and 100 did not prevent this for MOPO.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from uhm import nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.descent import State as Learner
from uhm.agents.descent import descend, start, working
from uhm.agents.dynamics import Dynamics, gaussian_log_prob, scaling
from uhm.data.sampling import Transitions, transitions


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""

    batch_size: int = 256
    """Transitions per gradient step, real and imagined together."""
    real_fraction: float = 0.25
    """Share of real transitions in a batch; the dynamics always learn from a full batch of real ones."""
    ensemble: int = 7
    """Number of dynamics models."""
    rollout_length: int = 10
    """Steps of an imagined rollout."""
    rollouts: int = 10
    """Number of rollouts that begin at every gradient step."""
    rollout_age: int = 5000
    """Number of gradient steps for which imagined transitions are kept."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """Scalars that may differ between members; several values for a flag make it an axis of the population."""

    penalty: Any = 1.0
    """Weight of the models' uncertainty, subtracted from imagined rewards."""
    discount: Any = 0.999
    """Discount factor gamma."""
    target_entropy_per_action: Any = -0.5
    """Target entropy for tuning the temperature, per action dimension."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which the target critic moves towards the online one at each step."""


class Actor(eqx.Module):
    """tanh of a Gaussian whose mean and standard deviation depend on the state."""

    mlp: nets.MLP

    def __call__(self, s: Float[Array, "*batch S"]) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch A"]]:
        """Mean and log standard deviation before tanh."""
        mean, log_std = jnp.split(self.mlp(s), 2, axis=-1)
        return mean, jnp.clip(log_std, -5.0, 2.0)

    def sample(
        self, key: PRNGKeyArray, s: Float[Array, "*batch S"]
    ) -> tuple[Float[Array, "*batch A"], Float[Array, "*batch"]]:
        """An action and its log-density."""
        mean, log_std = self(s)
        noise = jax.random.normal(key, mean.shape)
        u = mean + jnp.exp(log_std) * noise
        log_slope = 2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u))  # log (1 - tanh(u)^2)
        return jnp.tanh(u), gaussian_log_prob(noise, log_std) - log_slope.sum(-1)


class Networks(NamedTuple):
    """The networks that learn; only the critic has a target network."""

    dynamics: Dynamics
    reward: nets.RewardNet
    success: nets.RewardNet  # the logit that the task has ended
    critic: nets.Critic
    actor: Actor
    log_temperature: Float[Array, ""]


class Rows(NamedTuple):
    """Transitions of scaled states, real or imagined."""

    observations: Float[Array, "*batch S"]
    actions: Float[Array, "*batch A"]
    rewards: Float[Array, "*batch"]
    masks: Float[Array, "*batch"]
    next_observations: Float[Array, "*batch S"]


class State(NamedTuple):
    """The learner's fields, and the imagined world."""

    params: Networks
    targets: Networks
    adam: optax.OptState
    step: Int[Array, ""]
    rounded: Any
    front: Float[Array, "length rollouts S"]  # current states of the rollouts under way, youngest first
    ring: Rows  # transitions of the last `rollout_age` steps, length x rollouts for each step


Penalty = Callable[[Networks, nets.Critic, Float[Array, "B S"], Float[Array, "B A"], PRNGKeyArray], Float[Array, " B"]]


def make(config: Config, spec: Spec) -> Agent:
    return build(config, spec, largest_deviation)


def largest_deviation(
    params: Networks, target: nets.Critic, s: Float[Array, "B S"], a: Float[Array, "B A"], key: PRNGKeyArray
) -> Float[Array, " B"]:
    """u = max_i |sigma_i(s, a)|, the norm over dimensions."""
    _, log_std = params.dynamics(s, a)
    return jnp.linalg.norm(jnp.exp(log_std), axis=-1).max(0)


def build(config: Config, spec: Spec, penalty: Penalty) -> Agent:
    """The agent that subtracts `penalty` from imagined rewards."""
    dtype = config.dtype
    scaled, real_rows = scaling(spec), int(config.real_fraction * config.batch_size)
    sizes, hidden = (spec.observation_size, spec.action_size), config.hidden

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        keys = jax.random.split(key, 5)
        heads = nets.MLP(sizes[0], 2 * sizes[1], keys[4], hidden, True, 0.01, dtype)
        params = Networks(
            dynamics=Dynamics(*sizes, keys[0], hidden, config.ensemble, dtype),
            reward=nets.RewardNet(*sizes, keys[1], hidden, compute_dtype=dtype),
            success=nets.RewardNet(*sizes, keys[2], hidden, compute_dtype=dtype),
            critic=nets.Critic(*sizes, keys[3], hidden, compute_dtype=dtype),
            actor=Actor(heads),
            log_temperature=jnp.zeros(()),
        )
        walkers = (config.rollout_length, config.rollouts)
        rows = config.rollout_age * config.rollout_length * config.rollouts
        blank = lambda *size: jnp.zeros((rows, *size))  # noqa: E731
        ring = Rows(blank(sizes[0]), blank(sizes[1]), blank(), blank(), blank(sizes[0]))
        return State(*start(params, slow=["critic"]), jnp.zeros((*walkers, sizes[0])), ring)

    def update(state: State, hyper: Hyper, batch: Transitions, key: PRNGKeyArray) -> tuple[State, Metrics]:
        key_walk, key_draw, key_penalty, key_next, key_actor = jax.random.split(key, 5)
        learner = Learner(state.params, state.targets, state.adam, state.step, state.rounded)
        params, targets = working(learner)
        rows = Rows(scaled(batch.observations), *batch[1:4], scaled(batch.next_observations))
        real, starts = jax.tree.map(lambda x: x[: config.batch_size], rows), rows.observations[config.batch_size :]

        front = positions(state.front, starts, state.step)
        walked = imagine(params, front, key_walk)
        ring = write(state.ring, walked, state.step)
        written = jnp.minimum(state.step + 1, config.rollout_age) * walked.rewards.size
        imagined = draw(ring, written, config.batch_size - real_rows, key_draw)
        fine = penalty(params, targets.critic, imagined.observations, imagined.actions, key_penalty)
        fined = imagined._replace(rewards=imagined.rewards - hyper.penalty * fine)
        mixed = jax.tree.map(lambda r, f: jnp.concatenate([r[:real_rows], f]), real, fined)
        a_next, _ = params.actor.sample(key_next, mixed.next_observations)
        value = targets.critic(mixed.next_observations, a_next).min(0)
        y = mixed.rewards + hyper.discount * mixed.masks * value

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            return losses(params, hyper, real, mixed, y, key_actor)

        learner, metrics = descend(learner, total, hyper.learning_rate, hyper.ema_rate)
        metrics |= {"target_mean": y.mean(), "penalty_mean": fine.mean(), "imagined_reward": imagined.rewards.mean()}
        metrics["outside_data"] = (jnp.abs(walked.next_observations) > 1).mean()
        return State(*learner, walked.next_observations, ring), metrics

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        return jnp.tanh(state.params.actor(scaled(observations))[0])

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return state.params.critic(scaled(observations), act(state, observations, key)).min(0)

    return Agent(init, transitions(config.batch_size + config.rollouts), update, act, value)


def positions(
    front: Float[Array, "length rollouts S"], starts: Float[Array, "rollouts S"], step: Int[Array, ""]
) -> Float[Array, "length rollouts S"]:
    """The states of all rollouts: new ones at real states, the others where they got to. At step 0 all are new."""
    return jnp.where(step == 0, starts, jnp.concatenate([starts[None], front[:-1]]))


def imagine(params: Networks, s: Float[Array, "*batch S"], key: PRNGKeyArray) -> Rows:
    """One step of the policy, with a model drawn for each row. An end is recorded but does not stop a rollout."""
    key_act, key_model = jax.random.split(key)
    a, _ = params.actor.sample(key_act, s)
    going_on = (params.success(s, a) <= 0).astype(s.dtype)  # a logit of 0 is a probability of one half
    return Rows(s, a, params.reward(s, a), going_on, params.dynamics.sample(key_model, s, a))


def write(ring: Rows, walked: Rows, step: Int[Array, ""]) -> Rows:
    """The ring with this step's transitions in the place of the oldest.

    Written row by row (as a scatter) and before anything is drawn, so that XLA updates it in place. A slice update
    would be fused with the rows drawn from it, and a draw that came first would need the old ring; either way the whole
    ring would be copied.
    """
    width = walked.rewards.size
    place = step % (len(ring.rewards) // width) * width + jnp.arange(width)
    return jax.tree.map(lambda old, new: old.at[place].set(new.reshape(width, *old.shape[1:])), ring, walked)


def draw(ring: Rows, written: Int[Array, ""], count: int, key: PRNGKeyArray) -> Rows:
    """`count` rows, uniform over the first `written` of the ring."""
    index = jax.random.randint(key, (count,), 0, written)
    return jax.tree.map(lambda x: x[index], ring)


def losses(
    params: Networks, hyper: Hyper, real: Rows, mixed: Rows, y: Float[Array, " B"], key: PRNGKeyArray
) -> tuple[Float[Array, ""], Metrics]:
    """The sum of all losses and what to log."""
    s, a = real.observations, real.actions
    ended = 1 - real.masks
    logit = params.success(s, a)
    q = params.critic(mixed.observations, mixed.actions)
    action, log_prob = params.actor.sample(key, mixed.observations)
    temperature, entropy = jnp.exp(params.log_temperature), -log_prob.mean()
    target_entropy = hyper.target_entropy_per_action * action.shape[-1]
    parts = {
        "dynamics_loss": params.dynamics.loss(s, a, real.next_observations),
        "reward_loss": jnp.square(params.reward(s, a) - real.rewards).mean(),
        "success_loss": optax.sigmoid_binary_cross_entropy(logit, ended).mean(),
        "critic_loss": jnp.square(q - y).mean(),
        "actor_loss": -stop(temperature) * entropy - stop(params.critic)(mixed.observations, action).mean(),
        "temperature_loss": temperature * (stop(entropy) - target_entropy),
    }
    metrics = parts | {"q_mean": q.mean(), "q_min": q.min(), "q_max": q.max()}
    return sum(parts.values(), jnp.zeros(())), metrics | {"temperature": temperature, "entropy": entropy}
