"""Pictures of futures: on the map in `rooms`, with a closer look at each start in mazes, and for arms the table from
above with heights and openings over n. Left or above is the model, right or below the truth, with the same axes."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from uhm.imagine import style, views
from uhm.imagine.dream import DATA, JUMP, MARGINAL, MONTE_CARLO, ROLL, Dream, Futures
from uhm.imagine.simulators import Maze
from uhm.tasks import ROOMS

_TITLES = {
    JUMP: "imagined: one jump to each n",
    ROLL: "imagined: a one-step model, n times",
    MARGINAL: "imagined: one sample, n unknown to the model",
}
_TRUTHS = {MONTE_CARLO: "true: the simulator, Monte Carlo", DATA: "in the data: the rows n steps later"}


class Drawing:
    """Everything that does not change from frame to frame of a film."""

    def __init__(self, dream: Dream, futures: Futures):
        self.futures, self.view, self.task = futures, dream.view, dream.task
        self.rooms = dream.plan.environment is ROOMS
        self.maze = dream.world if not self.view.arm and not self.rooms else None
        self.goal = None if self.view.arm else dream.world.goal
        self.table = views.table(dream.task, 1) if self.view.arm else None
        self.longest = int(futures.drawn.max()) if futures.drawn is not None else max(futures.n)
        self.mixture = futures.true_mixture()

    def figure(self, shown: Any = None, now: int | None = None) -> Figure:
        """The picture of the horizons asked for; in a film of all up to `now`, the earlier ones faint."""
        shown = list(self.futures.n if shown is None else shown)
        with mpl.rc_context(style.STYLE):
            if self.rooms:
                figure, panels = self._map()
            else:
                figure, panels = self._grid(now)
            for axes, start, true in panels:
                self._points(axes, start, true, shown, now)
            coloured = shown if self.futures.drawn is None else _steps_to(self.longest)
            learned = self.longest if self.futures.how != JUMP else self.futures.k_max
            style.colour_bar(figure, figure.axes, coloured, self.longest, learned)
            self._words(figure, now, max(coloured) > learned)
        return figure

    def _map(self) -> tuple[Figure, list[tuple[Any, int, bool]]]:
        figure = Figure(figsize=(10, 5.35), layout="constrained")
        figure.get_layout_engine().set(rect=(0.0, 0.045, 1, 0.895))  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(1, 2)
        panels: list[tuple[Any, int, bool]] = []
        for true, one in enumerate(axes):
            style.draw_rooms(one)
            style.mark_goal(one, self.goal, 20)
            style.bare(one)
            one.set_title(self._title(bool(true)), fontsize=10, loc="left", color=style.INK, pad=6)
            panels += [(one, start, bool(true)) for start in range(len(self.futures.s))]
        return figure, panels

    def _grid(self, now: int | None) -> tuple[Figure, list[tuple[Any, int, bool]]]:
        """A column per start; rows are the model, the truth and, for arms, what changes over n."""
        count, has_truth = len(self.futures.s), self.futures.truth is not None
        traces = self._traces() if self.view.arm else []
        heights = [1.0] * (1 + has_truth) + [0.62] * len(traces)
        size = 2.15
        overview = 0 if self.view.arm else 1
        wide = 2.0 * len(heights) / 2 * size * 0.86 if overview else 0.0
        figure = Figure(figsize=(size * count + wide + 1.2, size * sum(heights) + 1.3), layout="constrained")
        top, bottom = (inch / figure.get_figheight() for inch in (0.42, 0.5 if self.view.arm else 0.3))
        figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - top - bottom))  # type: ignore[union-attr, call-arg]
        ratios = [wide] * overview + [size] * count
        grid = figure.add_gridspec(len(heights), count + overview, width_ratios=ratios, height_ratios=heights)
        boxes = [self._box(start) for start in range(count)]
        if overview:
            self._overview(figure.add_subplot(grid[:, 0]), boxes)
        panels: list[tuple[Any, int, bool]] = []
        first: dict[int, Any] = {}
        for start in range(count):
            for row in range(1 + has_truth):
                axes = figure.add_subplot(grid[row, start + overview])
                self._around(axes, boxes[start])
                panels.append((axes, start, bool(row)))
                if row == 0:
                    axes.set_title(f"start {start + 1}", fontsize=9, color=style.SOFT)
                if start == 0:
                    axes.set_ylabel(self._title(bool(row)).replace(": ", "\n", 1), fontsize=9, labelpad=7)
            for row, (name, trace) in enumerate(traces, 1 + has_truth):
                axes = figure.add_subplot(grid[row, start], sharey=first.get(row))
                first.setdefault(row, axes)
                trace(axes, start, now)
                axes.tick_params(labelleft=start == 0)
                axes.spines[["top", "right"]].set_visible(False)
                axes.set(xlim=(0, len(self.futures.horizons)))
                axes.set_xlabel("n" if row == len(heights) - 1 else "", fontstyle="italic")
                if start == 0:
                    axes.set_ylabel(name)
                    if len(axes.get_legend_handles_labels()[1]) > 1:
                        axes.legend(fontsize=7, frameon=False, handlelength=1.2, borderpad=0.1, labelspacing=0.2)
        return figure, panels

    def _title(self, true: bool) -> str:
        return _TRUTHS[self.futures.truth_is] if true else _TITLES[self.futures.how]

    def _words(self, figure: Figure, now: int | None, beyond: bool) -> None:
        f = self.futures
        high = figure.get_figheight()
        what = f"{f.agent}: futures on {f.task}" + (f",  n = {now}" if now is not None and f.drawn is None else "")
        figure.text(0.012, 1 - 0.12 / high, what, fontsize=12, fontweight="bold", va="top")
        notes = ["○ start" + ("" if self.view.arm and not len(self._goals()) else "   ★ goal")]
        if len(self.view.things) > 1:
            signs = dict(zip(style.MARKS, "●■◆▲▼", strict=True))
            pairs = zip(style.MARKS, self.view.things, strict=False)
            notes = ["   ".join(f"{signs[mark]} {thing.name}" for mark, thing in pairs) + "   (white: start)"]
        if f.truth is None:
            notes.append("the run's data are not there, so only the model is shown")
        if f.truth_is == DATA:
            notes.append("starts are rows after which much moves; the data follow their own behaviour")
        if f.truth_is == MONTE_CARLO and f.beta:
            alone = f"the model is taught with the data's actions at a share of β = {f.beta:g}, the truth has none"
            notes.append(f"both take the data's actions at a share of β = {f.beta:g}" if f.mixed else alone)
        if f.how == MARGINAL:
            notes.append("the truth's n are geometric")
        if beyond:
            notes.append(f"* beyond n = {f.k_max}, which the model never learned")
        notes.append(f"step {f.step:,}")
        lines = ["   ·   ".join(notes)]
        if self.view.arm:
            dots = "; dots: the data" if f.truth is not None else ""
            lines.append(
                f"maps: the table from above, y to the right and x up   ·   over n: mean and middle 80 %{dots}"
            )
        figure.text(0.012, 0.1 / high, "\n".join(lines), fontsize=7.5, color=style.SOFT, va="bottom", linespacing=1.5)

    def _points(self, axes: Any, start: int, true: bool, shown: list[int], now: int | None) -> None:
        many = self.futures.model.shape[2] * len(shown)
        path = true and self.futures.truth_is == DATA  # a single future, drawn as one
        size = 26.0 if path else float(np.clip(9000 / many, 3, 14))
        if path:
            self._path(axes, start, now)
        for points, colours, faint in self._clouds(start, true, shown, now):
            alpha = 1.0 if path else 0.16 if faint else 0.55
            # The gripper comes last: it is small beside what it carries.
            for mark, thing in reversed(list(zip(style.MARKS, self.view.things, strict=False))):
                xy, shrink = self._xy(thing.of(points)), 0.4 if path and mark == "o" else 1.0
                line = {"lw": 0.5, "edgecolors": "white"} if path else {"lw": 0}
                cloud = {"s": size * shrink, "c": colours, "marker": mark, "alpha": alpha, "zorder": 3, **line}
                axes.scatter(*xy.T, rasterized=True, **cloud)
        for mark, thing in zip(style.MARKS, self.view.things, strict=False):
            big = 8 if self.rooms else 6.5
            style.mark_start(axes, self._xy(thing.of(self.futures.s[start])), mark, big)

    def _path(self, axes: Any, start: int, now: int | None) -> None:
        assert self.futures.truth is not None
        states = np.concatenate([self.futures.s[start][None], self.futures.truth[: now or self.longest, start, 0]])
        for thing in self.view.things:
            axes.plot(*self._xy(thing.of(states)).T, "-", color=style.EDGE, lw=1.0, zorder=2)

    def _clouds(
        self, start: int, true: bool, shown: list[int], now: int | None
    ) -> Iterator[tuple[np.ndarray, Any, bool]]:
        """Points, their colours and whether they are of an earlier moment."""
        f = self.futures
        if f.drawn is not None:  # GHM: all horizons at once
            if true and self.mixture is not None:
                seen = f.drawn[start] <= (now or self.longest)
                yield self.mixture[start][seen], style.colour(f.drawn[start][seen], self.longest), False
            if not true:
                yield f.model[0, start], style.NO_N, False
            return
        states = f.truth if true else f.model
        assert states is not None
        for k in shown:
            if now is None or k <= now:
                yield states[k - 1, start], style.colour([k], self.longest), now is not None and k < now

    def _xy(self, position: np.ndarray) -> np.ndarray:
        """On paper: an arm's table is wider than deep, so its y goes to the right."""
        return position[..., [1, 0]] if self.view.arm else position[..., :2]

    def _box(self, start: int) -> tuple[np.ndarray, float]:
        """Middle and half the side of what a closer look shows: the truth, and nearly all of the model."""
        f = self.futures
        model = f.model[: self.longest, start]
        truth = model if f.truth is None else f.truth[: self.longest, start]
        points = []
        for thing in self.view.things:
            wide = np.quantile(self._xy(thing.of(model)), (0.02, 0.98), axis=(0, 1))
            if self.table is not None:
                wide = np.clip(wide, self._xy(self.table.low - 0.05), self._xy(self.table.high + 0.05))
            here = self._xy(thing.of(truth)) if f.truth is not None else wide
            points += [wide, here.reshape(-1, 2), self._xy(thing.of(f.s[start]))[None]]
        every = np.concatenate(points)
        low, high = every.min(0), every.max(0)
        return (low + high) / 2, max(0.58 * float((high - low).max()), 0.04 if self.view.arm else 0.6)

    def _around(self, axes: Any, box: tuple[np.ndarray, float]) -> None:
        middle, half = box
        if isinstance(self.maze, Maze):
            style.draw_blocks(axes, self.maze.walls())
            style.mark_goal(axes, self.goal)
        if self.table is not None:
            for xy in self.table.buttons:
                corner = (xy[1] - 0.015, xy[0] - 0.015)
                axes.add_patch(Rectangle(corner, 0.03, 0.03, fc="#eef0f3", ec=style.EDGE, lw=0.8, zorder=1))
            for xy in self._goals():
                style.mark_goal(axes, xy[::-1])
        style.bare(axes)
        axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
        self._ruler(axes, middle, half)

    def _goals(self) -> np.ndarray:
        return np.zeros((0, 2)) if self.table is None else self.table.goals

    def _ruler(self, axes: Any, middle: np.ndarray, half: float) -> None:
        """How long a length is, instead of numbers on every axis."""
        length = next(x for x in (5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0) if x <= 0.7 * half)
        x, y = middle[0] - 0.92 * half, middle[1] - 0.9 * half
        axes.plot([x, x + length], [y, y], "-", color=style.SOFT, lw=1.6, solid_capstyle="butt", zorder=7)
        label = f"{100 * length:g} cm" if self.view.arm else f"{length:g} m"
        axes.annotate(label, (x, y), (0, 3), textcoords="offset points", fontsize=7, color=style.SOFT, zorder=7)

    def _overview(self, axes: Any, boxes: list[tuple[np.ndarray, float]]) -> None:
        assert isinstance(self.maze, Maze)
        style.draw_blocks(axes, self.maze.walls())
        style.mark_goal(axes, self.goal)
        for number, (middle, half) in enumerate(boxes, 1):
            low = middle - half
            square = Rectangle(tuple(low), 2 * half, 2 * half, fill=False, ec=style.INK, lw=1.0, zorder=5)
            axes.add_patch(square)
            at = (middle[0], middle[1] + half)
            axes.annotate(
                f"{number}",
                at,
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                fontweight="bold",
                zorder=8,
            )
        style.bare(axes)
        axes.set_title("the starts", fontsize=9, color=style.SOFT)

    def _traces(self) -> list[tuple[str, Callable[..., None]]]:
        found: list[tuple[str, Callable[..., None]]] = []
        found.append(("height z, m", functools.partial(self._lines, [(t, -1) for t in self.view.things])))
        if self.view.slides:
            found.append(("slid, m", functools.partial(self._lines, [(t, 0) for t in self.view.slides])))
        if self.view.buttons:
            found.append(("buttons changed", self._buttons))
        return found

    def _lines(self, things: list[tuple[views.Thing, int]], axes: Any, start: int, now: int | None) -> None:
        for number, (thing, dimension) in enumerate(things):
            tint = style.THINGS[number]
            self._trace(axes, lambda s, t=thing, d=dimension: t.of(s)[..., d], start, now, tint, thing.name)

    def _buttons(self, axes: Any, start: int, now: int | None) -> None:
        before = self.view.lit(self.futures.s[start])
        self._trace(axes, lambda s: (self.view.lit(s) != before).sum(-1).astype(float), start, now, style.INK, "")

    def _trace(self, axes: Any, value: Callable, start: int, now: int | None, tint: str, name: str) -> None:
        """The model's middle 80 % and mean over n, and the data's one future as dots."""
        f = self.futures
        n = np.arange(0, len(f.horizons) + 1)
        first = value(f.s[start])
        model = np.broadcast_to(value(f.model[:, start]), (len(n) - 1, f.model.shape[2]))
        low, high = np.quantile(model, (0.1, 0.9), axis=1)
        begin = lambda x: np.concatenate([[first], x])  # noqa: E731
        if f.drawn is None:
            axes.fill_between(n, begin(low), begin(high), color=tint, alpha=0.16, lw=0)
            axes.plot(n, begin(model.mean(1)), "-", color=tint, lw=1.4, label=name or None)
        else:
            axes.axhspan(low[0], high[0], color=tint, alpha=0.16, lw=0)
            axes.axhline(model[0].mean(), color=tint, lw=1.4, label=name or None)
        if f.truth is not None:
            axes.plot(n, begin(value(f.truth[:, start, 0])), ".", color=tint, ms=5, mew=0)
        if now is not None and f.drawn is None:
            axes.axvline(now, color=style.EDGE, lw=0.8, zorder=0)


def _steps_to(longest: int) -> list[int]:
    """1, 2, 3, ... up to a number, thinned out where they are many."""
    return sorted({int(x) for x in np.unique(np.round(np.geomspace(1, longest, 9)))})
