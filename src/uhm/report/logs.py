"""Runs on logs of one's own. They compare with no paper, so what is reported is what was logged while training, and the
evaluations in a simulator of the user's own where there was one.
"""

import csv
import dataclasses
import io
import re
import statistics
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from uhm.errors import UhmError
from uhm.evaluate import beside
from uhm.population import grid
from uhm.report.charts import COLOURS, SPARE, Chart, Curve, Panel, nonempty
from uhm.report.collect import LAST, Run, unfinished
from uhm.report.writers import NAMES
from uhm.runs.files import JsonLines, read_json
from uhm.train import names

POINTS = 200  # of one curve; more are not seen, and a page is to be sent around
_NO_COLUMN = {"steps"}  # how long training lasts is in the table of runs


@dataclasses.dataclass(frozen=True)
class Member:
    """One trained agent. `values` are its numbers by metric, one per step; None where one was not finite, or there was
    none. Those of `evaluated` are means over the episodes of an evaluation, the others are of training.
    """

    run: Run
    index: int
    seed: int
    hyper: dict[str, Any]
    diverged: bool
    steps: list[int]
    values: dict[str, list[float | None]]
    evaluated: frozenset[str] = frozenset()

    def last(self, metric: str) -> float | None:
        """What was logged last, or the mean of the last three evaluations."""
        own = self.values.get(metric, [None])
        if metric not in self.evaluated:
            return own[-1]
        known = [value for value in own if value is not None][-LAST:]
        return statistics.fmean(known) if known else None


class Line(NamedTuple):
    """Members that differ in their seeds alone."""

    label: str
    members: list[Member]


@dataclasses.dataclass(frozen=True)
class Log:
    """All runs on the same logs."""

    title: str
    stem: str  # of its files, which no other logs have
    members: list[Member]
    varied: dict[str, list[str]]  # by agent, hyperparameters in which its members differ
    metrics: list[str]  # those to look at first
    others: list[str]

    @property
    def runs(self) -> list[Run]:
        return list({member.run.directory: member.run for member in self.members}.values())

    @property
    def columns(self) -> list[str]:
        """Everything in which members of any agent differ."""
        return list(dict.fromkeys(name for own in self.varied.values() for name in own))

    @property
    def agents(self) -> list[str]:
        return list(dict.fromkeys(member.run.agent for member in self.members))


def read(runs: Iterable[Run]) -> list[Log]:
    """The runs on logs among `runs` that have logged something, by the logs that they learned from."""
    found: dict[str, list[Member]] = {}
    for run in runs:
        if run.environment.own:
            try:
                found.setdefault(run.environment.name, []).extend(_members(run))
            except UhmError as error:
                warnings.warn(f"{run.directory} is left out: {error}", stacklevel=2)
    logs: list[Log] = []
    for members in found.values():
        if members:
            title = members[0].run.environment.title
            stem = re.sub(r"[^\w.-]+", "-", title)
            number = sum(log.stem == stem or log.stem.startswith(f"{stem}~") for log in logs)
            logs.append(_log(title, f"{stem}~{number + 1}" if number else stem, members))
    return logs


def _log(title: str, stem: str, members: list[Member]) -> Log:
    logged = list(dict.fromkeys(metric for member in members for metric in member.values))
    key = names.key_metrics(logged)
    return Log(title, stem, members, _varied(members), key, [metric for metric in logged if metric not in key])


def _members(run: Run) -> list[Member]:
    """All members of a run, from its files; none if it has logged nothing yet."""
    config = read_json(run.directory / "config.json")
    lines = JsonLines(run.directory / "metrics.jsonl").read()
    members = grid(config["tasks"], config["seeds"], config.get("axes", {}))
    if not lines:
        return []
    rows = read_json(run.directory / "summary.json")["members"] if run.finished else unfinished(run.directory, config)
    whole = lambda value: isinstance(value, list) and len(value) == len(members)  # noqa: E731
    means = {index: {e["step"]: _numbers(e) for e in row["evaluations"]} for index, row in enumerate(rows)}
    evaluated = frozenset(name for steps in means.values() for found in steps.values() for name in found)
    columns, found = beside(lines, means, len(members)), []
    steps = [line["step"] for line in columns]
    metrics = dict.fromkeys(name for line in columns for name, value in line.items() if whole(value))
    for index, member in enumerate(members):
        values = {name: [line[name][index] if name in line else None for line in columns] for name in metrics}
        # Before the summary tells, a number that is none is the sign of it.
        none = any(whole(value) and value[index] is None for value in lines[-1].values())
        gone = rows[index]["diverged"] if run.finished else none
        more = {"normalise": config.get("normalise", False)}
        more |= {"env": config["env"]} if config.get("env") is not None else {}
        hyper = {**config.get("config", {}), **config["hyper"], **more, **dict(member.hyper)}
        found.append(Member(run, index, member.seed, hyper, gone, steps, values, evaluated))
    return found


def _numbers(evaluation: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in evaluation.items() if name != "step"}


def _varied(members: Sequence[Member]) -> dict[str, list[str]]:
    values: dict[str, dict[str, set[str]]] = {}
    for member in members:
        own = values.setdefault(member.run.agent, {})
        for name, value in member.hyper.items():
            own.setdefault(name, set()).add(shown(value))
    several = lambda own: [name for name, found in own.items() if len(found) > 1 and name not in _NO_COLUMN]  # noqa: E731
    return {agent: several(own) for agent, own in values.items()}


def shown(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else names.value(value)


def lines(log: Log) -> list[Line]:
    """The members of every run and setting, named by what tells them apart."""
    found: dict[tuple[Path, str], list[Member]] = {}
    for member in log.members:
        named = [name for name in log.varied[member.run.agent] if name in member.hyper]
        own = ", ".join(f"{name}={shown(member.hyper[name])}" for name in named)
        agent = NAMES.get(member.run.agent, member.run.agent)
        label = agent if not own else f"{agent} ({own})" if len(log.agents) > 1 else own
        found.setdefault((member.run.directory, label), []).append(member)
    labels = [label for _, label in found]
    twice = {label for label in labels if labels.count(label) > 1}
    return [
        Line(f"{label}, {members[0].run.name}" if label in twice else label, members)
        for (_, label), members in found.items()
    ]


def last(line: Line, metric: str) -> float | None:
    """What was logged last, the median over the members that did not diverge; of evaluations the last three's mean."""
    known = [v for member in line.members if not member.diverged and (v := member.last(metric)) is not None]
    return statistics.median(known) if known else None


def charts(log: Log) -> list[Chart]:
    """The metrics to look at first, and the others."""
    every = lines(log)
    sound = [line._replace(members=[m for m in line.members if not m.diverged]) for line in every]
    # What a member logs after it diverged means nothing, and would hide the others. Without others it is all there is.
    alive = every if not any(line.members for line in sound) else [line for line in sound if line.members]
    drawn = names.spread(alive)
    caption = _caption(every, alive, drawn)
    alone = len(every) == 1 and log.agents[0] in COLOURS
    colours = [COLOURS[log.agents[0]]] if alone else SPARE
    found = []
    for kind, title, metrics in (("metrics", "Metrics", log.metrics), ("others", "Other metrics", log.others)):
        panels = [
            Panel(name, [c for line, colour in zip(drawn, colours, strict=False) for c in _curve(line, colour, name)])
            for name in metrics
        ]
        if panels := nonempty(panels):
            chart = Chart(f"logs-{log.stem}-{kind}", f"{title}, {log.title}", caption, "gradient steps", "", panels)
            found.append(dataclasses.replace(chart, percent=False, zero=False, group="logs"))
    return found


def _caption(every: Sequence[Line], alive: Sequence[Line], drawn: Sequence[Line]) -> str:
    several = any(len(line.members) > 1 for line in drawn)
    said = ["Lines are the median over seeds, shaded is their range." if several else "One seed for each line."]
    if len(drawn) < len(alive):
        said.append(f"{len(drawn)} of {len(alive)} settings are drawn, evenly chosen; the table has all.")
    longest = max(len(member.steps) for line in drawn for member in line.members)
    if longest > POINTS:
        said.append(f"{POINTS} of up to {longest:,} log lines are drawn.")
    gone = [member for line in every for member in line.members if member.diverged]
    if alive is every and gone:
        said.append("All members diverged.")
    elif gone:
        left = [line.label for line in every if line.label not in {kept.label for kept in alive}]
        those = f": {'; '.join(left)}" if left else ""
        said.append(f"Without the {len(gone)} member{'s' * (len(gone) > 1)} that diverged{those}.")
    return " ".join(said)


def _curve(line: Line, colour: str, metric: str) -> list[Curve]:
    """The median of the line's members and their range; being of one run, all of them logged at the same steps."""
    columns = [member.values[metric] for member in line.members if metric in member.values]
    if not columns:
        return []
    rows = list(zip(line.members[0].steps, *columns, strict=True))
    known = [(step, own) for step, *row in rows if (own := [value for value in row if value is not None])]
    known = names.spread(known, POINTS)
    if not known:
        return []
    x = [float(step) for step, _ in known]
    middle, low, high = ([_brief(how(own)) for _, own in known] for how in (statistics.median, min, max))
    several = len(columns) > 1
    return [Curve(line.label, colour, x, middle, low if several else None, high if several else None)]


def _brief(value: float) -> float:
    return float(f"{value:.5g}")


def to_csv(logs: Sequence[Log]) -> str:
    """One line per member, with everything that it logged last, and its last evaluations."""
    varied = list(dict.fromkeys(name for log in logs for name in log.columns))
    metrics = list(dict.fromkeys(name for log in logs for name in (*log.metrics, *log.others)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["logs", "run", "member", "agent", *varied, "seed", "step", "diverged", *metrics])
    for log in logs:
        for member in log.members:
            own = [shown(member.hyper[name]) if name in member.hyper else "" for name in varied]
            about = [log.title, member.run.name, member.index, member.run.agent]
            numbers = ["" if (value := member.last(name)) is None else repr(value) for name in metrics]
            writer.writerow([*about, *own, member.seed, member.steps[-1], str(member.diverged).lower(), *numbers])
    return text.getvalue()
