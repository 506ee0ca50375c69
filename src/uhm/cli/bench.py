"""`uhm bench`."""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from uhm.cli.flags import verb
from uhm.errors import UhmError


@verb
class Bench:
    """Measure what one update costs: agents beside each other, and beside their matmuls alone."""

    what: Positional[Literal["update"]] = "update"
    """What to measure."""
    agents: tuple[str, ...] = (
        *("uhm", "dtd", "mbtd", "ghm", "rebrac-dagger"),
        *("iql", "rebrac", "fql", "mopo", "mobile", "mac"),
    )
    """Which agents; ratios are to the first."""
    members: tuple[int, ...] = (1, 5, 25)
    """Sizes of the population."""
    gpu: bool = False
    """The whole measurement of a GPU: 1, 5, 25 and 100 members, both precisions, and the loop on the host."""
    host_loop: bool = False
    """Also time one agent in a loop on the host: rows gathered with numpy, one compiled call per step."""
    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Widths of every network."""
    batch_size: int = 256
    """Transitions per gradient step and member."""
    observation: int = 55
    """Size of an observation."""
    action: int = 5
    """Size of an action."""
    k_max: int = 8
    """Longest horizon, which dtd and mbtd pay for."""
    steps: int | None = None
    """Timed steps of each agent (default: 500, fewer of large networks on a CPU)."""
    compute_dtype: tuple[Literal["float32", "bfloat16"], ...] = ("float32",)
    """Precision of matmuls, one or both."""
    processes: int = 1
    """Compile so many programs at once, each in a process of its own; they are measured one after the other."""
    to: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Also write everything to this file, with versions and hardware. What it has already is not measured again."""
    markdown: Path | None = None
    """Also write the table to this file."""

    def __call__(self) -> int:
        from rich.console import Console

        from uhm import bench
        from uhm.bench.record import Record

        if self.processes < 1:
            raise UhmError(f"processes is {self.processes}, and must be at least 1.")
        if self.processes > 1:
            bench.in_processes.share_memory()
        if self.gpu and not bench.on_gpu():
            raise UhmError("there is no GPU that JAX can use here: leave out --gpu, or see `uhm doctor`.")
        for path in (self.to, self.markdown):
            if path is not None and not path.parent.is_dir():
                raise UhmError(f"there is no directory {path.parent} to write {path.name} into.")
            if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
                raise UhmError(f"cannot write {path}: name another file.")
        members = (1, 5, 25, 100) if self.gpu else self.members
        kinds = ("bfloat16", "float32") if self.gpu else tuple(dict.fromkeys(self.compute_dtype))
        bench.check(self.agents, members, self.steps)
        sizes = {name: getattr(self, name) for name in ("hidden", "batch_size", "observation", "action", "k_max")}
        settings = [bench.Setting(**sizes, compute_dtype=kind) for kind in kinds]
        record, console = Record(settings[0], self.steps, self.to), Console(stderr=True)
        if before := len(record.rows) + len(record.loops):
            print(f"{self.to} has {before} measurements already, and none is made again.", flush=True)
        with console.status("starting") as status:
            # One line that changes, or in a file a line for each.
            report = status.update if console.is_terminal else functools.partial(print, file=sys.stderr, flush=True)
            options = (self.steps, report, self.processes, record.known)
            for new in bench.update(self.agents, members, settings, *options):
                _print(new, settings[0], self.agents)  # first: should it not be possible to write, it was seen
                record.add(new)  # each time: it takes long, and something may go wrong
                self._write_table(record)
            if self.gpu or self.host_loop:
                as_usual = min(settings, key=lambda setting: setting.compute_dtype != "float32")  # most code's
                self._loops([agent for agent in self.agents if agent not in record.loops], as_usual, record, report)
                self._write_table(record)
        _print_missing(record.known, kinds, self.agents, members)
        return 0

    def _loops(self, agents: list[str], setting: Any, record: Any, report: Callable[[str], None]) -> None:
        """Each agent's loop on the host. With several processes each is compiled and measured in one of them."""
        from uhm import bench

        def note(measured: tuple[str, float]) -> None:
            agent, seconds = measured
            print(f"in a loop on the host, one member: {agent} {1e3 * seconds:.2f} ms/step", flush=True)
            record.add([], {agent: 1e3 * seconds})

        jobs = [(agent, setting, self.steps or (500 if bench.on_gpu() else 20)) for agent in agents]
        if self.processes > 1:
            bench.in_processes.each(bench.timed_loop, jobs, self.processes, report, note)
        else:
            for job in jobs:
                report(f"a loop on the host: {job[0]}")
                note(bench.timed_loop(*job))

    def _write_table(self, record: Any) -> None:
        from uhm import bench
        from uhm.runs.files import write_atomically

        if self.markdown is not None:
            write_atomically(self.markdown, bench.markdown(record.rows, record.loops).encode())


def _print(rows: list[Any], setting: Any, agents: tuple[str, ...]) -> None:
    """Rows that took turns."""
    from rich.console import Console

    from uhm import bench
    from uhm.agents import family

    if rows:
        Console().print(_table(rows, setting))
    for size, values in bench.ratios(rows, family(agents[0]).name).items():
        numbers = " : ".join(f"{value:.2f}" for value in values.values())
        print(f"{_members(size)}: {' : '.join(values)} = {numbers}", flush=True)


def _print_missing(
    known: set[tuple[str, int, str]], kinds: tuple[str, ...], agents: tuple[str, ...], members: tuple[int, ...]
) -> None:
    from uhm.agents import family

    for kind in kinds:
        for size in members:
            missing = [name for agent in agents if ((name := family(agent).name), size, kind) not in known]
            if missing:
                print(f"{_members(size)}, {kind}: not enough free memory for {', '.join(missing)}")


def _members(size: int) -> str:
    return f"{size} member{'s' if size > 1 else ''}"


def _table(rows: list[Any], setting: Any) -> Any:
    import jax
    from rich.table import Table

    device = jax.devices()[0]
    size = f"{setting.observation}+{setting.action} inputs, {'x'.join(map(str, setting.hidden))} networks"
    title = f"{device.device_kind}: {size}, batch {setting.batch_size}, {rows[0].compute_dtype}"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("agent", no_wrap=True)
    # Two short lines each: a terminal of 80 columns must show every number.
    heads = ("mem-\nbers", "ms per\nstep", "per\nmember", "\nTFLOP/s", "matmuls\nms", "update :\nmatmuls")
    for head in (*heads, "of\nceiling", "\nGB", "comp.\ns"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.agent,
            str(row.members),
            f"{row.milliseconds:.2f}",
            f"{row.milliseconds_per_member:.2f}",
            f"{row.teraflops_per_second:.2f}",
            f"{row.products_milliseconds:.2f}",
            f"{row.update_to_products:.2f}",
            f"{100 * row.of_ceiling:.0f} %",
            f"{row.gigabytes:.2f}",
            f"{row.compile_seconds:.0f}",
        )
    return table
