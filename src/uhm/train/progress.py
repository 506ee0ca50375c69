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
from uhm.lines import console, tenths
from uhm.population import Member
from uhm.train import names
from uhm.train.names import Setting

Update = Callable[[int, str], None]  # the step, and what the last evaluation said


@contextmanager
def bar(label: str, members: int, steps: int, done: int, wanted: bool) -> Iterator[Update]:
    """A bar with steps per second, in total and per member, the time left and the latest success per task.

    Where nobody watches, in a pipe or a job's log, ten lines instead.
    """
    console = Console(stderr=True)
    if wanted and not console.is_terminal:
        tell = tenths(label, "step", steps, done)
        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,}/{task.total:,}  {task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[latest]}"),
    )
    with Progress(*columns, console=console, disable=not wanted) as progress:
        line = progress.add_task(label, total=steps, completed=done, rate="compiling", latest="")

        def update(step: int, said: str) -> None:
            progress.update(line, completed=step, latest=said)
            speed = progress.tasks[0].speed
            if speed:
                progress.update(line, rate=f"{speed * members:,.0f} steps/s ({speed:,.0f} per member)")

        yield update


def latest(members: Sequence[Member], rated: dict[int, float], measure: str) -> str:
    """One evaluation in a few words: success per task, or the mean return."""
    if measure == "return":
        return f"return {statistics.mean(rated.values()):.4g}" if rated else ""
    found = by_task(members, rated)
    return "  ".join(f"{task.rsplit('-', 1)[-1]} {100 * value:.0f}%" for task, value in found.items())


def table(
    agent: str,
    members: Sequence[Member],
    scores: dict[int, float],
    alive: list[bool],
    what: str = "mean of the last three evaluations",
    more: Mapping[str, dict[int, float]] = MappingProxyType({}),
) -> Group:
    """Success per task and setting in percent, mean and standard deviation over members, beside the paper's.

    `more` are further columns of numbers by member.
    """
    rows: dict[tuple[str, Setting], list[int]] = {}
    for index, member in enumerate(members):
        rows.setdefault((member.task, member.hyper), []).append(index)
    settings = list(dict.fromkeys(setting for _, setting in rows))
    varied = settings != [()]  # different hyperparameters are different methods: nothing is the mean over them
    out = Table(box=None)
    out.add_column("task")
    for column in (*(["setting"] if varied else []), "mean", "std", "members", "paper", *more):
        out.add_column(column, justify="right")

    def add(name: str, setting: Setting, own: list[int], paper: str, std: bool = True) -> None:
        values = [100 * scores[index] for index in own]
        spread = "" if not std else f"{statistics.stdev(values):.1f}" if len(values) > 1 else "-"
        out.add_row(
            *(name, *([names.setting(setting)] if varied else [])),
            *(f"{statistics.mean(values):.1f}", spread, str(len(own)), paper),
            *(f"{statistics.mean(column[index] for index in own):.1f}" if std else "" for column in more.values()),
        )

    for (name, setting), own in rows.items():
        paper = None if varied else presets.paper_result(agent, tasks.task(name))
        add(name, setting, own, f"{paper.mean:.0f}" if paper else "-")
    if len({name for name, _ in rows}) > 1:
        out.add_section()
        for setting in settings:
            own = [index for (_, other), some in rows.items() if other == setting for index in some]
            add("mean", setting, own, "", std=False)
    if not all(alive):
        out.caption = diverged(alive)
    return Group(f"{agent}: success in %, {what}", out)  # a title of its own would be broken to the table's width


# What evaluations in a simulator of the user's own say, and the head of its column.
_OWN = {"return": "", "normalised": "", "length": "", "success": "", "value": "expected", "discounted": "obtained"}


def returns(what: str, members: Sequence[Member], means: Sequence[Mapping[str, float]], alive: list[bool]) -> Group:
    """The means of every member's evaluations in a simulator of the user's own."""
    axes = [name for name, _ in members[0].hyper]
    known = [name for name in _OWN if any(name in one for one in means)]
    out = Table(box=None)
    for column in ("seed", *axes, *(_OWN[name] or name for name in known)):
        out.add_column(column, justify="right")
    for member, one in zip(members, means, strict=True):
        numbers = [f"{one[name]:.5g}" if name in one else "" for name in known]
        out.add_row(str(member.seed), *(names.value(value) for _, value in member.hyper), *numbers)
    if not all(alive):
        out.caption = diverged(alive)
    return Group(what, out)


def diverged(alive: list[bool]) -> str:
    return f"{alive.count(False)} of {len(alive)} members diverged and were frozen"


def by_task(members: Sequence[Member], successes: dict[int, float]) -> dict[str, float]:
    """Mean success per task of one evaluation."""
    grouped: dict[str, list[float]] = {}
    for index, value in successes.items():
        grouped.setdefault(members[index].task, []).append(value)
    return {task: statistics.mean(values) for task, values in grouped.items()}


def show(renderable: Any) -> None:
    console().print(renderable)
