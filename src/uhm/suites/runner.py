"""Run populations to their end with one table of all, whatever runs them.

A population that fails does not stop the others. Ctrl-C (or SIGTERM) lets all save and stop; a second one does not
wait. What is shown comes from the run directories, so it is the same here and on a cluster.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from uhm.errors import UhmError
from uhm.interrupts import interruptible
from uhm.suites.lease import log_of
from uhm.suites.plan import Population
from uhm.suites.status import Progress, progress, status
from uhm.suites.worker import Outcome

_LOOK = 0.2  # seconds between looks at the workers
_READ = 1.0  # seconds between looks at the run directories


@runtime_checkable
class Executor(Protocol):
    """What runs workers: processes here, or Ray."""

    def free(self) -> bool:
        """Whether it takes another population now."""
        ...

    def start(self, population: Population) -> None: ...

    def ended(self) -> dict[str, Outcome]:
        """Those that ended since the last call, by name."""
        ...

    def where(self, population: Population) -> str:
        """Where it runs; empty while it waits."""
        ...

    def stop(self) -> None:
        """Have all save and stop."""
        ...

    def kill(self) -> None:
        """End all now."""
        ...

    def close(self) -> None: ...


class Row:
    """One population in the table."""

    def __init__(self, population: Population, state: str):
        self.population, self.state, self.reason, self.where = population, state, "", ""
        self.progress = Progress()

    @property
    def shown(self) -> str:
        """What the cluster has taken but not begun waits too."""
        return "waiting" if self.state == "running" and not self.where else self.state


def split(wanted: Sequence[Population]) -> tuple[list[Population], list[Population]]:
    """Those that are done and those that are left; refuses directories that hold another run."""
    states = [status(population) for population in wanted]
    for population, now in zip(wanted, states, strict=True):
        if now.state == "differs":
            others = sum(s.state == "differs" for s in states) - 1
            more = f" (and {others} more)" if others else ""
            raise UhmError(
                f"{population.directory} {now.note}{more}: give another --out, ask for the same, or move it away."
            )
    done = [p for p, now in zip(wanted, states, strict=True) if now.state == "done"]
    return done, [p for p, now in zip(wanted, states, strict=True) if now.state != "done"]


def run(wanted: Sequence[Population], executor: Executor | None, console: Console) -> list[Row]:
    """All that are not done yet, for which there has to be an executor; returns every row as it ended."""
    done, waiting = split(wanted)
    rows = {p.name: Row(p, "done" if p in done else "waiting") for p in wanted}
    if executor is None:
        return list(rows.values())
    with interruptible(signal.SIGINT, signal.SIGTERM) as stopped, _shown(rows, console) as show:
        try:
            _drive(rows, waiting, executor, stopped, show)
        except KeyboardInterrupt:  # asked again
            executor.kill()
        finally:
            executor.close()
    finished = sum(row.state == "done" for row in rows.values())
    if stopped.is_set() and finished < len(rows):
        raise KeyboardInterrupt(f"stopped with {finished} of {len(rows)} done; the same command goes on.")
    return list(rows.values())


def _drive(
    rows: dict[str, Row],
    waiting: list[Population],
    executor: Executor,
    stopped: threading.Event,
    show: Callable[[], None],
) -> None:
    """Until all have ended, or those that run when `stopped` is set."""
    asked = False
    while waiting or any(row.state == "running" for row in rows.values()):
        if stopped.is_set() and not asked:
            asked, waiting = True, []
            executor.stop()
        while waiting and executor.free():
            population = waiting.pop(0)
            executor.start(population)
            rows[population.name].state = "running"
        for name, outcome in executor.ended().items():
            rows[name].state, rows[name].reason = outcome
        for row in rows.values():
            if row.state == "running":
                row.where = executor.where(row.population) or row.where
        show()
        if asked:
            time.sleep(_LOOK)
        else:
            stopped.wait(_LOOK)


@contextmanager
def _shown(rows: dict[str, Row], console: Console) -> Iterator:
    """A live table on a terminal; a line for each change elsewhere."""
    read = 0.0
    said: dict[str, tuple[str, str]] = {name: (row.state, "") for name, row in rows.items()}

    def look() -> bool:
        nonlocal read
        if time.monotonic() - read < _READ:
            return False
        read = time.monotonic()
        for row in rows.values():
            if row.state == "running":
                row.progress = progress(row.population)
        return True

    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:

            def show() -> None:
                if look():
                    live.update(table(list(rows.values()), height=console.height - 4), refresh=True)

            yield show
        return

    def tell() -> None:
        for name, row in rows.items():
            now = (row.state, row.where)
            if now == said[name] or (row.state == "running" and not row.where):
                continue
            said[name] = now
            extra = row.where if row.state == "running" else row.reason
            console.print(f"{name}: {row.state}{': ' + extra if extra else ''}", soft_wrap=True, highlight=False)

    yield tell
    tell()


_STYLE = {"done": "green", "running": "cyan", "failed": "red", "stopped": "yellow", "waiting": "dim"}
_ORDER = ("running", "failed", "stopped", "waiting", "done")


def table(rows: Sequence[Row], height: int | None = None) -> Table:
    """All rows, or on a small screen those that matter most, and how many there are of each kind."""
    counts = ", ".join(f"{n} {s}" for s in _ORDER if (n := sum(row.shown == s for row in rows)))
    out = Table(box=None, header_style="bold", caption=counts, caption_justify="left")
    out.add_column("population", no_wrap=True)
    out.add_column("state")
    out.add_column("step", justify="right", no_wrap=True)
    out.add_column("success", justify="right")
    out.add_column("where", overflow="fold")
    shown = list(rows)
    if height is not None and len(shown) > height:
        shown = sorted(shown, key=lambda row: _ORDER.index(row.shown))[: max(1, height)]
    for row in shown:
        population, now = row.population, row.progress
        step = population.steps if row.state == "done" else now.step
        success = "" if now.success is None else f"{100 * now.success:.0f} %"
        state = f"[{_STYLE[row.shown]}]{row.shown}[/]"
        out.add_row(population.name, state, f"{step:,}/{population.steps:,}", success, row.where)
    return out


def report(rows: Sequence[Row], console: Console) -> int:
    """The table at the end, and one line for each that is not done; returns the exit status."""
    for row in rows:
        now = status(row.population)
        row.progress = Progress(now.step, now.success)
    console.print(table(rows))
    bad = [row for row in rows if row.state != "done"]
    for row in bad:
        log = log_of(row.population.directory)
        more = f" Log: {log}" if log.exists() else ""
        console.print(f"{row.population.name} {row.state}: {row.reason}{more}", soft_wrap=True, highlight=False)
    if bad:
        console.print(f"{len(bad)} of {len(rows)} are not done; the same command tries them again.", highlight=False)
    return 1 if bad else 0
