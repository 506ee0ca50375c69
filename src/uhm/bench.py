"""What one update costs: each agent beside the others, and beside the matrix products it cannot do without.

The data are random and in memory, and what runs is the trainer's own compiled chunk. All programs of one population
size take turns, one short chunk each, and every number is a median over turns: the machine's drift meets all alike.

The products are read off the jaxpr of the update, loops multiplied out, so they count what the agent says and not what
anybody believes it says; then each shape is timed alone.
"""

import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from uhm import population
from uhm.agents import FAMILIES, family, spec_of
from uhm.data.dataset import Dataset, make_dataset
from uhm.errors import UhmError
from uhm.runs.environment import session

TURNS = 5
_ROWS = 501  # of a trajectory
_SIDE_BY_SIDE = 8  # operands of one timed product, so that caches are as cold as in training


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


class Product(NamedTuple):
    """One kind of matrix product, as `jax.lax.dot_general` takes it."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any  # ((contracted left, right), (batch left, right))
    dtype: str
    out_dtype: str

    @property
    def flops(self) -> int:
        """Two for each multiplication and addition."""
        (_, contracted), (_, batch) = self.dimensions
        free = [size for axis, size in enumerate(self.right) if axis not in (*contracted, *batch)]
        return 2 * int(np.prod(self.left)) * int(np.prod(free))


class Row(NamedTuple):
    """One agent at one population size. Times are per update step of the whole population."""

    agent: str
    members: int
    milliseconds: float
    milliseconds_per_member: float
    compile_seconds: float
    products: int
    gigaflops: float
    products_milliseconds: float
    update_to_products: float


def update(
    agents: Sequence[str] = tuple(FAMILIES),
    members: Sequence[int] = (1,),
    setting: Setting = Setting(),  # noqa: B008  frozen
    steps: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure all `agents` at all sizes of population; `steps` updates of each are timed."""
    for name, values in (("agents", agents), ("members", members)):
        if not values or len(set(values)) != len(values):
            raise UhmError(f"{name} are {list(values)}, and must be at least one, each once.")
    if min(members) < 1:
        raise UhmError(f"members are {list(members)}, and must be at least 1.")
    if steps is not None and steps < TURNS:
        raise UhmError(f"steps is {steps}, and must be at least {TURNS}, one for each turn.")
    kinds = [family(agent) for agent in agents]  # a wrong name fails before anything is compiled
    names = [kind.name for kind in kinds]
    return [row for size in members for row in _one_size(names, size, setting, steps, report)]


def _one_size(
    agents: Sequence[str], members: int, setting: Setting, steps: int | None, report: Callable[[str], None]
) -> list[Row]:
    chunk = None if steps is None else steps // TURNS
    subjects = []
    for agent in agents:
        report(f"compiling {agent}, {members} member{'s' if members > 1 else ''}")
        subjects.append(Subject(agent, members, setting, chunk))
    kinds = list(dict.fromkeys(kind for subject in subjects for kind in subject.products))
    report(f"compiling {len(kinds)} matrix products")
    dots = [timed_product(kind) for kind in kinds]
    times: list[list[float]] = [[] for _ in (*subjects, *dots)]
    for turn in range(TURNS):
        report(f"measuring, turn {turn + 1} of {TURNS}")
        for sink, run in zip(times, (*(subject.run for subject in subjects), *dots), strict=True):
            sink.append(run())
    medians = [statistics.median(series) for series in times]
    seconds_of = dict(zip(kinds, medians[len(subjects) :], strict=True))
    rows = []
    for subject, seconds in zip(subjects, medians, strict=False):
        alone = sum(count * seconds_of[kind] for kind, count in subject.products.items())
        rows.append(
            Row(
                agent=subject.agent,
                members=members,
                milliseconds=1e3 * seconds,
                milliseconds_per_member=1e3 * seconds / members,
                compile_seconds=subject.compile_seconds,
                products=sum(subject.products.values()),
                gigaflops=subject.gigaflops,
                products_milliseconds=1e3 * alone,
                update_to_products=seconds / alone,
            )
        )
    return rows


def _having(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass made of those values that it has a field for."""
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values})


class Subject:
    """An agent's population, compiled and ready to be timed chunk by chunk."""

    def __init__(self, agent: str, members: int, setting: Setting, chunk: int | None = None):
        data, kind = random_data(setting), family(agent)
        made = kind.make(_having(kind.Config, dataclasses.asdict(setting)), spec_of(data, setting.k_max))
        who = population.grid(data.names, range(members), {})[:members]
        hyper = population.stack_hyper(_having(kind.Hyper, {"schedule": False}), who)
        data = data.with_task(np.zeros(members, np.int32))
        self.agent = agent
        self._state = population.init(made, who, hyper)
        # One step of the very function that is timed, so that nothing an update does escapes the count.
        traced = jax.make_jaxpr(lambda p, h, d: population.advance(made, p, h, d, 1))(self._state, hyper, data)
        self.products = products_of(traced)
        self.chunk = chunk or _enough(self.gigaflops)
        self._advance = lambda state: population.advance(made, state, hyper, data, self.chunk)
        first, again = self.run(), self.run()
        self.compile_seconds = max(0.0, first - again) * self.chunk

    @property
    def gigaflops(self) -> float:
        """Of the matrix products of one step."""
        return sum(count * kind.flops for kind, count in self.products.items()) / 1e9

    def run(self) -> float:
        """Seconds per step over one chunk."""
        start = time.perf_counter()
        self._state, _ = jax.block_until_ready(self._advance(self._state))
        return (time.perf_counter() - start) / self.chunk


def _enough(gigaflops: float) -> int:
    """Steps of a chunk: what a chunk costs once, which a real run pays every few hundred steps, must not count."""
    return max(1, min(100, int(50 / gigaflops))) if jax.default_backend() == "cpu" else 100


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
    ).to_device()


def products_of(traced: ClosedJaxpr | Jaxpr) -> Counter[Product]:
    """Every matrix product of a program, and how often it is done: loops count as often as they turn."""
    found: Counter[Product] = Counter()
    for equation in (traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced).eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            avals: list[Any] = [variable.aval for variable in (*equation.invars, *equation.outvars)]
            left, right, out = avals
            dimensions = jax.tree.map(int, parameters["dimension_numbers"])
            found[Product(left.shape, right.shape, dimensions, str(left.dtype), str(out.dtype))] += 1
            continue
        inner = [products_of(j) for value in parameters.values() for j in _jaxprs(value)]
        if name == "while" and any(inner):
            raise UhmError("a matrix product sits in a loop of unknown length, so products cannot be counted.")
        if name == "cond":  # one branch is taken: the dearest
            inner = sorted(inner, key=lambda c: sum(k.flops * n for k, n in c.items()))[-1:]
        turns = parameters["length"] if name == "scan" else 1
        for counted in inner:
            for kind, count in counted.items():
                found[kind] += turns * count
    return found


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return [value]
    return [j for one in value for j in _jaxprs(one)] if isinstance(value, tuple | list) else []


def timed_product(kind: Product) -> Callable[[], float]:
    """A function that does the product on several operands and returns the seconds that one took."""
    keys = jax.random.split(jax.random.key(0), (2, _SIDE_BY_SIDE))
    lefts, rights = (
        [jax.random.normal(key, shape).astype(kind.dtype) for key in row]
        for row, shape in zip(keys, (kind.left, kind.right), strict=True)
    )

    @jax.jit
    def products(lefts: list[jax.Array], rights: list[jax.Array]) -> list[jax.Array]:
        dot = lambda a, b: jax.lax.dot_general(  # noqa: E731
            a, b, kind.dimensions, preferred_element_type=jnp.dtype(kind.out_dtype)
        )
        return [dot(a, b) for a, b in zip(lefts, rights, strict=True)]

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(products(lefts, rights))
        return (time.perf_counter() - start) / _SIDE_BY_SIDE

    run()
    return run


def ratios(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """For each size of population, every agent's time over the first one's."""
    first: dict[int, float] = {}
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        base = first.setdefault(row.members, row.milliseconds)
        found.setdefault(row.members, {})[row.agent] = row.milliseconds / base
    return found


def to_json(rows: Sequence[Row], setting: Setting, steps: int | None) -> dict[str, Any]:
    """Everything, with the versions and the hardware it was measured on."""
    return {
        "session": session(),
        "setting": {**dataclasses.asdict(setting), "steps": steps, "turns": TURNS},
        "rows": [row._asdict() for row in rows],
        "ratios": {str(size): values for size, values in ratios(rows).items()},
    }
