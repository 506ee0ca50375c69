"""What is shown while a run goes on, and the table at its end."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from uhm import presets, tasks
from uhm.population import Member

Update = Callable[[int, dict[str, float]], None]


@contextmanager
def bar(label: str, members: int, steps: int, done: int, wanted: bool) -> Iterator[Update]:
    """A bar with steps per second, in total and per member, the time left and the latest success per task."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,}/{task.total:,}  {task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[latest]}"),
    )
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as progress:
        line = progress.add_task(label, total=steps, completed=done, rate="compiling", latest="")

        def update(step: int, success: dict[str, float]) -> None:
            latest = "  ".join(f"{task.rsplit('-', 1)[-1]} {100 * value:.0f}%" for task, value in success.items())
            progress.update(line, completed=step, latest=latest)
            speed = progress.tasks[0].speed
            if speed:
                progress.update(line, rate=f"{speed * members:,.0f} steps/s ({speed:,.0f} per member)")

        yield update


def table(
    agent: str,
    members: Sequence[Member],
    scores: dict[int, float],
    alive: list[bool],
    what: str = "mean of the last three evaluations",
    more: Mapping[str, dict[int, float]] = MappingProxyType({}),
) -> Group:
    """Success per task in percent, mean and standard deviation over members, beside the paper's.

    `more` are further columns of numbers by member.
    """
    rows: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        rows.setdefault(member.task, []).append(index)
    out = Table(box=None)
    out.add_column("task")
    for column in ("mean", "std", "members", "paper", *more):
        out.add_column(column, justify="right")
    for name, own in rows.items():
        paper = presets.paper_result(agent, tasks.task(name))
        values = [100 * scores[index] for index in own]
        std = f"{statistics.stdev(values):.1f}" if len(values) > 1 else "-"
        out.add_row(
            *(name, f"{statistics.mean(values):.1f}", std, str(len(own)), f"{paper.mean:.0f}" if paper else "-"),
            *(f"{statistics.mean(column[index] for index in own):.1f}" for column in more.values()),
        )
    if len(rows) > 1:
        everything = [100 * scores[index] for own in rows.values() for index in own]
        out.add_section()
        out.add_row("mean", f"{statistics.mean(everything):.1f}", "", str(len(everything)), "")
    if not all(alive):
        out.caption = diverged(alive)
    return Group(f"{agent}: success in %, {what}", out)  # a title of its own would be broken to the table's width


def diverged(alive: list[bool]) -> str:
    return f"{alive.count(False)} of {len(alive)} members diverged and were frozen"


def by_task(members: Sequence[Member], successes: dict[int, float]) -> dict[str, float]:
    """Mean success per task of one evaluation."""
    grouped: dict[str, list[float]] = {}
    for index, value in successes.items():
        grouped.setdefault(members[index].task, []).append(value)
    return {task: statistics.mean(values) for task, values in grouped.items()}


def show(renderable: Any) -> None:
    Console().print(renderable)
