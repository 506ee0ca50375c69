"""What one update costs: each agent beside the others, and beside what no update can do without.

The data are random and in memory, and what runs is the trainer's own compiled chunk. All programs of one precision,
of all sizes of the population, take turns, one short chunk each, and every number is a median over turns: the machine's
drift, which can be a fifth within minutes, meets all alike. Several such benchmarks on one machine wait for each other
(`uhm.bench.turns`).

Two ceilings are measured in the same run: the update's matrix products, shape by shape (on a GPU many of a shape at
once, so that it is full), and copying its state, which every update reads and writes once. The larger of both times
over that of the update is the fraction of the ceiling; not their sum, for a device may do both at once.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from uhm.agents import FAMILIES, family
from uhm.bench import in_processes
from uhm.bench.products import Product, products_of, timed_product
from uhm.bench.subject import HostLoop, Setting, Subject, copy_bandwidth, median_seconds, on_gpu, random_data
from uhm.bench.turns import measuring, preparing
from uhm.errors import UhmError
from uhm.runs.environment import session

__all__ = [
    "TURNS",
    "HostLoop",
    "Product",
    "Row",
    "Setting",
    "Subject",
    "check",
    "compile_loop",
    "compile_update",
    "fitting",
    "in_processes",
    "markdown",
    "measuring",
    "median_seconds",
    "on_gpu",
    "preparing",
    "products_of",
    "random_data",
    "ratios",
    "timed_product",
    "to_json",
    "update",
]

TURNS = 5
_T = TypeVar("_T")


class Row(NamedTuple):
    """One agent at one population size. Times are per update step of the whole population."""

    agent: str
    members: int
    compute_dtype: str
    milliseconds: float
    milliseconds_per_member: float
    compile_seconds: float
    products: int
    gigaflops: float
    teraflops_per_second: float
    products_milliseconds: float
    update_to_products: float
    copy_milliseconds: float
    of_ceiling: float
    gigabytes: float


def update(
    agents: Sequence[str] = tuple(FAMILIES),
    members: Sequence[int] = (1,),
    settings: Sequence[Setting] = (Setting(),),
    steps: int | None = None,
    report: Callable[[str], None] = lambda _: None,
    processes: int = 1,
) -> Iterator[list[Row]]:
    """Measure all `agents` in every size of population, a list of rows for each setting; `steps` of each are timed.

    What does not fit into memory has no row. Several `processes` compile side by side.
    """
    check(agents, members, steps)
    names, chunk = [family(agent).name for agent in agents], None if steps is None else steps // TURNS
    for setting in settings:
        if processes == 1:
            yield _one_group(names, members, setting, chunk, report, {})
            continue
        programs = [(name, size, setting, chunk) for size, name in itertools.product(members, names)]
        with in_processes.cache() as directory:
            with preparing():
                seconds = in_processes.each(compile_update, programs, processes, directory, report)
            yield _one_group(names, members, setting, chunk, report, dict(zip(programs, seconds, strict=True)))


def compile_update(*program: Any) -> float | None:
    """How long it took, for processes that fill the cache; None if there is not enough memory for it."""
    subject = fitting(Subject, *program)
    return None if subject is None else subject.compile_seconds


def compile_loop(agent: str, setting: Setting) -> None:
    """The same of a loop on the host."""
    HostLoop(agent, setting, 1)


def fitting(do: Callable[..., _T], *arguments: Any) -> _T | None:
    """What it returns; None if the memory that is free is not enough for it."""
    try:
        return do(*arguments)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def check(agents: Sequence[str], members: Sequence[int], steps: int | None) -> None:
    """Refuse what cannot be measured, before anything is compiled."""
    for name, values in (("agents", agents), ("members", members)):
        if not values or len(set(values)) != len(values):
            raise UhmError(f"{name} are {list(values)}, and must be at least one, each once.")
    if min(members) < 1:
        raise UhmError(f"members are {list(members)}, and must be at least 1.")
    if steps is not None and steps < TURNS:
        raise UhmError(f"steps is {steps}, and must be at least {TURNS}, one for each turn.")
    for agent in agents:
        family(agent)


def _one_group(
    names: Sequence[str],
    sizes: Sequence[int],
    setting: Setting,
    chunk: int | None,
    report: Callable[[str], None],
    compile_seconds: Mapping[Any, float | None],
) -> list[Row]:
    """The rows of programs that take turns; `compile_seconds` of those that were compiled before."""
    subjects = []
    with preparing():
        for size, name in itertools.product(sizes, names):
            report(f"compiling {name}, {size} member{'s' if size > 1 else ''}, {setting.compute_dtype}")
            subject = fitting(Subject, name, size, setting, chunk)
            if subject is not None:
                subject.compile_seconds = compile_seconds.get((name, size, setting, chunk)) or subject.compile_seconds
            subjects.append(subject)
        subjects = [subject for subject in subjects if subject is not None]
        kinds = list(dict.fromkeys(kind for subject in subjects for kind in subject.products))
        report(f"compiling {len(kinds)} matrix products")
        products = [timed_product(kind) for kind in kinds]
    report("waiting for other benchmarks on this machine")
    with measuring():
        bandwidth = copy_bandwidth()
        report("running everything once")
        subjects = [subject for subject in subjects if fitting(subject.run) is not None]
        runs = [*(subject.run for subject in subjects), *products]
        times: list[list[float]] = [[] for _ in runs]
        for turn in range(TURNS):
            report(f"measuring, turn {turn + 1} of {TURNS}")
            for sink, run in zip(times, runs, strict=True):
                sink.append(run())
    medians = [statistics.median(series) for series in times]
    seconds_of = dict(zip(kinds, medians[len(subjects) :], strict=True))
    return [_row(subject, seconds, seconds_of, bandwidth) for subject, seconds in zip(subjects, medians, strict=False)]


def _row(subject: Subject, seconds: float, seconds_of: Mapping[Product, float], bandwidth: float) -> Row:
    alone = sum(count * seconds_of[kind] for kind, count in subject.products.items())
    copying = 2 * subject.state_bytes / bandwidth  # read and written
    return Row(
        agent=subject.agent,
        members=subject.members,
        compute_dtype=subject.setting.compute_dtype,
        milliseconds=1e3 * seconds,
        milliseconds_per_member=1e3 * seconds / subject.members,
        compile_seconds=subject.compile_seconds,
        products=sum(subject.products.values()),
        gigaflops=subject.gigaflops,
        teraflops_per_second=subject.gigaflops / seconds / 1e3,
        products_milliseconds=1e3 * alone,
        update_to_products=seconds / alone,
        copy_milliseconds=1e3 * copying,
        of_ceiling=max(alone, copying) / seconds,
        gigabytes=subject.memory_bytes / 1e9,
    )


def ratios(rows: Sequence[Row], to: str) -> dict[int, dict[str, float]]:
    """For each size of population in which the agent `to` was measured, every agent's time over its time."""
    base = {row.members: row.milliseconds for row in rows if row.agent == to}
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.members in base:
            found.setdefault(row.members, {})[row.agent] = row.milliseconds / base[row.members]
    return found


def to_json(
    rows: Sequence[Row], setting: Setting, steps: int | None, loops: dict[str, float] | None = None
) -> dict[str, Any]:
    """Everything, with the versions and the hardware it was measured on; `loops` are the host loops' milliseconds."""
    return {
        "session": session(),
        "setting": {**dataclasses.asdict(setting), "steps": steps, "turns": TURNS},
        "rows": [row._asdict() for row in rows],
        "host_loop": loops or {},
    }


def markdown(rows: Sequence[Row], loops: dict[str, float]) -> str:
    """The table for a document."""
    heads = (
        "agent",
        "members",
        "products in",
        "ms / step",
        "ms / agent-step",
        "TFLOP/s",
        "of ceiling",
        "GB",
        "compile, s",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---|---:|---|" + "---:|" * (len(heads) - 3)]
    for row in rows:
        numbers = (f"{row.milliseconds:.2f}", f"{row.milliseconds_per_member:.3f}", f"{row.teraflops_per_second:.2f}")
        rest = (f"{100 * row.of_ceiling:.0f} %", f"{row.gigabytes:.2f}", f"{row.compile_seconds:.0f}")
        lines.append(f"| `{row.agent}` | {row.members} | {row.compute_dtype} | " + " | ".join((*numbers, *rest)) + " |")
    if loops:
        lines += ["", "One agent in a loop on the host, rows gathered with numpy, one compiled call per step:", ""]
        lines += ["| agent | ms / step |", "|---|---:|", *(f"| `{name}` | {ms:.2f} |" for name, ms in loops.items())]
    return "\n".join(lines) + "\n"
