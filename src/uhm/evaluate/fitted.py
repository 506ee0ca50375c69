"""Fitted Q evaluation (FQE): what policies are worth, found out from stored transitions alone.

A policy pi that learns no more is given, and E critics learn its value:

    L   = mean_e mean_B (Q_e(s, a) - y_e)^2,     y_e = r + gamma m Q'_e(s', a'),     a' ~ pi(s')
    V_e = mean_{s_0} Q_e(s_0, a_0),   a_0 ~ pi(s_0);     fitted = mean_e V_e,     spread = std_e V_e

Q'_e is the target network of critic e alone, m is 0 where the task ends, and s_0 are the first rows of trajectories. No
critic sees another and no minimum is taken: these are E estimates of the same number. The spread is how far they
disagree. It is no confidence interval, and it does not see errors that all of them share, as at actions the logs lack.

The policy gets raw observations, as its agent's `act` wants them; critics get them scaled to mean 0 and standard
deviation 1, and rewards divided by a `unit`, the size of the returns in the logs. So neither the learning rate nor how
soon a fit has settled depends on what observations and rewards are measured in.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from uhm import nets
from uhm.agents import base
from uhm.agents.base import Agent, Metrics, Spec, stop
from uhm.agents.descent import State, descend, start, working
from uhm.data.dataset import Dataset
from uhm.data.sampling import Transitions, transitions
from uhm.evaluate.policy import narrowed
from uhm.population import Member, Population

_STARTS = 512, 4096  # rows of which an estimate is the mean: at least, with repetitions, and at most
# Stand for a step where actions are drawn that no step learns from: no fit goes on for so long.
_AT_STARTS, _AT_STORED = 2**32 - 1, 2**32 - 2
_SEEDS = 1 << 30  # turns a member's seed into another one, or a fit would draw the very batches that training drew


@dataclasses.dataclass(frozen=True)
class Config(base.Config):
    """What changes the compiled program."""

    critics: int = 3
    """E: the number of critics, at least two."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:
    """What may differ between members, first of all the policy."""

    policy: Any
    """What `act` of the policy's agent takes as its state. It is only read."""
    discount: Any = 0.99
    """Discount factor gamma."""
    unit: Any = 1.0
    """What rewards are divided by, and values multiplied."""
    learning_rate: Any = 3e-4
    """Adam's learning rate."""
    ema_rate: Any = 0.005
    """eta: fraction by which target networks move towards the online ones at each step."""


class Networks(NamedTuple):
    critic: nets.Critic


def fitted(policy: Agent, config: Config, spec: Spec) -> Agent:
    """FQE of `hyper.policy` as an agent. What it estimates is asked of `values`; there is nothing in it to act with."""

    def init(key: PRNGKeyArray, hyper: Hyper) -> State:
        sizes = (spec.observation_size, spec.action_size)
        critic = nets.Critic(*sizes, key, config.hidden, members=config.critics, compute_dtype=config.dtype)
        return start(Networks(critic), slow=["critic"])

    def update(state: State, hyper: Hyper, batch: Transitions, key: PRNGKeyArray) -> tuple[State, Metrics]:
        y = target(policy, spec, working(state)[1].critic, hyper, batch, key)

        def total(params: Networks) -> tuple[Float[Array, ""], Metrics]:
            q = params.critic(spec.scale(batch.observations), batch.actions)
            loss = jnp.square(q - y).mean()
            return loss, {"critic_loss": loss, "q_mean": hyper.unit * q.mean(), "target_mean": hyper.unit * y.mean()}

        return descend(state, total, hyper.learning_rate, hyper.ema_rate)

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> NoReturn:
        raise TypeError("fitted Q evaluation has no policy of its own")

    return Agent(init, transitions(config.batch_size), update, act)


def target(
    policy: Agent, spec: Spec, slow_critic: nets.Critic, hyper: Hyper, batch: Transitions, key: PRNGKeyArray
) -> Float[Array, "E B"]:
    """y_e in units, with no gradient to anything."""
    actions = policy.act(hyper.policy, batch.next_observations, key)
    q = slow_critic(spec.scale(batch.next_observations), actions)
    return stop(batch.rewards / hyper.unit + hyper.discount * batch.masks * q)


def values(
    policy: Agent,
    spec: Spec,
    critic: nets.Critic,
    hyper: Hyper,
    observations: Float[Array, "rows S"],
    key: PRNGKeyArray,
) -> Float[Array, "E rows"]:
    """Q_e(s, a), a ~ pi(s), of every critic, in what the logs measure rewards in."""
    actions = policy.act(hyper.policy, observations, key)
    return hyper.unit * critic(spec.scale(observations), actions)


class Fit(NamedTuple):
    """All that a fit needs: `population.init` and `advance` train `agent` with `hyper` on `data`.

    `estimates(population, hyper, starts)` is then V_e of every member. `apart(population, hyper)` is how far its
    actions are from those in the data at stored states: the root of the mean square over rows and numbers of an action.
    """

    agent: Agent
    hyper: Hyper
    members: list[Member]
    data: Dataset
    starts: Float[np.ndarray, "members rows S"]
    estimates: Callable[[Population, Hyper, Any], Float[Array, "members E"]]
    apart: Callable[[Population, Hyper], Float[Array, " members"]]


def fit_of(
    agent: Agent,
    states: Any,
    spec: Spec,
    members: Sequence[Member],
    data: Dataset,
    discounts: Sequence[float],
    config: Config,
    *,
    learning_rate: float = 3e-4,
    ema_rate: float | None = None,
    starts: Float[np.ndarray, "members rows S"] | None = None,
) -> Fit:
    """The fit of the policies of `agent` with stacked `states` to `data`, whose columns are those of the members.

    `starts` are the start states of every member, if they are not the first rows of trajectories.
    """
    act, leaves = narrowed(agent.act, states, spec.observation_size)
    policy = agent._replace(act=act)
    about = list(zip((member.column for member in members), discounts, strict=True))
    units = {pair: unit(data, *pair) for pair in dict.fromkeys(about)}
    column = lambda numbers: jnp.asarray(list(numbers), jnp.float32)  # noqa: E731
    hyper = Hyper(
        policy=leaves,
        discount=column(discounts),
        unit=column(units[pair] for pair in about),
        learning_rate=column([learning_rate] * len(members)),
        ema_rate=column(ema_rate_of(discount) if ema_rate is None else ema_rate for discount in discounts),
    )
    if starts is None:
        first = np.asarray(data.observations[_spread_out(first_rows(data))])
        starts = np.broadcast_to(first, (len(members), *first.shape))
    # Of a policy that draws, a few start states would be judged by as few actions.
    starts = np.tile(starts, (1, -(-_STARTS[0] // starts.shape[1]), 1)).astype(np.float32)
    rows = np.sort(_spread_out(np.asarray(data.starts)))
    seen, taken = np.asarray(data.observations[rows]), np.asarray(data.actions[rows])

    @jax.jit
    def estimates(population: Population, hyper: Hyper, starts: Float[Array, "members rows S"]) -> Array:
        def one(member: tuple[Any, ...]) -> Float[Array, " E"]:
            critic, key, hyper, observations = member
            return values(policy, spec, critic, hyper, observations, jax.random.fold_in(key, _AT_STARTS)).mean(-1)

        # One after another: side by side, all start states of all members would be in memory at once.
        return jax.lax.map(one, (population.state.params.critic, population.key, hyper, starts))

    @jax.jit
    def apart(population: Population, hyper: Hyper) -> Array:
        def one(member: tuple[Any, ...]) -> Float[Array, ""]:
            key, hyper = member
            actions = policy.act(hyper.policy, jnp.asarray(seen), jax.random.fold_in(key, _AT_STORED))
            return jnp.sqrt(jnp.square(actions - taken).mean())

        return jax.lax.map(one, (population.key, hyper))

    columns = np.array([member.column for member in members], np.int32)
    others = [member._replace(seed=member.seed ^ _SEEDS) for member in members]
    return Fit(fitted(policy, config, spec), hyper, others, data.with_task(columns), starts, estimates, apart)


def _spread_out(rows: np.ndarray) -> np.ndarray:
    """At most as many of them as an estimate takes."""
    return rows[:: -(-len(rows) // _STARTS[1])]


def ema_rate_of(discount: float) -> float:
    """eta for a discount: what all values are wrong by shrinks by 1 - eta (1 - gamma) per step, e-fold in 10,000.

    So 50,000 steps leave 1 % of it. Bounded to what agents have, and to 0.1: beyond gamma = 0.999 it takes longer.
    """
    return float(np.clip(1e-4 / max(1 - discount, 1e-9), 0.005, 0.1))


def spread(estimates: Float[np.ndarray, "members E"]) -> Float[np.ndarray, " members"]:
    """How far the critics disagree."""
    return np.std(estimates, axis=-1, ddof=1)


class Stored(NamedTuple):
    """What the behaviour got in the logs: the discounted return of trajectories from their first rows on.

    Of the `cut` trajectories, in which the task does not end, it is the sum up to where they were cut.
    """

    mean: float
    standard_error: float
    trajectories: int
    cut: int


def stored(data: Dataset, column: int, discount: float) -> Stored:
    """Of one task."""
    rows, last = first_rows(data), np.asarray(data.last)
    found = returns(data, column, discount)[rows]
    ends = ~np.asarray(data.masks[column], bool) & (np.arange(len(last)) < last)  # the last row has no step
    cut = int((np.add.reduceat(ends, rows, dtype=int) == 0).sum())
    error = float(found.std(ddof=1) / np.sqrt(len(rows))) if len(rows) > 1 else float("nan")
    return Stored(float(found.mean()), error, len(rows), cut)


def unit(data: Dataset, column: int, discount: float) -> float:
    """The typical size of a discounted return: the root of the mean square over all rows that begin a transition."""
    size = float(np.sqrt(np.mean(np.square(returns(data, column, discount)[np.asarray(data.starts)]))))
    return size if np.isfinite(size) and size > 0 else 1.0


def returns(data: Dataset, column: int, discount: float) -> Float[np.ndarray, " rows"]:
    """G_t = r_t + gamma m_t G_(t+1) of every row, 0 in the last one of a trajectory: it is cut there, and not ended."""
    rewards, masks = np.asarray(data.rewards[column], float), np.asarray(data.masks[column], float)
    starts, counts = np.asarray(data.starts), [*np.asarray(data.counts).tolist(), 0]
    found = np.zeros(len(rewards))
    for left in range(1, len(counts) - 1):
        rows = starts[counts[left + 1] : counts[left]]  # those with so many after them
        found[rows] = rewards[rows] + discount * masks[rows] * found[rows + 1]
    return found


def first_rows(data: Dataset) -> np.ndarray:
    """The first row of every trajectory."""
    return np.concatenate([[0], np.unique(np.asarray(data.last))[:-1] + 1])
