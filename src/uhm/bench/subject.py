"""What is timed: an agent's population as the trainer runs it, and one agent in a loop on the host."""

import dataclasses
import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from uhm import kernels, population
from uhm.agents import family, spec_of
from uhm.bench.products import Product, on_gpu, products_of
from uhm.data.dataset import Dataset, make_dataset
from uhm.errors import UhmError

_ROWS = 501  # of a trajectory


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of everything; the default is a manipulation task of the paper."""

    hidden: tuple[int, ...] = (512, 512, 512, 512)
    batch_size: int = 256
    observation: int = 55
    action: int = 5
    k_max: int = 8
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "observation", "action", "k_max"):
            value = getattr(self, name)
            if not value or min(value if name == "hidden" else (value,)) < 1:
                raise UhmError(f"{name} is {value}, and must be at least 1.")


class Made(NamedTuple):
    """An agent with hyperparameters, and data."""

    agent: Any
    hyper: Any
    data: Dataset


def make(name: str, setting: Setting) -> Made:
    """lambda is at its final value, so that every horizon is in use."""
    kind, data = family(name), random_data(setting)
    # What MOPO and MOBILE remember costs memory, a quarter of a gigabyte each, but no time.
    values = dataclasses.asdict(setting) | {"rollout_age": 100}
    agent = kind.make(_having(kind.Config, values), spec_of(data, setting.k_max))
    return Made(agent, _having(kind.Hyper, {"schedule": False}), data)


class Several(NamedTuple):
    """Members of one agent, and their data."""

    agent: Any
    who: list[population.Member]
    hyper: Any
    data: Dataset

    def init(self) -> population.Population:
        return population.init(self.agent, self.who, self.hyper)


def several(name: str, members: int, setting: Setting) -> Several:
    """All on the same task, with seeds of their own."""
    made = make(name, setting)
    who = population.grid(made.data.names, range(members), {})
    hyper = population.stack_hyper(made.hyper, who)
    return Several(made.agent, who, hyper, made.data.with_task(np.zeros(members, np.int32)))


class Facts(NamedTuple):
    """What is known of a program before it runs."""

    agent: str
    members: int
    setting: Setting
    chunk: int
    products: Counter[Product]
    gigaflops: float
    state_bytes: int  # optimiser, targets and whatever else an update reads and writes
    memory_bytes: int
    compile_seconds: float


class Program(NamedTuple):
    """A compiled population that another process can load, and needs no tracing to run."""

    facts: Facts
    init: bytes
    advance: bytes
    results: tuple[int, int]  # how many arrays they return


def program(
    agent: str, members: int, setting: Setting, chunk: int | None = None, tunings: str | None = None
) -> Program:
    """Compile the trainer's own chunk for a population, and what makes its state.

    XLA tries out how to do each product on a GPU, which takes most of the time. `tunings` is a directory in which it
    looks first whether another program has done so.
    """
    facts, init, advance, _ = _compiled(agent, members, setting, chunk, tunings)
    (start, _, made), (onward, _, after) = serialize(init), serialize(advance)
    return Program(facts, start, onward, (made.num_leaves, after.num_leaves))


def _compiled(
    agent: str, members: int, setting: Setting, chunk: int | None, tunings: str | None = None
) -> tuple[Facts, Any, Any, Any]:
    """Also what `advance` is given beside the state."""
    options: dict[str, str | bool] = {"xla_gpu_per_fusion_autotune_cache_dir": tunings} if tunings else {}
    made = several(agent, members, setting)
    state, given = jax.eval_shape(made.init), (made.hyper, made.data.to_device())
    # Tracing takes seconds too, and most chunks are of the longest kind.
    start, steps = time.perf_counter(), chunk or _longest()
    traced = population.advance.trace(made.agent, state, *given, steps)
    # Of the very function that is timed, so that nothing an update does escapes the count.
    products = Counter({kind: count // steps for kind, count in products_of(traced.jaxpr).items()})
    gigaflops = sum(count * kind.flops for kind, count in products.items()) / 1e9
    chunk = chunk or _enough(gigaflops, members)
    if chunk != steps:
        traced = population.advance.trace(made.agent, state, *given, chunk)
    advance = traced.lower().compile(options)
    seconds = time.perf_counter() - start
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.state))
    facts = Facts(agent, members, setting, chunk, products, gigaflops, state_bytes, _memory(advance), seconds)
    return facts, jax.jit(made.init).lower().compile(), advance, given


class Subject:
    """A population that is ready to be timed chunk by chunk; it holds no state in between.

    The first run is not to be counted.
    """

    def __init__(self, agent: str, members: int, setting: Setting, chunk: int | None = None):
        self.facts, self._init, advance, given = _compiled(agent, members, setting, chunk)
        self._advance = lambda state: advance(state, *given)

    @classmethod
    def loaded(cls, program: Program) -> "Subject":
        """One that was compiled elsewhere."""
        if kernels.chosen():  # it says where the runtime is that the kernel of `uhm.ode_kernel` needs
            importlib.import_module("jax.experimental.mosaic.gpu")
        self = cls.__new__(cls)
        facts, made = program.facts, several(program.facts.agent, program.facts.members, program.facts.setting)
        given = [jax.tree.leaves(each) for each in (made.hyper, made.data.to_device())]
        state, results = ([0] * count for count in program.results)
        # Lists instead of the trees that it was compiled for: only the leaves count.
        self._init = deserialize_and_load(program.init, _structure(), jax.tree.structure(state))
        advance = deserialize_and_load(program.advance, _structure(state, *given), jax.tree.structure(results))
        self.facts, self._advance = facts, lambda state: advance(state, *given)
        return self

    def run(self) -> float:
        """Seconds per step over one chunk, from a fresh state: those of all agents would not fit into memory."""
        state = jax.block_until_ready(self._init())
        start = time.perf_counter()
        jax.block_until_ready(self._advance(state))
        return (time.perf_counter() - start) / self.facts.chunk


def _structure(*arguments: list[Any]) -> Any:
    """Of a call's arguments."""
    return jax.tree.structure((arguments, {}))


class HostLoop:
    """One agent as most code trains it, ready to be timed: rows gathered with numpy, one compiled call per step."""

    def __init__(self, agent: str, setting: Setting, steps: int):
        made, key = make(agent, setting), jax.random.key(2)
        self.agent, self._steps, self._gather = agent, steps, made.agent.sample.gather
        self._data = made.data.with_task(0)
        draws = jax.jit(jax.vmap(lambda key: made.agent.sample.draw(made.data, key)))
        self._rows = np.asarray(draws(jax.random.split(jax.random.key(1), steps + 1)))
        self._update = jax.jit(
            lambda state, batch, step: made.agent.update(state, made.hyper, batch, jax.random.fold_in(key, step)),
            donate_argnums=0,
        )
        self._state = made.agent.init(jax.random.key(0), made.hyper)
        self._step(0)

    def _step(self, step: int) -> None:
        self._state, _ = self._update(self._state, self._gather(self._data, self._rows[step]), step)
        if step % 10 == 0 or step == self._steps:  # as often as a progress bar would look
            jax.block_until_ready(self._state)

    def run(self) -> float:
        """Seconds per step."""
        start = time.perf_counter()
        for step in range(1, self._steps + 1):
            self._step(step)
        return (time.perf_counter() - start) / self._steps


def copy_bandwidth() -> float:
    """Bytes per second that the device reads and writes when it copies an array: the ceiling of everything else."""
    size = (1024 if on_gpu() else 256) << 20
    x = jnp.zeros(size // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return 2 * size / median_seconds(lambda: copy(x))


def median_seconds(run: Callable[[], Any], times: int = 5) -> float:
    """How long `run` takes until its results are there, the median of several times after one that compiles."""
    series = []
    for _ in range(times + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        series.append(time.perf_counter() - start)
    return statistics.median(series[1:])


def random_data(setting: Setting) -> Dataset:
    """Trajectories of random numbers: what an update costs does not depend on them."""
    rng, rows = np.random.default_rng(0), 20 * _ROWS
    rewards = -(rng.random((1, rows)) < 0.95).astype(np.int8)
    return make_dataset(
        observations=rng.random((rows, setting.observation), np.float32),
        actions=2 * rng.random((rows, setting.action), np.float32) - 1,
        terminals=np.arange(rows) % _ROWS == _ROWS - 1,
        rewards=rewards,
        masks=rewards < 0,
        names=("random",),
    )


def _having(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass made of those values that it has a field for."""
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values})


def _enough(gigaflops: float, members: int) -> int:
    """Steps of a chunk: what a chunk costs once, which a real run pays every few hundred steps, must not count.

    On a CPU a member's state is copied once in a chunk, so chunks are as long for many members as for one.
    """
    if on_gpu():
        return max(10, min(_longest(), int(80_000 / gigaflops)))
    return max(5, min(_longest(), int(150 * members / gigaflops)))


def _longest() -> int:
    return 200 if on_gpu() else 100


def _memory(compiled: Any) -> int:
    """What the program holds while it runs: arguments, results that do not take their place, and temporaries."""
    used = compiled.memory_analysis()
    sizes = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    return sizes + used.temp_size_in_bytes
