"""The paper's tables from runs, beside its numbers: per environment with the average of the suite, and per task.

A task's cell is mean and standard deviation over seeds. An environment's is the same over seeds of the mean over its
five tasks, and a suite's of the mean over all its tasks. The paper does not say so, but its numbers fit this reading
and no other: 1, 5, 3, 5, 3 on the tasks of antmaze-large-navigate become 1 there, far below their mean.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from uhm import presets, tasks
from uhm.data.available import official, shortfall
from uhm.presets import Result
from uhm.report import statistics
from uhm.report.collect import LAST, Member, Method
from uhm.tasks import Environment, Task

Level = Literal["environment", "task"]
Kind = Literal["paper", "settings"]
NEAR = 0.95  # of the best: underlined
# Footnotes: letter and meaning.
MARKS = {
    "a": f"fewer than {LAST} evaluations: the score is the mean of those there are",
    "b": "not finished: the score is of the last evaluations so far",
    "c": "fewer gradient steps than the protocol's",
    "d": "fewer seeds than the protocol's",
    "e": "not all tasks were run: ours and the paper's value are means over those that were",
    "f": "an agent diverged and was frozen; it counts as it was",
    "g": "more gradient steps than the protocol's",
    "h": "matrix multiplications in bfloat16",
    "i": "generated data, not OGBench's files",
    "j": "far fewer transitions than the protocol's",
    "k": "tasks have different seeds: the standard deviation is over those that all have",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method on one task, environment or suite, in percent. Without a run, `mean` is None."""

    method: Method
    mean: float | None = None
    std: float | None = None
    iqm: float | None = None
    interval: statistics.Interval | None = None
    iqm_interval: statistics.Interval | None = None
    seeds: int = 0
    steps: int = 0
    paper: Result | None = None
    marks: str = ""
    rank: Literal["best", "near", ""] = ""

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def verdict(self) -> Literal["above", "below", "same", ""]:
        """Whether ours is above or below the paper's by more than one standard deviation of the two together."""
        if self.difference is None or self.paper is None or math.isnan(self.paper.std):
            return ""
        spread = math.hypot(self.std or 0.0, self.paper.std)  # of one seed of ours nothing is known
        return "same" if abs(self.difference) <= spread else "above" if self.difference > 0 else "below"


class Row(NamedTuple):
    name: str
    cells: list[Cell]

    @property
    def missing(self) -> bool:
        return all(cell.mean is None for cell in self.cells)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows and columns in the paper's order.

    The kind `paper` holds its methods in its settings, whether run or not; `settings` holds runs with other values,
    and the paper's setting of the same agents beside them.
    """

    suite: str
    level: Level
    kind: Kind
    methods: list[Method]
    rows: list[Row]
    average: Row | None

    @property
    def everything(self) -> list[Row]:
        return [*self.rows, *([self.average] if self.average else [])]

    @property
    def marks(self) -> list[str]:
        used = {mark for row in self.everything for cell in row.cells for mark in cell.marks}
        return sorted(used)

    @property
    def has_paper(self) -> bool:
        return any(cell.paper for row in self.rows for cell in row.cells)


def tables(members: Sequence[Member]) -> list[Table]:
    """The tables of every suite that has runs, in the order of the suites."""
    found = []
    for suite, environments in tasks.SUITES.items():
        own = [member for member in members if member.task.environment.suite == suite]
        if not own or suite == "paper":
            continue
        run = ordered({member.method for member in own})
        if any(not method.setting for method in run):
            columns = ordered({*(Method(a) for a in presets.paper_agents(suite)), *(m for m in run if not m.setting)})
            found += [_table(suite, level, "paper", environments, columns, own) for level in ("environment", "task")]
        if other := {method.agent for method in run if method.setting}:
            columns = [method for method in run if method.agent in other]
            made = [_table(suite, level, "settings", environments, columns, own) for level in ("environment", "task")]
            found += [table for table in made if table.rows]
    return found


def ordered(methods: Iterable[Method]) -> list[Method]:
    """Agents in the order of the paper's columns, the paper's setting first, then others by name and size."""
    columns = presets.paper_agents("standard")

    def key(method: Method) -> tuple[Any, ...]:
        numbers = [(n, float(v) if isinstance(v, int | float) else 0.0, str(v)) for n, v in method.setting]
        known = columns.index(method.agent) if method.agent in columns else len(columns)
        return known, method.agent, len(numbers), numbers

    return sorted(methods, key=key)


def _table(
    suite: str,
    level: Level,
    kind: Kind,
    environments: Sequence[Environment],
    columns: list[Method],
    members: list[Member],
) -> Table:
    by: dict[tuple[Method, Task], list[Member]] = {}
    for member in members:
        by.setdefault((member.method, member.task), []).append(member)

    def row(name: str, wanted: Sequence[Task], target: Task | Environment | str) -> Row:
        own = [{task: by[column, task] for task in wanted if (column, task) in by} for column in columns]
        cells = [cell(column, wanted, found, target) for column, found in zip(columns, own, strict=True)]
        return Row(name, ranked(cells))

    everything = [task for environment in environments for task in environment.tasks]
    if level == "task":
        rows = [row(task.name, [task], task) for task in everything]
    else:
        rows = [row(environment.name, environment.tasks, environment) for environment in environments]
    if kind == "settings":  # only what was tried, and on all tasks of an environment
        return Table(suite, level, kind, columns, [r for r in rows if any(_tried(cell) for cell in r.cells)], None)
    average = row("Average", everything, suite) if level == "environment" and len(environments) > 1 else None
    return Table(suite, level, kind, columns, rows, average)


def _tried(cell: Cell) -> bool:
    return bool(cell.method.setting) and cell.mean is not None and "e" not in cell.marks


def cell(
    method: Method, wanted: Sequence[Task], members: dict[Task, list[Member]], target: Task | Environment | str
) -> Cell:
    """One method on the `wanted` tasks, of which `members` holds what was run; `target` is what the paper calls it."""
    paper = _paper(method, wanted, members, target)
    if not members:
        return Cell(method, paper=paper)
    strata = [np.array([member.score for member in members[task]]) for task in members]
    everyone = [member for task in members for member in members[task]]
    seeds = per_seed(members)
    found = statistics.intervals(strata)
    return Cell(
        method,
        mean=statistics.mean(strata),
        std=statistics.std(list(seeds.values())),
        iqm=float(statistics.iqm(np.concatenate(strata))),
        interval=found.mean if found else None,
        iqm_interval=found.iqm if found else None,
        seeds=min(len({member.seed for member in own}) for own in members.values()),
        steps=min(member.reached for member in everyone),
        paper=paper,
        marks=_marks(
            everyone, [{member.seed for member in own} for own in members.values()], len(members) < len(wanted)
        ),
    )


def per_seed(members: dict[Task, list[Member]]) -> dict[int, float]:
    """The mean over tasks of every seed that all tasks have."""
    scores = [{member.seed: member.score for member in own} for own in members.values()]
    common = sorted(set.intersection(*(set(own) for own in scores)))
    return {seed: float(np.mean([own[seed] for own in scores])) for seed in common}


def ranked(cells: Sequence[Cell]) -> list[Cell]:
    """Mark the best and what reaches 95 % of it (paper, section 5.1); equal as printed is equally good.

    One method alone is not the best of anything, and nothing is best where nothing succeeds. Means over a part of the
    tasks do not compete.
    """
    run = [cell.mean for cell in cells if cell.mean is not None and "e" not in cell.marks]
    if len(run) < 2 or number(max(run)) == number(0.0):
        return list(cells)
    best = max(run)

    def rank(cell: Cell) -> Literal["best", "near", ""]:
        if cell.mean is None or "e" in cell.marks:
            return ""
        return "best" if number(cell.mean) == number(best) else "near" if cell.mean >= NEAR * best else ""

    return [dataclasses.replace(cell, rank=rank(cell)) for cell in cells]


def number(value: float | None, sign: bool = False) -> str:
    """As all tables print numbers: one decimal, a real minus, no negative zero."""
    if value is None or math.isnan(value):
        return "–"
    text = f"{round(value, 1) + 0.0:{'+' if sign else ''}.1f}"
    return text.replace("-", "−")


def _paper(
    method: Method, wanted: Sequence[Task], members: dict[Task, Any], target: Task | Environment | str
) -> Result | None:
    """The paper's number for the same tasks; None for other settings than its own."""
    if method.setting:
        return None
    if not members or len(members) == len(wanted):
        if isinstance(target, str):
            return presets.paper_average(method.agent, target)
        return presets.paper_result(method.agent, target)
    found = [presets.paper_result(method.agent, task) for task in members]
    means = [result.mean for result in found if result is not None]
    return Result(float(np.mean(means)), math.nan) if len(means) == len(found) else None


def _marks(members: Sequence[Member], seeds: Sequence[set[int]], part: bool) -> str:
    marks = {
        "a": any(len(member.evaluations) < LAST for member in members),
        "b": any(not member.finished for member in members),
        "c": any(member.steps < member.task.environment.steps for member in members),
        "d": any(min(map(len, seeds)) < member.task.environment.seeds for member in members),
        "e": part,
        "f": any(member.diverged for member in members),
        "g": any(member.steps > member.task.environment.steps for member in members),
        "h": any(member.precision == "bfloat16" for member in members),
        "i": any(member.data.get("generated") and official(member.task.environment) for member in members),
        "j": any(shortfall(n, m.task.environment) for m in members if (n := m.data.get("transitions")) is not None),
        "k": any(other != seeds[0] for other in seeds),
    }
    return "".join(letter for letter, holds in marks.items() if holds)
