"""A population: many members of one agent (tasks x seeds x hyperparameters) advanced by one compiled program.

This is the only module that knows there is more than one agent. Members are the leading axis of every leaf; the rows of
the data are shared, only the task's column differs. A member's randomness at a step depends only on its own key and the
step, so a member of a population and the same agent trained alone see the same batches and the same noise, and a
resumed run continues as if it had never stopped.
"""

import functools
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from uhm import kernels, tasks
from uhm.agents import descent
from uhm.agents.base import Agent, Metrics
from uhm.data.dataset import Dataset
from uhm.errors import UhmError
from uhm.numerics import apart

# A critic loss beyond this means divergence: TD errors of 1e6 are a thousand times the largest return there is.
DIVERGED = 1e12

_RESERVED = {"step", "seconds"}  # of a line of the log

# XLA options for GPUs; other devices ignore them. The networks of an update learn independently of one another, and one
# small matmul leaves most of a GPU idle, but XLA runs one kernel after another unless told that those of a CUDA graph
# may overlap. It would also merge two matmuls that share an input (the critics at the stored action and at the
# policy's), which costs more in stacking and unstacking rows than it gains. And it would split the matmuls of a single
# agent along their inner dimension and add up the parts in another kernel: more parallelism, but a longer chain.
SIDE_BY_SIDE = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_dot_merger_threshold_mb": 0,
    "xla_disable_hlo_passes": "splitk-rewriter",
}

# With at least this many parameters each, members are advanced one after another on a CPU, with plain instead of
# batched matmuls. Side by side, their activations fall out of the caches: with 4x512 networks (2.5 to 10 million
# parameters) and batches of 256, each of five DTD agents took 138 ms per step on two cores, one after another 109.
# (MOBILE 576 and 398, MAC 1045 and 758, the first number of each measured beside other work.) 4x256 (from 0.6 million
# on) gains a fifth or nothing, 4x128 loses as often as it gains, and 2x64 (up to 0.06 million) would lose up to a
# fifth. The choice depends only on shapes and the device, so a resumed run makes the same one.
LARGE = 500_000


class Member(NamedTuple):
    """One agent of a population: its task, its seed, and the hyperparameters in which it differs."""

    task: str
    column: int  # of the data set
    seed: int
    hyper: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> Key[Array, ""]:
        """Differs between tasks of the same seed; is the same for all hyperparameters, to make them comparable."""
        return jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(tasks.title(self.task).encode()) & 0x7FFFFFFF)


class Population(NamedTuple):
    """Everything that training changes. `alive` is False for a member that diverged and was reset and frozen."""

    state: Any  # the agents' states, stacked
    key: Key[Array, " members"]
    alive: Bool[Array, " members"]
    step: Int[Array, ""]


def grid(tasks: Sequence[str], seeds: Sequence[int], axes: Mapping[str, Sequence[Any]]) -> list[Member]:
    """Every combination: tasks vary slowest, then seeds, then hyperparameters."""
    settings = [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [
        Member(task, column, seed, setting)
        for column, task in enumerate(tasks)
        for seed in seeds
        for setting in settings
    ]


def stack_hyper(hyper: Any, members: Sequence[Member]) -> Any:
    """The common hyperparameters, overridden by each member's own: one entry per member."""
    base = {name: [getattr(hyper, name)] * len(members) for name in hyper.__dataclass_fields__}
    for index, member in enumerate(members):
        for name, value in member.hyper:
            base[name][index] = value
    return type(hyper)(**{name: _column(values) for name, values in base.items()})


def _column(values: Sequence[Any]) -> Array:
    """Flags stay boolean and all numbers become float32: a hyperparameter is a real number, however it was written."""
    kind = jnp.bool_ if all(isinstance(value, bool) for value in values) else jnp.float32
    return jnp.asarray(values, kind)


@functools.partial(jax.jit, static_argnums=0)
def _init(agent: Agent, keys: Key[Array, " members"], hyper: Any) -> Any:
    return jax.vmap(agent.init)(keys, hyper)


def init(agent: Agent, members: Sequence[Member], hyper: Any) -> Population:
    """All members at step 0; `hyper` comes from `stack_hyper`."""
    split = jax.vmap(jax.random.split)(jnp.stack([member.key for member in members]))
    alive = jnp.ones(len(members), bool)
    return Population(_init(agent, split[:, 0], hyper), split[:, 1], alive, jnp.zeros((), jnp.int32))


def step_keys(key: Key[Array, ""], step: Int[Array, ""]) -> tuple[Key[Array, ""], Key[Array, ""]]:
    """A member's keys of one step: for drawing its batch, and for its update."""
    key_sample, key_update = jax.random.split(jax.random.fold_in(key, step))
    return key_sample, key_update


@functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=1, compiler_options=SIDE_BY_SIDE)
def advance(
    agent: Agent, population: Population, hyper: Any, dataset: Dataset, steps: int
) -> tuple[Population, Metrics]:
    """`steps` updates of every member on data that live on the device; metrics are means over the steps."""

    def batch_of(task: Int[Array, ""], key: Key[Array, ""], _: None) -> Any:
        return agent.sample(dataset.with_task(task), key)

    return _every(agent, population, hyper, steps, batch_of, dataset.task, None)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=SIDE_BY_SIDE)
def advance_on(agent: Agent, population: Population, hyper: Any, batches: Any) -> tuple[Population, Metrics]:
    """The same on batches that were gathered elsewhere: leaves are [steps, members, ...]."""
    steps = jax.tree.leaves(batches)[0].shape[0]
    members_first = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batches)
    return _every(agent, population, hyper, steps, lambda _, key, batch: batch, None, members_first)


def sample_keys(population: Population, steps: int) -> Key[Array, "steps members"]:
    """The keys with which `advance` would draw the batches of the next steps."""
    of_members = jax.vmap(lambda key, step: step_keys(key, step)[0], in_axes=(0, None))
    return jax.vmap(of_members, in_axes=(None, 0))(population.key, population.step + jnp.arange(steps))


def _every(
    agent: Agent, population: Population, hyper: Any, steps: int, batch_of: Any, tasks: Any, batches: Any
) -> tuple[Population, Metrics]:
    """The chunks of all members, side by side or one after the other."""

    members = population.alive.size
    loop = loop_of(members, batches is None)

    def chunk(state: Any, key: Key[Array, ""], alive: Bool[Array, ""], hyper: Any, task: Any, batches: Any) -> Any:
        member = Population(state, key, alive, population.step)
        return _chunk(agent, member, hyper, steps, functools.partial(batch_of, task), batches, loop)

    each = (population.state, population.key, population.alive, hyper, tasks, batches)
    # Members take turns by whole chunks, not by steps: a state is taken out of the stack and put back once per chunk.
    in_turn = _one_by_one(population.state)
    with kernels.for_agents(members):
        state, alive, metrics = jax.lax.map(lambda one: chunk(*one), each) if in_turn else jax.vmap(chunk)(*each)
    return Population(state, population.key, alive, population.step + steps), metrics


class Loop(NamedTuple):
    """How a chunk's loop is compiled; results do not depend on it.

    `ahead`: a step draws the batch of the next one, so that learning can start at once; otherwise a GPU has nothing to
    do while random numbers are drawn and rows gathered. This makes the step of 25 UHM agents 1.3 % shorter, and that of
    five 0.9 % longer. `together`: the number of steps per loop iteration. `halved`: weights are carried from step to
    step in halves (`uhm.agents.descent`), which makes the step of 25 UHM agents 5 % shorter.
    """

    ahead: bool
    together: int
    halved: bool


def loop_of(members: int, draws: bool) -> Loop:
    """The loop for this number of agents; `draws`: they draw their batches themselves instead of being given them."""
    gpu = jax.default_backend() == "gpu"
    many = gpu and members >= kernels.MANY
    # One agent leaves a GPU idle while the last network of a step is updated; the next step's first kernels can run
    # then.
    return Loop(ahead=many and draws, together=2 if gpu and members == 1 else 1, halved=many)


def _chunk(
    agent: Agent, member: Population, hyper: Any, steps: int, batch_of: Any, batches: Any, loop: Loop
) -> tuple[Any, Bool[Array, ""], Metrics]:
    """One member's chunk (leaves have no axis of members): its state, whether it is alive, and its mean metrics."""

    def draw(step: Int[Array, ""], batch: Any) -> Any:
        # Without the barrier XLA gathers rows where they are used, fused with what a model imagines, so that even
        # losses that need only the batch wait for the model.
        return apart(batch_of(step_keys(member.key, step)[0], batch))

    @functools.partial(jax.jit, inline=True)  # so that `eval_shape` below and the loop share one trace
    def one(pop: Population, batch: Any) -> tuple[Population, Metrics]:
        new, metrics = agent.update(pop.state, hyper, batch, step_keys(pop.key, pop.step)[1])
        metrics = _checked(metrics)
        return Population(new, pop.key, pop.alive & healthy(metrics), pop.step + 1), metrics

    def body(carry: tuple[Population, Metrics, Any], given: Any) -> tuple[tuple[Population, Metrics, Any], None]:
        pop, total, batch = carry
        step = pop.step
        pop, metrics = one(pop, batch if loop.ahead else draw(step, given))
        coming = draw(step + 1, None) if loop.ahead else None
        return (pop, jax.tree.map(jnp.add, total, metrics), coming), None

    given = jax.tree.map(lambda x: x[0], batches)
    first = draw(member.step, None) if loop.ahead else None
    shapes = jax.eval_shape(lambda pop, given: one(pop, draw(pop.step, given)), member, given)[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    start = member._replace(state=_learners(descent.halved, member.state)) if loop.halved else member
    (after, total, _), _ = jax.lax.scan(body, (start, zeros, first), batches, length=steps, unroll=loop.together)
    after = after._replace(state=_learners(descent.whole, after.state)) if loop.halved else after
    # A member that diverged goes back to where the chunk began, the last state known to be sound, and stays there. This
    # is done once per chunk, since at every step it would cost 5 to 10 % of a 4x512 step on a CPU. Metrics only reflect
    # the parameters before a step, so those after the last step are checked too.
    finite = [jnp.isfinite(leaf).all() for leaf in _learned(after.state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    alive = after.alive & jnp.stack(finite).all()
    state = jax.tree.map(lambda n, o: jnp.where(alive, n, o), after.state, member.state)
    return state, alive, jax.tree.map(lambda x: x / steps, total)


def _checked(metrics: dict[str, Any]) -> Metrics:
    """An agent's metrics as the numbers that are averaged and logged."""
    if taken := _RESERVED & set(metrics):
        raise UhmError(f"the agent logs a metric called '{min(taken)}', which every log has: give it another name.")
    for name, value in metrics.items():
        if jnp.shape(value):
            raise UhmError(f"the agent's metric '{name}' has shape {jnp.shape(value)}, and must be a single number.")
    return {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}


def _learners(change: Any, state: Any) -> Any:
    """The state with `change` applied to every `descent.State` in it."""
    is_one = lambda node: isinstance(node, descent.State)  # noqa: E731
    return jax.tree.map(lambda node: change(node) if is_one(node) else node, state, is_leaf=is_one)


def _learned(state: Any) -> list[Any]:
    """The leaves that learn. A user's own agent need not call them `params`."""
    return jax.tree.leaves(getattr(state, "params", state))


def _one_by_one(state: Any) -> bool:
    """Whether members take turns: on a CPU, where their networks are large."""
    sizes = [math.prod(leaf.shape[1:]) for leaf in _learned(state)]
    return jax.default_backend() == "cpu" and sum(sizes) >= LARGE


def healthy(metrics: Metrics) -> Bool[Array, "*members"]:
    """Which members have not diverged: all their metrics are finite and the critic's loss is below `DIVERGED`."""
    if not metrics:
        return jnp.ones((), bool)
    finite = jnp.stack([jnp.isfinite(value) for value in metrics.values()]).all(0)
    loss = metrics.get("critic_loss")
    return finite if loss is None else finite & (loss < DIVERGED)


@functools.partial(jax.jit, static_argnums=0)
def act(agent: Agent, state: Any, observations: Float[Array, "members lanes S"], key: Key[Array, ""]) -> Array:
    """Actions of every member for its own observations."""
    keys = jax.random.split(key, observations.shape[0])
    return jax.vmap(agent.act)(state, observations, keys)
