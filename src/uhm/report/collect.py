"""Runs as plain records: which agent, task, seed and setting each member was, and what its evaluations said.

Only the files of a run directory are read, so a run may be finished, still training, or nothing but its config.json and
summary.json. A member that two runs hold is taken from the run that got further, with a warning.
"""

import dataclasses
import itertools
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from uhm import tasks
from uhm.errors import UhmError
from uhm.evaluate import Episode, complete, means_by_step
from uhm.report.settings import PRECISION, Setting, known, setting, shown
from uhm.runs.files import JsonLines, read_json
from uhm.tasks import Environment, Task

LAST = 3  # evaluations that the score is the mean of
_CONFIG = {"agent", "tasks", "seeds", "steps", "hyper"}


class Method(NamedTuple):
    """An agent with a setting; an empty one is the paper's."""

    agent: str
    setting: Setting = ()

    @property
    def label(self) -> str:
        return f"{self.agent} ({self.settings})" if self.setting else self.agent

    @property
    def settings(self) -> str:
        return ", ".join(f"{name}={shown(value)}" for name, value in self.setting)


class Value(NamedTuple):
    """Discounted returns, the mean over the episodes of one evaluation."""

    expected: float
    obtained: float


@dataclasses.dataclass(frozen=True)
class Member:
    """One trained agent. Evaluations are success in percent by gradient step, in order.

    `values` are the discounted returns that it expected and obtained, by gradient step; empty where a run is older
    than these, or its agent expects nothing.
    """

    agent: str
    task: Task
    seed: int
    hyper: dict[str, Any]
    setting: Setting
    evaluations: dict[int, float]
    values: dict[int, Value]
    steps: int  # that were planned
    finished: bool
    diverged: bool
    precision: str | None  # of its products, where the run says so
    data: dict[str, Any]  # about the data it learned from, where the run says so
    run: Path

    @property
    def method(self) -> Method:
        return Method(self.agent, self.setting)

    @property
    def score(self) -> float:
        """The reported number: the mean of the last three evaluations (paper, section 5.1)."""
        last = list(self.evaluations.values())[-LAST:]
        return sum(last) / len(last)

    @property
    def reached(self) -> int:
        return max(self.evaluations, default=0)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run directory, without its members' numbers."""

    directory: Path
    agent: str
    environment: Environment
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    reached: int
    finished: bool
    members: int
    methods: tuple[Method, ...]
    config: dict[str, Any]
    seconds: float | None
    update_seconds: float | None  # one gradient step of all members, without compiling
    device: str | None
    versions: dict[str, str | None]
    sessions: list[dict[str, Any]]
    name: str = ""  # what it is called among the others


class Collected(NamedTuple):
    runs: list[Run]
    members: list[Member]


def collect(paths: Iterable[Path]) -> Collected:
    """All runs at or below `paths`. UhmError where there is none, or none that was evaluated or could not be."""
    paths = list(paths)
    if not paths:
        raise UhmError("name at least one run directory, or a folder of them: `uhm report runs`.")
    runs, members = [], []
    for directory, asked in _directories(paths):
        try:
            run, own = _read(directory)
        except (UhmError, KeyError, TypeError, ValueError, AttributeError) as error:
            why = str(error) if isinstance(error, UhmError) else f"its files are damaged ({error!r})."
            if asked:
                raise UhmError(f"{directory} cannot be reported: {why}") from error
            warnings.warn(f"{directory} is left out: {why}", stacklevel=2)
            continue
        runs.append(run)
        members += own
    if not runs:
        raise UhmError(f"no run in {', '.join(map(str, paths))}: a run is a folder that `uhm train` made.")
    members = _precise(_told_apart(members))
    called = names([run.directory for run in runs])
    runs = [dataclasses.replace(_with_methods(run, members), name=called[run.directory]) for run in runs]
    members = _once(members)
    if not members and not any(run.environment.own for run in runs):
        raise UhmError(f"nothing to report yet: no run in {', '.join(map(str, paths))} has been evaluated.")
    return Collected(runs, members)


def names(directories: Sequence[Path]) -> dict[Path, str]:
    """What to call run directories: by their own names, or where two have the same by as much of the way as differs."""
    found = {directory: directory.absolute().name for directory in directories}
    called = list(found.values())
    twice = [directory for directory, name in found.items() if called.count(name) > 1]
    if twice:
        common = Path(os.path.commonpath([directory.absolute().parent for directory in twice]))
        found |= {directory: str(directory.absolute().relative_to(common)) for directory in twice}
    return found


def several_seeds(members: Iterable[Member]) -> bool:
    """Whether any method has more than one."""
    seeds: dict[Method, set[int]] = {}
    for member in members:
        seeds.setdefault(member.method, set()).add(member.seed)
    return any(len(found) > 1 for found in seeds.values())


def _directories(paths: Sequence[Path]) -> list[tuple[Path, bool]]:
    """Every run directory once, and whether it was asked for by name. Nothing is looked for inside a run."""
    found: dict[Path, tuple[Path, bool]] = {}
    for path in paths:
        if not path.is_dir():
            raise UhmError(f"no run directory {path}.")
        for folder, below, files in os.walk(path):
            directory = Path(folder)
            if "config.json" in files and _is_run(directory / "config.json"):
                asked = directory == path
                found.setdefault(directory.resolve(), (directory, asked))
                below.clear()
            below[:] = sorted(name for name in below if not name.startswith("."))
    return list(found.values())


def _is_run(config: Path) -> bool:
    """Whether a config.json is one of ours; a damaged one beside our other files is, so that it is not overlooked."""
    try:
        return set(read_json(config)) >= _CONFIG
    except UhmError:
        return (config.parent / "environment.json").exists()


def _read(directory: Path) -> tuple[Run, list[Member]]:
    config = read_json(directory / "config.json")
    summary = read_json(directory / "summary.json") if (directory / "summary.json").exists() else None
    about = read_json(directory / "environment.json") if (directory / "environment.json").exists() else {}
    sessions = about.get("sessions", [])
    wanted = [tasks.task(name) for name in config["tasks"]]
    environment = wanted[0].environment
    rows = summary["members"] if summary else unfinished(directory, config)
    data = about.get("data", {})
    members = [_member(directory, config, row, summary is not None, data) for row in rows]
    reached = summary["steps"] if summary else max((member.reached for member in members), default=0)
    log = JsonLines(directory / "metrics.jsonl")
    if environment.own and summary is None:
        reached = max((line["step"] for line in log.read()), default=0)
    seconds, update = _times(log)
    run = Run(
        directory=directory,
        agent=config["agent"],
        environment=environment,
        tasks=tuple(task.name for task in wanted),
        seeds=tuple(config["seeds"]),
        steps=config["steps"],
        reached=reached,
        finished=summary is not None,
        members=len(members),
        methods=tuple(dict.fromkeys(member.method for member in members)),
        config={**config.get("config", {}), **config["hyper"], **config.get("axes", {})},
        seconds=summary.get("wall_time") if summary else seconds,
        update_seconds=update,
        device=_device(summary, sessions),
        versions=(summary or {}).get("versions") or (sessions[-1]["versions"] if sessions else {}),
        sessions=sessions,
    )
    return run, [member for member in members if member.evaluations]


def _member(
    directory: Path, config: dict[str, Any], row: dict[str, Any], finished: bool, data: dict[str, Any]
) -> Member:
    task = tasks.task(row["task"])
    # A simulator of the user's own pays returns, which compare with nothing here: `logs` has those.
    evaluations = [] if task.environment.own else row["evaluations"]
    return Member(
        agent=config["agent"],
        task=task,
        seed=row["seed"],
        hyper=row["hyper"],
        setting=setting(config, row["hyper"], task.environment),
        # A score that was not a number was stored as null: that agent did not succeed.
        evaluations={e["step"]: 100.0 * (e["success"] or 0.0) for e in evaluations},
        values={
            e["step"]: Value(e["value"], e["discounted"])
            for e in evaluations
            if None not in (e.get("value"), e.get("discounted"))
        },
        steps=config["steps"],
        finished=finished,
        diverged=row.get("diverged", False),
        precision=config.get("config", {}).get(PRECISION),
        data=data,
        run=directory,
    )


def unfinished(directory: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of a run without a summary, as the summary would list them."""
    from uhm.population import grid

    records = [Episode.from_json(line) for line in JsonLines(directory / "episodes.jsonl").read()]
    members = grid(config["tasks"], config["seeds"], config.get("axes", {}))
    means = means_by_step(complete(records, len(members), config.get("eval_episodes", 1)))
    return [
        {
            "task": member.task,
            "seed": member.seed,
            "hyper": {**config["hyper"], **dict(member.hyper)},
            "evaluations": [{"step": step, **found} for step, found in means.get(index, {}).items()],
        }
        for index, member in enumerate(members)
    ]


def _device(summary: dict[str, Any] | None, sessions: list[dict[str, Any]]) -> str | None:
    """What the run ran on. A CPU's kind is just `cpu`, so its name is put in."""
    hardware = sessions[-1].get("hardware", {}) if sessions else {}
    kinds = [device["kind"] for device in hardware.get("devices", [])]
    kind = kinds[0] if kinds else (summary or {}).get("device")
    if kind == "cpu" and hardware.get("cpu"):
        return f"{hardware['cpu']}, {hardware.get('cpus')} cores"
    return kind


_START = re.compile(rb'\{"step": (\d+), "seconds": ([0-9.e+-]+)[,}]')


def _times(log: JsonLines) -> tuple[float | None, float | None]:
    """Seconds of training, and the median over log lines of seconds per gradient step.

    The first line contains the compilation and does not count; after a resume another one does, which a median can
    stand. A long run has many megabytes of metrics, so only the start of each line is parsed.
    """
    with log.open() as file:
        lines = [(int(m[1]), float(m[2])) for m in map(_START.match, file) if m]
    pairs = itertools.pairwise(lines)
    rates = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0])
    return lines[-1][1] if lines else None, rates[len(rates) // 2] if rates else None


def _with_methods(run: Run, members: list[Member]) -> Run:
    own = dict.fromkeys(member.method for member in members if member.run == run.directory)
    return dataclasses.replace(run, methods=tuple(own) or run.methods)


def _told_apart(members: list[Member]) -> list[Member]:
    """Of agents whose preset is not known, the settings in which their members differ."""
    values: dict[tuple[str, str], set[Any]] = {}
    for member in members:
        for name, value in member.setting:
            values.setdefault((member.agent, name), set()).add(value)

    def differing(member: Member) -> Setting:
        return tuple(pair for pair in member.setting if len(values[member.agent, pair[0]]) > 1)

    unknown = [not known(member.agent, member.task.environment) for member in members]
    return [
        dataclasses.replace(member, setting=differing(member)) if new else member
        for member, new in zip(members, unknown, strict=True)
    ]


def _precise(members: list[Member]) -> list[Member]:
    """Precision is a setting only where it is compared: where an environment has a method in more than one.

    Otherwise it is how a machine came to the same numbers, and is marked in tables.
    """

    def rest(member: Member) -> tuple[Any, ...]:
        return member.agent, member.task.environment, tuple(pair for pair in member.setting if pair[0] != PRECISION)

    found: dict[tuple[Any, ...], set[str | None]] = {}
    for member in members:
        found.setdefault(rest(member), set()).add(member.precision)
    alone = lambda member: len(found[rest(member)]) == 1  # noqa: E731
    return [dataclasses.replace(m, setting=rest(m)[-1]) if alone(m) else m for m in members]


def _once(members: list[Member]) -> list[Member]:
    """Each (agent, task, seed, setting) once: the member that got further, the first of two equal ones."""
    best: dict[tuple[Any, ...], Member] = {}
    doubles: dict[tuple[Path, Path], int] = {}
    for member in members:
        key = (member.method, member.task, member.seed)
        other = best.get(key)
        if other is None:
            best[key] = member
            continue
        kept, dropped = (member, other) if member.reached > other.reached else (other, member)
        best[key] = kept
        doubles[kept.run, dropped.run] = doubles.get((kept.run, dropped.run), 0) + 1
    for (kept, dropped), count in doubles.items():
        same = "the same agent, task, seed and setting"
        warnings.warn(f"{kept} and {dropped} hold {same} {count}x; the first one's are used.", stacklevel=3)
    return list(best.values())
