"""A picture of a finished run: success over gradient steps, and for `rooms` the ways the agents go.

Seeds of one task and setting are one line; other hyperparameters are other lines.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from uhm import population, tasks
from uhm.agents.base import Agent
from uhm.envs import rooms
from uhm.evaluate import Episode, by_step, score
from uhm.evaluate.rooms import start
from uhm.population import Member
from uhm.runs.files import write_figure
from uhm.train import names
from uhm.train.names import Setting


@contextmanager
def _figure(path: Path, title: str, width: float, height: float) -> Iterator[Any]:
    """A figure in the common style, saved at the end."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        write_figure(path, figure, dpi=130)


class Line(NamedTuple):
    """Members that differ in their seeds alone."""

    label: str
    colour: str
    members: list[int]


class Panel(NamedTuple):
    title: str
    lines: list[Line]


def panels(members: Sequence[Member], drawn: Sequence[Setting]) -> list[Panel]:
    """A line per task; where there are several settings, a panel per task with a line for each that is `drawn`."""
    found = list(dict.fromkeys(member.task for member in members))

    def line(label: str, number: int, task: str, setting: Setting) -> Line:
        own = [index for index, m in enumerate(members) if (m.task, m.hyper) == (task, setting)]
        return Line(label, f"C{number}", own)

    if len(drawn) == 1:
        return [Panel("", [line(task.rsplit("-", 1)[-1], i, task, drawn[0]) for i, task in enumerate(found)])]
    return [Panel(task, [line(names.setting(s), i, task, s) for i, s in enumerate(drawn)]) for task in found]


def draw(path: Path, title: str, members: Sequence[Member], episodes: Sequence[Episode], walks: Any = None) -> None:
    """Save the picture. `walks` are positions [members, steps, 2] in `rooms`, or None elsewhere."""
    drawn, note = _best(members, score(episodes))
    found, success = panels(members, drawn), by_step(episodes)
    rows = 1 if walks is None else 2
    # One panel has its map beside it, several have theirs below.
    grid, width = ((1, rows), 6 if rows == 1 else 10) if len(found) == 1 else ((rows, len(found)), 3 * len(found))
    height = 4.2 if len(found) == 1 else 3 + 2.6 * (rows - 1)
    with _figure(path, title, width, height) as figure:
        axes = figure.subplots(*grid, squeeze=False).ravel()
        for place, panel in enumerate(found):
            _curves(axes[place], panel, success)
            axes[place].set(ylabel="" if place else "success, %")
            if walks is not None:
                _map(axes[len(found) + place], panel, members, walks)
        if len(drawn) == 1:
            columns = min(5, len(found[0].lines))
            axes[0].legend(frameon=False, ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        else:
            _legend(figure, axes[0], width, note)


def _best(members: Sequence[Member], scores: dict[int, float]) -> tuple[list[Setting], str]:
    """The settings to draw, of too many those with the most success, and a word if some are left out."""
    found = names.settings(members)
    if len(found) <= names.LINES:
        return found, ""
    means = {s: np.mean([scores[i] for i, m in enumerate(members) if m.hyper == s]) for s in found}
    kept = sorted(found, key=lambda setting: -means[setting])[: names.LINES]
    return [s for s in found if s in kept], f"the {names.LINES} most successful of {len(found)} settings"


def draw_metrics(
    path: Path, title: str, members: Sequence[Member], metrics: Sequence[dict[str, Any]], alive: Sequence[bool]
) -> None:
    """Save what was logged, beside evaluations if there are any: a line per setting, the median of its seeds in their
    range.

    Members that diverged go on to log what means nothing, so they are not drawn, unless there are no others.
    """
    found, shown = names.settings(members), names.key_metrics(dict.fromkeys(name for line in metrics for name in line))
    drawn = names.spread(found)
    note = "" if len(drawn) == len(found) else f"{len(drawn)} of {len(found)} settings, evenly chosen"
    lines = panels(members, drawn)[0].lines
    steps, width, nothing = np.array([line["step"] for line in metrics]), 3 * len(shown), [None] * len(members)
    with _figure(path, title, width, 3) as figure:
        row = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, name in zip(row, shown, strict=True):
            # What is not finite was stored as null, and what was not evaluated has no number either.
            values = np.array([line.get(name, nothing) for line in metrics], float)
            for line in lines:
                sound = [index for index in line.members if alive[index]]
                label = line.label + _diverged(len(line.members) - len(sound), len(line.members))
                own = values[:, sound if any(alive) else line.members]
                known = ~np.isnan(own).all(1)
                at, own = steps[known], own[known]
                if not own.size:
                    axes.plot([], [], color=line.colour, label=label)  # for the legend, which says why
                    continue
                axes.plot(at, np.nanmedian(own, 1), color=line.colour, label=label)
                axes.fill_between(at, np.nanmin(own, 1), np.nanmax(own, 1), color=line.colour, alpha=0.15, lw=0)
            axes.set_title(name, fontsize=9, loc="left")
            axes.set(xlabel="gradient steps")
            axes.grid(alpha=0.25)
        if len(lines) > 1:
            _legend(figure, row[0], width, note)


def _diverged(count: int, members: int) -> str:
    return "" if not count else " (diverged)" if count == members else f" ({count} of {members} diverged)"


def _legend(figure: Any, axes: Any, width: float, note: str) -> None:
    """One for all panels below them, in as many columns as their words leave room for."""
    handles, labels = axes.get_legend_handles_labels()
    inches = 0.085 * max(map(len, labels)) + 0.55  # letters, and the line before them
    rows = math.ceil(len(labels) / max(1, min(5, int(width / inches))))
    options: Any = {"title": note, "alignment": "left"} if note else {}
    figure.legend(
        handles, labels, loc="outside lower left", ncols=math.ceil(len(labels) / rows), frameon=False, **options
    )


def _curves(axes: Any, panel: Panel, success: dict[int, dict[int, float]]) -> None:
    for line in panel.lines:
        curves = [success[index] for index in line.members]
        steps = sorted(curves[0])
        values = 100 * np.array([[curve[step] for step in steps] for curve in curves])
        axes.plot(steps, values.mean(0), "o-", ms=3, color=line.colour, label=line.label)
        axes.fill_between(steps, values.min(0), values.max(0), color=line.colour, alpha=0.15, lw=0)
    axes.set(xlabel="gradient steps", ylim=(-3, 103))
    axes.set_title(panel.title, fontsize=9, loc="left", color="0.35")
    axes.grid(alpha=0.25)


def _map(axes: Any, panel: Panel, members: Sequence[Member], walks: np.ndarray) -> None:
    reach = np.linspace(-rooms.SIZE, rooms.SIZE, 401)
    walls = rooms.blocked(np.stack(np.meshgrid(reach, reach), -1))
    extent = (-rooms.SIZE, rooms.SIZE, -rooms.SIZE, rooms.SIZE)
    axes.imshow(np.where(walls, 0.75, np.nan), cmap="gray", vmin=0, vmax=1, extent=extent, origin="lower")
    for line in panel.lines:
        for index in line.members:
            axes.plot(*walks[index].T, "-", lw=1.4, color=line.colour, alpha=0.85)
            goal = rooms.GOALS[tasks.task(members[index].task).index - 1]
            colour = "0.25" if panel.title else line.colour  # one task has one start and one goal for all lines
            axes.plot(*walks[index][0], "o", ms=5, color=colour)
            axes.plot(*goal, "*", ms=15, mfc=colour, mec="white", mew=0.8)
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.set_title("from start (dot) to goal (star)", fontsize=9, loc="left", color="0.35")
    for spine in axes.spines.values():
        spine.set_visible(True)


def walk_rooms(agent: Agent, state: Any, members: Sequence[Member]) -> np.ndarray:
    """One episode of every member in `rooms`, as positions that stay where the goal is reached."""
    wanted = [tasks.task(member.task) for member in members]
    xy = np.stack([start(task, 0, 0, 0) for task in wanted])
    goals = rooms.GOALS[[task.index - 1 for task in wanted]]
    walk = [xy]
    for step in range(tasks.ROOMS.episode_limit):
        observations = xy[:, None].astype(np.float32)
        actions = np.asarray(population.act(agent, state, observations, jax.random.key(step)), np.float64)[:, 0]
        xy = np.where(rooms.at_goal(xy, goals)[:, None], xy, rooms.move(xy, np.nan_to_num(actions)))
        walk.append(xy)
    return np.stack(walk, 1)
