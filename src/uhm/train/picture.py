"""A picture of a finished run: success over gradient steps, and for `rooms` the ways the agents go."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uhm import population, tasks
from uhm.agents.base import Agent
from uhm.envs import rooms
from uhm.evaluate import Episode, success_by_step
from uhm.evaluate.rooms import start
from uhm.population import Member
from uhm.runs.files import write_figure


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


def draw(path: Path, title: str, members: Sequence[Member], episodes: Sequence[Episode], walks: Any = None) -> None:
    """Save the picture. `walks` are positions [members, steps, 2] in `rooms`, or None elsewhere."""
    with _figure(path, title, 10 if walks is not None else 6, 4.2) as figure:
        axes = np.atleast_1d(figure.subplots(1, 2 if walks is not None else 1))
        names = list(dict.fromkeys(member.task for member in members))
        colours = {name: f"C{index}" for index, name in enumerate(names)}
        _curves(axes[0], names, colours, members, episodes)
        if walks is not None:
            _map(axes[1], colours, members, walks)


def draw_metrics(path: Path, title: str, metrics: Sequence[dict[str, Any]]) -> None:
    """Save what was logged, where nothing can be evaluated: the median of the members, and their range."""
    logged = [name for name in metrics[0] if name not in ("step", "seconds")]
    shown = [name for name in ("q_mean", "critic_loss", "bc_error", "actor_loss", "model_loss") if name in logged]
    shown = shown or logged[:5]  # of an agent of one's own
    steps = [line["step"] for line in metrics]
    with _figure(path, title, 3 * len(shown), 3) as figure:
        for axes, name in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
            values = np.array([line[name] for line in metrics], float)  # what is not finite was stored as null
            known = ~np.isnan(values).all(1)
            at, values = np.array(steps)[known], values[known]
            axes.plot(at, np.nanmedian(values, 1), color="C0")
            axes.fill_between(at, np.nanmin(values, 1), np.nanmax(values, 1), color="C0", alpha=0.15, lw=0)
            axes.set_title(name, fontsize=9, loc="left")
            axes.set(xlabel="gradient steps")
            axes.grid(alpha=0.25)


def _curves(axes: Any, names: list[str], colours: dict, members: Sequence[Member], episodes: Sequence[Episode]) -> None:
    success = success_by_step(episodes)
    for name in names:
        curves = [success[index] for index, member in enumerate(members) if member.task == name]
        steps = sorted(curves[0])
        values = 100 * np.array([[curve[step] for step in steps] for curve in curves])
        axes.plot(steps, values.mean(0), "o-", ms=3, color=colours[name], label=name.rsplit("-", 1)[-1])
        axes.fill_between(steps, values.min(0), values.max(0), color=colours[name], alpha=0.15, lw=0)
    axes.set(xlabel="gradient steps", ylabel="success, %", ylim=(-3, 103))
    axes.legend(frameon=False, ncols=min(5, len(names)), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.grid(alpha=0.25)


def _map(axes: Any, colours: dict, members: Sequence[Member], walks: np.ndarray) -> None:
    line = np.linspace(-rooms.SIZE, rooms.SIZE, 401)
    walls = rooms.blocked(np.stack(np.meshgrid(line, line), -1))
    extent = (-rooms.SIZE, rooms.SIZE, -rooms.SIZE, rooms.SIZE)
    axes.imshow(np.where(walls, 0.75, np.nan), cmap="gray", vmin=0, vmax=1, extent=extent, origin="lower")
    for member, walk in zip(members, walks, strict=True):
        colour, goal = colours[member.task], rooms.GOALS[tasks.task(member.task).index - 1]
        axes.plot(*walk.T, "-", lw=1.4, color=colour, alpha=0.85)
        axes.plot(*walk[0], "o", ms=5, color=colour)
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
