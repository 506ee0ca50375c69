"""What the figures show, as plain data that matplotlib and the page draw alike.

Learning curves carry 95 % stratified bootstrap intervals; the ablations carry one standard deviation, as in the paper.
A figure for which there are no runs is None, and says how to get it.
"""

import dataclasses
import itertools
import statistics as plain
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from uhm.report import statistics
from uhm.report.collect import Member, Method, Run, Value, several_seeds
from uhm.report.settings import shown
from uhm.report.tables import ordered
from uhm.report.writers import name
from uhm.tasks import Environment, Task

# One colour per agent everywhere, legible on light and dark ground; other settings take the rest in turn.
COLOURS = {
    "uhm": "#3b7dd8",
    "ghm": "#e07b2a",
    "dtd": "#2f9e6e",
    "mbtd": "#9a68d4",
    "rebrac-dagger": "#d24d57",
    "mac": "#8d7a3a",
    "fql": "#2aa3b8",
    "rebrac": "#c65d9b",
    "iql": "#7b8794",
    "mopo": "#a0662f",
    "mobile": "#6b8e23",
}
SPARE = ("#e0a32a", "#5d5fc4", "#1f9c9c", "#b8457f", "#6f9c2c", "#8a5a44", "#4aa3df", "#d9738c", "#64748b", "#c2571a")


class Curve(NamedTuple):
    label: str
    colour: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    dashed: bool = False


class Bar(NamedTuple):
    label: str
    colour: str
    value: float


class Panel(NamedTuple):
    title: str
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """One figure: panels that share their axes' meaning."""

    name: str  # of its files
    title: str
    caption: str
    x: str
    y: str
    panels: list[Panel]
    percent: bool = True
    group: Literal["curves", "values", "ablation", "model", "logs"] = "curves"
    zero: bool = True  # whether 0 is always in sight


class Hint(NamedTuple):
    """A figure that was not drawn, and what to run for it."""

    title: str
    text: str
    command: str


def learning_curves(members: Sequence[Member]) -> list[Chart]:
    """Per environment: the mean over its tasks, then every task; a line per method."""
    return [_success(environment, own) for environment, own in _by_environment(members)]


def _success(environment: Environment, members: list[Member]) -> Chart:
    def curves(method: Method, colour: str, own: list[list[Member]]) -> list[Curve]:
        return _curve(name(method), colour, [[m.evaluations for m in task] for task in own], _bootstrap)

    shaded = several_seeds(members)
    caption = "Shaded: 95 % stratified bootstrap over seeds." if shaded else "One seed, so there are no intervals."
    panels = _by_task(environment, members, curves)
    return Chart(f"curves-{environment.name}", environment.name, caption, "gradient steps", "success, %", panels)


def value_curves(members: Sequence[Member]) -> list[Chart]:
    """Per environment, where agents say what they expect: that, and what they get."""
    return [_values(environment, own) for environment, own in _by_environment([m for m in members if m.values])]


def _values(environment: Environment, members: list[Member]) -> Chart:
    def curves(method: Method, colour: str, own: list[list[Member]]) -> list[Curve]:
        lines = []
        for what in Value._fields:
            found = [[{step: getattr(value, what) for step, value in m.values.items()} for m in task] for task in own]
            label = f"{name(method)}, {what}"
            lines += [c._replace(dashed=what == "expected") for c in _curve(label, colour, found, lambda _: None)]
        return lines

    caption = (
        "Discounted return of the evaluation episodes: what the agent expected at their first state, and what it "
        "obtained. A dashed line above the solid one is optimism, below it pessimism. What an unsolved episode would "
        "have cost beyond its time limit is not counted."
    )
    panels = _by_task(environment, members, curves)
    return Chart(
        *(f"values-{environment.name}", f"{environment.name}, values", caption),
        *("gradient steps", "discounted return", panels),
        percent=False,
        group="values",
    )


def _by_environment(members: Sequence[Member]) -> list[tuple[Environment, list[Member]]]:
    found: dict[Environment, list[Member]] = {}
    for member in members:
        found.setdefault(member.task.environment, []).append(member)
    return list(found.items())


def _by_task(
    environment: Environment,
    members: list[Member],
    curves: Callable[[Method, str, list[list[Member]]], list[Curve]],
) -> list[Panel]:
    """A panel for the mean over the tasks and one for each, with the curves of every method that has all of them."""
    by: dict[tuple[Method, Task], list[Member]] = {}
    for member in members:
        by.setdefault((member.method, member.task), []).append(member)
    order = ordered({method for method, _ in by})
    colours = dict(zip(order, palette(order), strict=True))
    run = {task for _, task in by}
    wanted = [task for task in environment.tasks if task in run]

    def lines(tasks: Sequence[Task]) -> list[Curve]:
        found = []
        for method in order:
            own = [by.get((method, task), []) for task in tasks]
            if all(own):
                found += curves(method, colours[method], own)
        return found

    panels = [Panel(task.name, lines([task])) for task in wanted]
    if len(wanted) > 1:
        panels.insert(0, Panel(f"mean of {len(wanted)} tasks", lines(wanted)))
    return nonempty(panels)


def palette(order: Sequence[Method]) -> list[str]:
    """The agents' own colours for their presets, and spare ones in turn for everything else."""
    spare = itertools.cycle(SPARE)
    return [COLOURS[m.agent] if m.agent in COLOURS and not m.setting else next(spare) for m in order]


Band = Callable[[list[np.ndarray]], "tuple[np.ndarray, np.ndarray] | None"]


def _bootstrap(strata: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    return statistics.curve_interval(strata)


def _deviation(strata: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean -+ one standard deviation over seeds, of one task."""
    (curves,) = strata
    if len(curves) < 2:
        return None
    middle, spread = curves.mean(0), curves.std(0, ddof=1)
    return np.maximum(middle - spread, 0.0), np.minimum(middle + spread, 100.0)


def _curve(label: str, colour: str, strata: Sequence[Sequence[dict[int, float]]], band: Band) -> list[Curve]:
    """The mean over tasks and seeds of numbers by step; no curve where the members share no part of the steps."""
    steps = _steps([own for members in strata for own in members])
    if not steps:
        return []
    values = [np.stack([_at(own, steps) for own in members]) for members in strata]
    middle = np.mean([curves.mean(0) for curves in values], axis=0)
    shade = band(values)
    low, high = ([_rounded(x) for x in shade]) if shade else (None, None)
    return [Curve(label, colour, [float(step) for step in steps], _rounded(middle), low, high)]


def _steps(evaluations: Sequence[dict[int, float]]) -> list[int]:
    """Where all were evaluated; where they never were together, the coarsest member's steps that all have passed."""
    common = set.intersection(*(set(own) for own in evaluations))
    if common:
        return sorted(common)
    first, last = max(min(own) for own in evaluations), min(max(own) for own in evaluations)
    return sorted(step for step in min(evaluations, key=len) if first <= step <= last)


def _at(evaluations: dict[int, float], steps: list[int]) -> np.ndarray:
    return np.interp(steps, list(evaluations), list(evaluations.values()))


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 2) for value in values]


def nonempty(panels: Iterable[Panel]) -> list[Panel]:
    return [panel for panel in panels if panel.curves or panel.bars]


class Ablation(NamedTuple):
    """One of the paper's four figures that compare the values of a hyperparameter."""

    hyper: str
    title: str
    flags: str
    names: dict[Any, str]


ABLATIONS = (
    Ablation(
        "schedule", "λ scheduling", "--schedule True False", {True: "with scheduling", False: "without scheduling"}
    ),
    Ablation("beta", "Behaviour mixing β", "--beta 0 0.3 1", {}),
    Ablation(
        "terminal",
        "Terminal state handling",
        "--terminal True False",
        {True: "terminal states handled", False: "terminal states ignored"},
    ),
    Ablation("q", "Winsorization quantile q", "--q 1e-8 0.1 0.2", {}),
)


def ablation(which: Ablation, members: Sequence[Member]) -> Chart | Hint:
    """Members that differ in this hyperparameter alone, a panel per agent and task."""
    groups: dict[tuple[Any, ...], dict[Any, list[Member]]] = {}
    for member in members:
        rest = tuple(pair for pair in member.setting if pair[0] != which.hyper)
        if which.hyper in member.hyper:
            values = groups.setdefault((member.agent, member.task, rest), {})
            values.setdefault(member.hyper[which.hyper], []).append(member)
    groups = {key: values for key, values in groups.items() if len(values) > 1}
    panels = []
    for (agent, task, rest), values in groups.items():
        label = f"{name(Method(agent, rest))}, {task.name}"
        curves = [
            curve
            for colour, value in zip(itertools.cycle(COLOURS.values()), _sorted(values), strict=False)
            for curve in _curve(
                which.names.get(value, f"{which.hyper} = {shown(value)}"),
                colour,
                [[member.evaluations for member in values[value]]],
                _deviation,
            )
        ]
        panels.append(Panel(label if len({key[0] for key in groups}) > 1 or rest else task.name, curves))
    if not nonempty(panels):
        text = f"no runs differ in {which.hyper} alone"
        return Hint(which.title, text, f"uhm train uhm TASK {which.flags}")
    caption = "Shaded: one standard deviation over seeds, as in the paper."
    return Chart(
        *(f"ablation-{which.hyper}", which.title, caption, "gradient steps", "success, %", nonempty(panels)),
        group="ablation",
    )


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Numbers by size; of a switch, on before off."""
    return sorted(values, key=lambda value: -value if isinstance(value, bool) else value)


def update_time(runs: Sequence[Run]) -> Chart | Hint:
    """Milliseconds per gradient step and member, a panel per environment, device, precision and size of population."""
    found: dict[tuple[str, str, str, int], dict[Method, list[float]]] = {}
    for run in runs:
        if run.update_seconds is not None and run.device:
            precision = run.config.get("compute_dtype", "float32")
            place = found.setdefault((run.environment.name, run.device, precision, run.members), {})
            place.setdefault(_program(run), []).append(1000 * run.update_seconds / run.members)
    panels = []
    for (environment, device, precision, count), times in sorted(found.items()):
        if len(times) > 1:
            order = ordered(times)
            bars = [
                Bar(name(m), colour, round(plain.median(times[m]), 4))
                for m, colour in zip(order, palette(order), strict=True)
            ]
            where = device if precision == "float32" else f"{device}, {precision}"
            panels.append(Panel(f"{environment}, {count} member{'s' * (count > 1)} at once, {where}", bars=bars))
    if not panels:
        text = "no two methods ran on the same environment and device with as many members (needs metrics.jsonl)"
        return Hint("Update time", text, "uhm train ghm TASK; uhm train uhm TASK")
    caption = "Median over log lines of the training time per gradient step, divided by the members; without compiling."
    return Chart(
        *("update-time", "Update time", caption, "ms per gradient step and member", "", panels),
        percent=False,
        group="ablation",
    )


def _program(run: Run) -> Method:
    """What a run compiled. Hyperparameters of an axis are arguments of one program, and told apart by nothing."""
    return run.methods[0] if len(run.methods) == 1 else Method(run.agent)


def charts(runs: Sequence[Run], members: Sequence[Member]) -> tuple[list[Chart], list[Hint]]:
    """Every figure that these runs can make, and what is missing for the others."""
    from uhm.report.calibration import calibration  # which is made of the types above

    made = [*learning_curves(members), *value_curves(members), *(ablation(which, members) for which in ABLATIONS)]
    made += [update_time(runs), calibration(runs)]
    return [c for c in made if isinstance(c, Chart)], [hint for hint in made if isinstance(hint, Hint)]
