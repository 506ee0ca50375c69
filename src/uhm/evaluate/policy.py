"""A population's policies on the CPU, while training keeps the accelerator.

Any function `act(observations[members, lanes, S], count) -> actions[members, lanes, A]` will do for an evaluation.
`make_act` makes one from an agent, which can also act for one member alone: the evaluator prefers that, since members
share no weights and a batch that leaves most of them idle would still read them all.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from uhm.evaluate.records import Episode, brief

Act = Callable[[Float[np.ndarray, "members lanes S"], int], Any]
Groups = list[tuple[int, Int[np.ndarray, " _"]]]  # members and their rows, as many as they have


# Stands for the count of an action where a value is asked for: no evaluation acts that often.
_NO_ACTION = 2**32 - 1


class Policy:
    """`act` of an agent for stacked states, and its `value`; randomness is fresh for every `count` and member."""

    def __init__(
        self,
        agent_act: Callable[..., Any],
        states: Any,
        key: Any,
        device: Any,
        observation_size: int | None,
        agent_value: Callable[..., Any] | None,
    ):
        import jax

        self._device = device or jax.local_devices(backend="cpu")[0]
        leaves, structure = jax.tree.flatten(states)
        about = structure, tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves), observation_size
        self._act = _program(agent_act, *about)
        self._value = None if agent_value is None else _program(agent_value, *about)
        used = sorted({*self._act.reads, *(self._value.reads if self._value else ())})
        # A copy, and now: training goes on and overwrites the states in place.
        copies = jax.device_put([leaves[i] for i in used], self._device, may_alias=False)
        self._leaves = dict(zip(used, copies, strict=True))
        self._key = jax.device_put(key, self._device, may_alias=False)
        self._single: dict[int, list[Any]] = {}

    def __call__(self, observations: Float[np.ndarray, "members lanes S"], count: int) -> Any:
        """Actions of all members, in one batched program."""
        members = np.arange(len(observations), dtype=np.uint32)
        leaves = [self._leaves[i] for i in self._act.reads]
        return self._act.together(leaves, observations, self._key, np.uint32(count), members)

    def member(self, member: int, observations: Float[np.ndarray, "lanes S"], count: int) -> Any:
        """Actions of one member."""
        if member not in self._single:
            self._single[member] = [self._leaves[i][member] for i in self._act.reads]
        return self._act.alone(self._single[member], observations, self._key, np.uint32(count), np.uint32(member))

    def values(self, member: int, observations: Float[np.ndarray, "rows S"]) -> Any:
        """What one member expects of its policy; None where its agent does not say."""
        if self._value is None:
            return None
        leaves = [self._leaves[i][member] for i in self._value.reads]
        return self._value.alone(leaves, observations, self._key, np.uint32(_NO_ACTION), np.uint32(member))


def make_act(
    agent_act: Callable[..., Any],
    states: Any,
    key: Any,
    device: Any = None,
    *,
    observation_size: int | None = None,
    agent_value: Callable[..., Any] | None = None,
) -> Policy:
    """The policies of a population: `agent_act(state, observations, key)` for states stacked along a first axis.

    They are copied to the CPU at once, so the caller may overwrite `states` afterwards. With `observation_size` only
    those parts move that the policy reads: an actor, and not the models and optimisers beside it. With `agent_value`
    the policies also say what they expect, and the critics move too.
    """
    return Policy(agent_act, states, key, device, observation_size, agent_value)


class _Program(NamedTuple):
    """A function of an agent's state: which leaves it reads, and its programs for all members and for one."""

    reads: list[int]
    together: Callable[..., Any]
    alone: Callable[..., Any]


@functools.lru_cache(maxsize=16)
def _program(
    of_state: Callable[..., Any],
    structure: Any,
    shapes: tuple[tuple[tuple[int, ...], Any], ...],
    observation_size: int | None,
) -> _Program:
    """`of_state(state, observations, key)`, compiled once a run."""
    import jax

    used, of_leaves = _of_leaves(of_state, structure, shapes, observation_size)

    def one(leaves: list[Any], observations: Any, key: Any, count: Any, member: Any) -> Any:
        return of_leaves(leaves, observations, jax.random.fold_in(jax.random.fold_in(key, count), member))

    return _Program(used, jax.jit(jax.vmap(one, in_axes=(0, 0, None, None, 0))), jax.jit(one))


def _of_leaves(
    of_state: Callable[..., Any],
    structure: Any,
    shapes: tuple[tuple[tuple[int, ...], Any], ...],
    observation_size: int | None,
) -> tuple[list[int], Callable[..., Any]]:
    """Which leaves of a state `of_state` reads (without `observation_size` all), and it as a function of these."""
    import jax

    blank: list[Any] = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]

    def whole(leaves: list[Any], observations: Any, key: Any) -> Any:
        return of_state(jax.tree.unflatten(structure, leaves), observations, key)

    used = list(range(len(blank)))
    if observation_size is not None:
        inputs = (blank, jax.ShapeDtypeStruct((1, observation_size), np.float32), jax.random.key(0))
        jaxpr = jax.make_jaxpr(whole)(*inputs).jaxpr
        read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
        read |= {id(variable) for variable in jaxpr.outvars}
        used = [i for i in used if id(jaxpr.invars[i]) in read]

    def of_leaves(leaves: list[Any], observations: Any, key: Any) -> Any:
        everything = list(blank)
        for i, leaf in zip(used, leaves, strict=True):
            everything[i] = leaf
        return whole(everything, observations, key)

    return used, of_leaves


def narrowed(of_state: Callable[..., Any], states: Any, observation_size: int) -> tuple[Any, list[Any]]:
    """`of_state` as a function of what it reads of a state, and that of the stacked `states`: not copied."""
    import jax

    leaves, structure = jax.tree.flatten(states)
    shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
    used, of_leaves = _of_leaves(of_state, structure, shapes, observation_size)
    return of_leaves, [leaves[i] for i in used]


def by_member(members: Int[np.ndarray, " rows"], acting: Bool[np.ndarray, " rows"]) -> Groups:
    """The rows that want an action, by the member they belong to."""
    return [(int(member), np.flatnonzero(acting & (members == member))) for member in np.unique(members[acting])]


def act_rows(
    act: Act, population: int, groups: Groups, observations: Float[np.ndarray, "rows S"], count: int
) -> list[tuple[Int[np.ndarray, " _"], Any]]:
    """Actions for rows that belong to any members: pairs of row numbers and their actions, which may be too many.

    Batches are padded, for a new shape would compile a new program. Nothing here waits for results.
    """
    if isinstance(act, Policy):
        answers = []
        for member, rows in groups:
            batch = np.zeros((_padded(len(rows)), observations.shape[1]), np.float32)
            batch[: len(rows)] = observations[rows]
            answers.append((rows, act.member(member, batch, count)))
        return answers
    lanes = _padded(max(len(rows) for _, rows in groups))
    batch = np.zeros((population, lanes, observations.shape[1]), np.float32)
    for member, rows in groups:
        batch[member, : len(rows)] = observations[rows]
    actions = np.asarray(act(batch, count))
    return [(rows, actions[member]) for member, rows in groups]


def with_values(act: Act, records: list[Episode], first: Float[np.ndarray, "members episodes S"]) -> list[Episode]:
    """The records with what the policies expected at the first observations, where they say."""
    if not isinstance(act, Policy):
        return records
    expected = [act.values(member, own) for member, own in enumerate(first)]
    if any(values is None for values in expected):
        return records
    return [record._replace(value=brief(float(expected[record.member][record.episode]))) for record in records]


def _padded(rows: int) -> int:
    """Powers of two up to 8, then eighths of the next one, at least 8: few programs, and few rows that nobody needs."""
    power = 1 << (rows - 1).bit_length()
    part = max(8, power // 8)
    return power if rows <= 8 else -(-rows // part) * part
