"""The interface of an agent: four pure functions and an optional fifth. The rest of the package uses nothing else.

An algorithm is a factory `make(config, spec) -> Agent`. `config` holds what changes the compiled program; `hyper` is a
pytree of scalars that may differ from member to member of a population. Nothing here is jitted, vmapped or looped: the
trainer does that.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from uhm.data.dataset import Dataset
from uhm.data.sampling import Sampler, scaled

State = Any  # a pytree of arrays, private to the agent
Hyper = Any  # a pytree of scalars
Batch = Any
Metrics = dict[str, Float[Array, "*members"]]  # scalars, and one entry per member in a population


class Spec(NamedTuple):
    """What an agent knows about the data. `k_max` is the longest horizon that any member will ever use."""

    observation_size: int
    action_size: int
    k_max: int
    observation_low: np.ndarray
    observation_high: np.ndarray
    observation_mean: np.ndarray
    observation_std: np.ndarray
    change_std: np.ndarray  # [k_max, observation_size], of s_(t+n) - s_t
    flag_std: float  # of the indicator that a task ends within a few steps

    def scale(self, observations: Any) -> Any:
        """Observations as numbers with mean 0 and standard deviation 1 in the data."""
        if observations.shape[-1] != self.observation_size:  # a single number would be broadcast
            raise TypeError(f"observations have {observations.shape[-1]} numbers, not {self.observation_size}")
        return (observations - self.observation_mean) / self.observation_std

    def unscale(self, observations: Any) -> Any:
        """What `scale` was given."""
        return observations * self.observation_std + self.observation_mean

    def scaled(self) -> "Spec":
        """What an agent is told that sees scaled observations."""
        return self._replace(
            observation_low=self.scale(self.observation_low),
            observation_high=self.scale(self.observation_high),
            observation_mean=np.zeros_like(self.observation_mean),
            observation_std=np.ones_like(self.observation_std),
            change_std=self.change_std / self.observation_std,
        )


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings that change the compiled program and that all agents of this package have; agents add their own."""

    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Hidden layer widths of every network."""
    batch_size: int = 256
    """Transitions per gradient step."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matmuls and of the gradients of weights; parameters and accumulation are always float32."""

    @property
    def dtype(self) -> str | None:
        """`compute_dtype` as networks take it: None is float32, with nothing rounded."""
        return None if self.compute_dtype == "float32" else self.compute_dtype


class Agent(NamedTuple):
    """`sample` draws the rows of the data that an update needs; the agent defines it, the trainer only calls it.

    `value` is the discounted return that the agent expects of its policy from a state on. Evaluations compare it with
    the return obtained; without it they only report the latter.
    """

    init: Callable[[PRNGKeyArray, Hyper], State]
    sample: Sampler
    update: Callable[[State, Hyper, Batch, PRNGKeyArray], tuple[State, Metrics]]
    act: Callable[[State, Float[Array, "*batch S"], PRNGKeyArray], Float[Array, "*batch A"]]
    value: Callable[[State, Float[Array, "*batch S"], PRNGKeyArray], Float[Array, "*batch"]] | None = None


def normalised(make: Callable[[Any, Spec], Agent], config: Any, spec: Spec) -> Agent:
    """The agent that `make` makes, with observations scaled by the data's mean and standard deviation on their way in.

    Nothing inside an agent knows of it: its networks and models live in scaled observations.
    """
    agent = make(config, spec.scaled())

    def act(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch A"]:
        return agent.act(state, spec.scale(observations), key)

    def value(state: State, observations: Float[Array, "*batch S"], key: PRNGKeyArray) -> Float[Array, "*batch"]:
        assert agent.value is not None
        return agent.value(state, spec.scale(observations), key)

    sample = scaled(agent.sample, spec.observation_mean, spec.observation_std)
    return agent._replace(sample=sample, act=act, value=None if agent.value is None else value)


def spec_of(dataset: Dataset, k_max: int) -> Spec:
    """The spec of a data set, its statistics taken over all rows in float64 and in blocks."""
    observations = dataset.observations
    total = np.zeros(observations.shape[1])
    squares, low, high = total.copy(), total + np.inf, total - np.inf
    for start in range(0, observations.shape[0], 1 << 18):
        block = np.asarray(observations[start : start + (1 << 18)], np.float64)
        total, squares = total + block.sum(0), squares + np.square(block).sum(0)
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
    mean = total / observations.shape[0]
    std = np.sqrt(np.maximum(squares / observations.shape[0] - mean**2, 0.0))
    # A dimension that never changes has nothing to scale.
    std = np.where(std < 1e-6, 1.0, std)
    as_float = lambda x: x.astype(np.float32)  # noqa: E731
    return Spec(
        observation_size=observations.shape[1],
        action_size=dataset.actions.shape[1],
        k_max=k_max,
        observation_low=as_float(low),
        observation_high=as_float(high),
        observation_mean=as_float(mean),
        observation_std=as_float(std),
        change_std=as_float(change_std(dataset, k_max)),
        # Bounded below: if the data have few ends or none, those that an agent finds must not become huge numbers.
        flag_std=max(0.02, float(np.sqrt(dataset.end_share * (1 - dataset.end_share)))),
    )


def change_std(dataset: Dataset, k_max: int, most: int = 1 << 17) -> np.ndarray:
    """The standard deviation of s_(t+n) - s_t within trajectories, for n = 1..k_max: [k_max, S].

    Uses at most `most` pairs for each n, evenly spread. Beyond the longest trajectory the value of the last n is
    repeated.
    """
    observations, found = dataset.observations, []
    for n in range(1, k_max + 1):
        if n < dataset.counts.shape[0]:
            count = int(dataset.counts[n])
            rows = np.asarray(dataset.starts[: count : -(-count // most)])
            found.append(
                np.std(np.asarray(observations[rows + n]) - np.asarray(observations[rows]), axis=0, dtype=float)
            )
        else:
            found.append(found[-1])
    return np.stack(found)


def stop(tree: Any) -> Any:
    """The same tree with no gradient through it."""
    return jax.lax.stop_gradient(tree)
