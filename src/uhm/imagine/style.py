"""How the pictures of futures look: colours of horizons, marks of things, walls and tables."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.patches import Rectangle

from uhm.envs import rooms

WALL, EDGE, INK, SOFT, NO_N = "#d5d8dd", "#b4b9c1", "#1f2430", "#6b7280", "#4b5f83"
MARKS = ("o", "s", "D", "^", "v")
THINGS = ("#1f2430", "#0f8b8d", "#d1495b", "#edae49", "#7a4ea3")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": EDGE,
    "axes.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "pdf.fonttype": 42,
}


def colour(n: Any, longest: int) -> Any:
    """Near futures are dark blue, far ones orange; logarithmic, so that 1, 2, 4, ... are evenly apart."""
    far = np.log(np.asarray(n, float)) / np.log(longest) if longest > 1 else np.zeros(np.shape(n))
    return mpl.colormaps["plasma"](0.02 + 0.84 * np.clip(far, 0, 1))


def colour_bar(figure: Any, axes: Any, n: Sequence[int], longest: int, learned: int) -> None:
    """One field per horizon; those that the model never learned are marked."""
    n = list(n)
    bar = figure.colorbar(
        ScalarMappable(BoundaryNorm(np.arange(len(n) + 1) - 0.5, len(n)), ListedColormap(colour(n, longest))),
        ax=axes,
        shrink=0.6,
        aspect=22,
        pad=0.015,
    )
    every = -(-len(n) // 16)
    bar.set_ticks(list(range(0, len(n), every)), labels=[f"{k}*" if k > learned else f"{k}" for k in n[::every]])
    bar.ax.tick_params(length=0, pad=4, labelcolor=INK)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.set_title("n", fontsize=10, fontstyle="italic", pad=7)


def draw_rooms(axes: Any) -> None:
    side = 10 * rooms.SIZE + 0.5  # tenths of a unit: every edge of `rooms` lies on one
    line = np.arange(-side + 0.5, side) / 10
    walls = rooms.blocked(np.stack(np.meshgrid(line, line), -1))
    paint = np.where(walls[..., None], to_rgb(WALL), 1.0)
    extent = (-rooms.SIZE, rooms.SIZE, -rooms.SIZE, rooms.SIZE)
    axes.imshow(paint, extent=extent, origin="lower", interpolation="nearest", zorder=0)
    axes.set(xlim=extent[:2], ylim=extent[2:])


def draw_blocks(axes: Any, blocks: Sequence[tuple[float, float, float]]) -> None:
    for x, y, side in blocks:
        axes.add_patch(Rectangle((x, y), side, side, facecolor=WALL, edgecolor="none", zorder=0))
    low = min(min(x, y) for x, y, _ in blocks)
    axes.set(xlim=(low, max(x + side for x, _, side in blocks)), ylim=(low, max(y + side for _, y, side in blocks)))


def mark_start(axes: Any, xy: Any, mark: str = "o", size: float = 7) -> None:
    axes.plot(*xy, mark, ms=size, mfc="white", mec=INK, mew=1.3, zorder=6)


def mark_goal(axes: Any, xy: Any, size: float = 16) -> None:
    axes.plot(*xy, "*", ms=size, mfc="#f2b632", mec="white", mew=1.0, zorder=5)


def bare(axes: Any) -> None:
    axes.set(aspect="equal", xticks=[], yticks=[])
