"""What one update costs: each agent beside the others, and beside what no update can do without.

The data are random and in memory, and what runs is the trainer's own compiled chunk. All programs of one precision,
of all sizes of the population, take turns, one short chunk each, and every number is a median over turns: the machine's
drift, which can be a fifth within minutes, meets all alike. Several such benchmarks on one machine wait for each other
(`uhm.bench.turns`), and one that was stopped goes on with what it has not measured (`uhm.bench.record`).

Two ceilings are measured in the same run: the update's matrix products, shape by shape (on a GPU very many of a shape
at once, so that it is full), and copying its state, which every update reads and writes once. The larger of both times
over that of the update is the fraction of the ceiling; not their sum, for a device may do both at once.
"""

import functools
import itertools
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from uhm.agents import FAMILIES, family
from uhm.bench import in_processes
from uhm.bench.products import Product, products_of, timed_as, timed_product
from uhm.bench.subject import (
    Facts,
    HostLoop,
    Program,
    Setting,
    Subject,
    copy_bandwidth,
    median_seconds,
    on_gpu,
    program,
    random_data,
)
from uhm.bench.turns import measuring, preparing
from uhm.errors import UhmError

__all__ = [
    "TURNS",
    "HostLoop",
    "Product",
    "Row",
    "Setting",
    "Subject",
    "check",
    "compiled",
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
    "timed_loop",
    "timed_product",
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
    turns: int = TURNS  # fewer where the measurement was interrupted


def update(
    agents: Sequence[str] = tuple(FAMILIES),
    members: Sequence[int] = (1,),
    settings: Sequence[Setting] = (Setting(),),
    steps: int | None = None,
    report: Callable[[str], None] = lambda _: None,
    processes: int = 1,
    known: Collection[tuple[str, int, str]] = (),
) -> Iterator[list[Row]]:
    """Measure all `agents` in every size of population, a list of rows for each setting; `steps` of each are timed.

    What does not fit into memory has no row. Several `processes` compile side by side. `known` are the (agent, members,
    compute_dtype) that need not be measured. Who interrupts it gets the rows of the turns that were done, and then the
    interrupt.
    """
    check(agents, members, steps)
    names, chunk = [family(agent).name for agent in agents], None if steps is None else steps // TURNS
    products: dict[Product, Callable[[], float]] = {}
    for setting in settings:
        programs = [(name, size, setting, chunk) for size, name in itertools.product(members, names)]
        programs = [one for one in programs if (*one[:2], setting.compute_dtype) not in known]
        if programs:
            with preparing():
                subjects = compiled(programs, processes, report, functools.partial(_prepare, products))
            rows, interrupt = _measured([subject for subject in subjects if subject is not None], products, report)
            yield rows
            if interrupt is not None:
                raise interrupt


def _prepare(products: dict[Product, Callable[[], float]], facts: Facts) -> None:
    """Compile the products of a program that were not among those of others."""
    for kind in dict.fromkeys(map(timed_as, facts.products)):
        if kind not in products:
            products[kind] = timed_product(kind)


def compiled(
    programs: Sequence[tuple[Any, ...]],
    processes: int,
    report: Callable[[str], None],
    prepare: Callable[[Facts], None] = lambda _: None,
) -> list[Subject | None]:
    """A subject for each (agent, members, setting, chunk), None where memory is not enough for it.

    `prepare` is done for each of them, while other processes compile the rest.
    """
    if processes > 1:
        with tempfile.TemporaryDirectory() as tunings:
            jobs = [(*one, tunings if on_gpu() else None) for one in programs]
            meanwhile = lambda made: None if made is None else prepare(made.facts)  # noqa: E731
            made = in_processes.each(_fitting_program, jobs, processes, report, meanwhile)
        return [None if one is None else fitting(Subject.loaded, one) for one in made]
    subjects = []
    for agent, members, setting, chunk in programs:
        report(f"compiling {agent}, {members} member{'s' if members > 1 else ''}, {setting.compute_dtype}")
        subject = fitting(Subject, agent, members, setting, chunk)
        if subject is not None:
            prepare(subject.facts)
        subjects.append(subject)
    return subjects


def _fitting_program(*arguments: Any) -> Program | None:
    """In a process of its own."""
    if not on_gpu():
        # What a CPU has from JAX's cache cannot be handed on: another process would not find its functions.
        jax.config.update("jax_enable_compilation_cache", False)
    return fitting(program, *arguments)


def timed_loop(agent: str, setting: Setting, steps: int) -> tuple[str, float]:
    """The agent, and the seconds per step of one in a loop on the host."""
    with preparing():
        loop = HostLoop(agent, setting, steps)
    with measuring():
        return agent, loop.run()


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


def _measured(
    subjects: Sequence[Subject], products: Mapping[Product, Callable[[], float]], report: Callable[[str], None]
) -> tuple[list[Row], KeyboardInterrupt | None]:
    """The rows of programs that take turns with each other and with their products, and what cut the turns short."""
    wanted = list(dict.fromkeys(timed_as(kind) for subject in subjects for kind in subject.facts.products))
    report("waiting for other benchmarks on this machine")
    with measuring():
        bandwidth = copy_bandwidth()
        report("running everything once")
        subjects = [subject for subject in subjects if fitting(subject.run) is not None]
        runs = [*(subject.run for subject in subjects), *(products[kind] for kind in wanted)]
        times: list[list[float]] = [[] for _ in runs]
        interrupt = None
        try:
            for turn in range(TURNS):
                report(f"measuring, turn {turn + 1} of {TURNS}")
                for sink, run in zip(times, runs, strict=True):
                    sink.append(run())
        except KeyboardInterrupt as stop:
            if not all(times):
                raise
            interrupt = stop
    medians = [statistics.median(series) for series in times]
    seconds_of = dict(zip(wanted, medians[len(subjects) :], strict=True))
    turns = min(map(len, times), default=TURNS)
    rows = [_row(s.facts, seconds, seconds_of, bandwidth) for s, seconds in zip(subjects, medians, strict=False)]
    return [row._replace(turns=turns) for row in rows], interrupt


def _row(facts: Facts, seconds: float, seconds_of: Mapping[Product, float], bandwidth: float) -> Row:
    timed = [(kind, timed_as(kind), count) for kind, count in facts.products.items()]
    alone = sum(count * kind.flops / one.flops * seconds_of[one] for kind, one, count in timed)
    copying = 2 * facts.state_bytes / bandwidth  # read and written
    return Row(
        agent=facts.agent,
        members=facts.members,
        compute_dtype=facts.setting.compute_dtype,
        milliseconds=1e3 * seconds,
        milliseconds_per_member=1e3 * seconds / facts.members,
        compile_seconds=facts.compile_seconds,
        products=sum(facts.products.values()),
        gigaflops=facts.gigaflops,
        teraflops_per_second=facts.gigaflops / seconds / 1e3,
        products_milliseconds=1e3 * alone,
        update_to_products=seconds / alone,
        copy_milliseconds=1e3 * copying,
        of_ceiling=max(alone, copying) / seconds,
        gigabytes=facts.memory_bytes / 1e9,
    )


def ratios(rows: Sequence[Row], to: str) -> dict[int, dict[str, float]]:
    """For each size of population in which the agent `to` was measured, every agent's time over its time."""
    base = {row.members: row.milliseconds for row in rows if row.agent == to}
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.members in base:
            found.setdefault(row.members, {})[row.agent] = row.milliseconds / base[row.members]
    return found


def markdown(rows: Sequence[Row], loops: dict[str, float]) -> str:
    """The table for a document."""
    heads = (
        "agent",
        "members",
        "matmuls in",
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
        in_order = [name for name in dict.fromkeys([*(row.agent for row in rows), *loops]) if name in loops]
        lines += ["| agent | ms / step |", "|---|---:|", *(f"| `{name}` | {loops[name]:.2f} |" for name in in_order)]
    return "\n".join(lines) + "\n"
