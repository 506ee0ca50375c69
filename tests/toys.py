"""Small data and agents that several test files share."""

import functools

import jax
import numpy as np

from uhm import population
from uhm.agents import Agent, family, spec_of
from uhm.agents.core import Config, Hyper
from uhm.data.dataset import Dataset, make_dataset

METHODS = ("uhm", "ghm", "mbtd", "dtd", "rebrac-dagger")
S, A, K = 3, 2, 4
# The cap at lambda 0.8 is K.
HYPER = Hyper(discount=0.9, q=0.3, schedule=False, steps=15)


def random_data(tasks: int = 1) -> Dataset:
    """Five short trajectories of random rows; a fifth of the masks are 0."""
    lengths, rng = [5, 2, 7, 3, 6], np.random.default_rng(0)
    rows = sum(lengths)
    return make_dataset(
        rng.normal(size=(rows, S)).astype(np.float32),
        rng.uniform(-1, 1, (rows, A)).astype(np.float32),
        np.isin(np.arange(rows), np.cumsum(lengths) - 1),
        rng.normal(size=(tasks, rows)).astype(np.float32),
        rng.random((tasks, rows)) > 0.2,
        tuple(f"t{i}" for i in range(tasks)),
    )


@functools.cache
def agent(name: str, k_max: int = K, batch_size: int = 16, compute_dtype: str = "float32") -> Agent:
    """A tiny agent on `random_data`; one object for each setting, so that what was compiled is used again."""
    config = Config(hidden=(16,), batch_size=batch_size, flow_steps=1, compute_dtype=compute_dtype)  # type: ignore
    return family(name).make(config, spec_of(random_data(), k_max))


def train(agent, members, hyper, data, steps, chunk):
    """Advance a fresh population, `chunk` steps at a time; the metrics of every chunk."""
    stacked = population.stack_hyper(hyper, members)
    pop = population.init(agent, members, stacked)
    data = data.with_task(np.array([member.column for member in members], np.int32)).to_device()
    history = []
    for _ in range(steps // chunk):
        pop, metrics = population.advance(agent, pop, stacked, data, chunk)
        history.append(jax.device_get(metrics))
    return pop, history


def expected_values(agent, pop, observations):
    """What each member of a population expects at the observations: [members, rows]."""
    return jax.vmap(lambda state: agent.value(state, observations, jax.random.key(0)))(pop.state)


def assert_trees(check, a, b, **tolerance):
    """`check` on every pair of leaves."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        check(np.asarray(x), np.asarray(y), **tolerance)
